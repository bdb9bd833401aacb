// The command's folder is loaded by transformers.js itself, with the very lines that the command
// prints, and computes what our encoder computes.

import { join } from 'node:path';
import { Tokenizer } from '@huggingface/tokenizers';
import { afterAll, expect, it } from 'vitest';
import {
  closeOwn,
  cosine,
  LABELS,
  ownModel,
  SMALL,
  stateOf,
} from '../../../packages/onnx/test/support/small-encoder.ts';
import { loadInNode } from '../../../packages/onnx/test/support/transformers-js.ts';
import { findTransformers } from '../../../tooling/setup/transformers.mjs';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import {
  classifierFiles,
  type EncoderFiles,
  embedderFiles,
  writeFiles,
} from './support/encoder-files.js';
import { runCli } from './support/run-cli.js';

/** The second is longer than sentence-transformers' files allow, and than the model's positions. */
const TEXTS = ['Call me Ishmael.', 'some years ago never mind how long precisely '.repeat(5)];
const QUERIES = ['a little money', 'the watery part'];
/** The most tokens of a text that the files of the embedder have. */
const MOST = 24;
const MINUTES = 300_000;

const modules = findTransformers();
const reason = modules ? '' : ` (${process.env.SHARDWEAVE_NO_TRANSFORMERS ?? 'not installed'})`;
const folder = newFolder();
afterAll(closeOwn);

const files = embedderFiles();
const tokenizer = new Tokenizer(JSON.parse(String(files['tokenizer.json'])), {});
const own = await ownModel(SMALL, stateOf(SMALL));

interface Found {
  readonly dims: readonly number[];
  readonly data: Float32Array;
}

/** Makes the folder, and runs the lines that were printed of it; returns what `result` is then. */
async function runPrinted(
  name: string,
  given: EncoderFiles,
  { result, texts = TEXTS }: { readonly result: string; readonly texts?: readonly string[] },
): Promise<unknown> {
  const model = writeFiles(join(folder, `${name}-model`), given);
  const out = join(folder, name);
  const args = ['onnx', '--model', model, '--out', out, '--dtype', 'f32'];
  const { code, err, out: printed } = await runCli(args);
  expect({ code, err }).toEqual({ code: 0, err: '' });
  const lines = printed.split('\n').filter((line) => line.startsWith('  '));
  const loaded = await loadInNode(modules!, folder);
  const parts = ['pipeline', 'AutoTokenizer', 'AutoModelForSequenceClassification'];
  const program = `return (async () => { ${lines.join('\n')}\n return ${result}; })();`;
  const run = new Function(`{ ${parts.join()} }`, 'texts', 'queries', program);
  return await run(loaded, texts, QUERIES);
}

it.skipIf(modules === undefined)(
  `an embedder has our rows, of long texts too${reason}`,
  { timeout: MINUTES },
  async () => {
    const rows = (await runPrinted('embedder', files, { result: 'rows' })) as Found;
    const width = SMALL.hidden_size;
    expect(rows.dims).toEqual([TEXTS.length, width]);
    for (const [i, text] of TEXTS.entries()) {
      const all = tokenizer.encode(text).ids;
      const ids = all.slice(0, MOST); // transformers.js cuts off the [SEP], too
      expect(all.length > SMALL.max_position_embeddings).toBe(i === 1);
      const tokens = await own.rows(ids);
      const mean = Array.from({ length: width }, (_, column) =>
        ids.reduce((sum, _id, row) => sum + tokens[row * width + column]!, 0),
      );
      const found = rows.data.slice(i * width, (i + 1) * width);
      expect(cosine(mean, found)).toBeGreaterThan(0.99999);
      expect(Math.hypot(...found)).toBeCloseTo(1, 5);
    }
  },
);

it.skipIf(modules === undefined)(
  `a classifier has our labels${reason}`,
  { timeout: MINUTES },
  async () => {
    const given = classifierFiles(LABELS);
    const labels = await runPrinted('classifier', given, { result: 'labels' });
    const ids = tokenizer.encode(TEXTS[0]!).ids;
    const logits = await own.logits(ids);
    const label = LABELS[logits.indexOf(Math.max(...logits))];
    expect(labels).toMatchObject([{ label }, { label: expect.any(String) }]);
  },
);

it.skipIf(modules === undefined)(
  `a reranker scores pairs as ours does${reason}`,
  { timeout: MINUTES },
  async () => {
    const texts = TEXTS.map((text) => text.slice(0, 20));
    const fields = { sentence_transformers: { version: '4' } };
    const given = classifierFiles(['LABEL_0'], fields);
    const logits = (await runPrinted('reranker', given, { result: 'logits', texts })) as Found;
    expect(logits.dims).toEqual([2, 1]);
    for (const [i, query] of QUERIES.entries()) {
      const { ids, token_type_ids: types } = tokenizer.encode(query, {
        text_pair: texts[i]!,
        return_token_type_ids: true,
      });
      const [score] = await own.logits(ids, types);
      expect(logits.data[i]).toBeCloseTo(score!, 4);
    }
  },
);
