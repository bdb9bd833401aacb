// transformers.js is the judge here: it loads our folders in Node and in a page, and computes what
// our encoder computes. And ONNX's own checker looks at each graph.

import { spawnSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { Tokenizer } from '@huggingface/tokenizers';
import { type EncoderConfig, resolveEncoderConfig } from '@shardweave/nn/embedding';
import { type OnnxDType, type OnnxFolder, onnxFiles } from '@shardweave/onnx';
import { afterAll, describe, expect, it } from 'vitest';
import { chromiumPath, launchChromium, newPage } from '../../../tooling/browser/launch-chromium.ts';
import { serveFiles } from '../../../tooling/browser/static-server.ts';
import { findOnnxPython, findTransformers } from '../../../tooling/setup/transformers.mjs';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bytesOf } from './support/read-onnx.ts';
import {
  closeOwn,
  cosine,
  LABELS,
  ownModel,
  SMALL,
  stateOf,
  textsOf,
} from './support/small-encoder.ts';
import {
  type Judgement,
  type JudgeOptions,
  judge,
  loadInNode,
  pageFiles,
} from './support/transformers-js.ts';

const DTYPES = ['f32', 'f16', 'q8'] as const;
/** The names of types there. */
const NAMES = { f32: 'fp32', f16: 'fp16', q8: 'q8' } as const;
const LEAST_COSINE = { f32: 0.9999, f16: 0.9999, q8: 0.999 } as const;
/**
 * How far probabilities of the likeliest label may be from ours. The largest differences were
 * 0.000001, 0.0035 and 0.054 when this was written.
 */
const OFF = { f32: 1e-5, f16: 0.01, q8: 0.15 } as const;
const TEXTS = [
  'Call me Ishmael.',
  'some years ago - never mind how long precisely - having little or no money in my purse,',
  'the watery part!',
  'nothing particularly interesting on shores',
  'sail',
];
const MODELS: readonly (readonly [string, EncoderConfig, number])[] = [
  ['of rows that fill no blocks', SMALL, 0.2],
  [
    'of four layers of 128',
    resolveEncoderConfig({
      ...SMALL,
      ...{ hidden_size: 128, intermediate_size: 512, num_hidden_layers: 4, hidden_act: 'gelu_new' },
    }),
    0.1,
  ],
];
/** How far the logit of a text's own label is above zero, which is about the mean of all. */
const LEAD = 4;
const MINUTES = 300_000;

const modules = findTransformers();
const noModules = modules ? '' : ` (${process.env.SHARDWEAVE_NO_TRANSFORMERS ?? 'not installed'})`;
const python = findOnnxPython();
const noPython = python ? '' : ` (${process.env.SHARDWEAVE_NO_ONNX_CHECKER ?? 'not installed'})`;
const chromium = await chromiumPath();
const noPage = chromium.path ? noModules : ` (${chromium.reason})`;
afterAll(closeOwn);

describe.each(MODELS)('a model %s', async (_, config, scale) => {
  const folder = newFolder();
  const texts = textsOf(config);
  const state = stateOf(config, { scale });
  const own = await ownModel(config, state);
  const tokenizer = new Tokenizer(JSON.parse(texts.get('tokenizer.json')!), {});
  const ids = TEXTS.map((text) => tokenizer.encode(text).ids);
  await fitClassifier();
  const paths = await writeModels(folder, { texts, state });

  it.skipIf(python === undefined)(`passes ONNX's checker${noPython}`, { timeout: MINUTES }, () => {
    const graphs = [...paths.keys()].filter((path) => path.endsWith('.onnx'));
    expect(graphs).toHaveLength(2 * DTYPES.length);
    const program = `
import sys, onnx
for path in sys.argv[1:]:
    onnx.checker.check_model(onnx.load(path), full_check=True)`;
    const files = graphs.map((path) => join(folder, path));
    const { stderr, status } = spawnSync(python!, ['-c', program, ...files], { encoding: 'utf8' });
    expect([stderr, status]).toEqual(['', 0]);
  });

  it.skipIf(modules === undefined).each(DTYPES)(
    `%s: has our rows and labels in Node${noModules}`,
    { timeout: MINUTES },
    async (dtype) => {
      const transformers = await loadInNode(modules!, folder);
      await compare(await judge(transformers, { texts: TEXTS, dtype: NAMES[dtype] }), dtype);
    },
  );

  it.skipIf(noPage !== '')(
    `has our rows and labels in a page${noPage}`,
    { timeout: MINUTES },
    async () => {
      const files = pageFiles(modules!);
      for (const [path, bytes] of paths) {
        files.set(`/models/${path}`, bytes);
      }
      const server = await serveFiles(files, { isIsolated: false });
      const browser = await launchChromium(chromium.path!);
      try {
        const page = await newPage(browser);
        await page.goto(server.origin);
        for (const dtype of DTYPES) {
          const options: JudgeOptions = { texts: TEXTS, dtype: NAMES[dtype] };
          const found = await page.evaluate(judgeInPage, { ...options, judge: String(judge) });
          await compare(found, dtype);
        }
      } finally {
        await browser.close();
        await server.close();
      }
    },
  );

  /** Gives each of the first texts a label of its own: random weights prefer one. */
  async function fitClassifier(): Promise<void> {
    const pooled: Float32Array[] = [];
    for (const given of ids.slice(0, LABELS.length)) {
      pooled.push(await own.pooled(given));
    }
    const mean = (i: number) => pooled.reduce((sum, row) => sum + row[i]!, 0) / pooled.length;
    const weight = pooled.flatMap((row) => {
      const off = [...row].map((value, i) => value - mean(i));
      const square = off.reduce((sum, value) => sum + value ** 2, 0);
      return off.map((value) => (LEAD * value) / square);
    });
    const width = config.hidden_size;
    const bias = LABELS.map((_, label) =>
      weight
        .slice(label * width, (label + 1) * width)
        .reduce((sum, value, i) => sum - value * mean(i), 0),
    );
    for (const [name, values] of Object.entries({ weight, bias })) {
      const { data } = state.get(`classifier.${name}`)!;
      new Float32Array(data.buffer).set(values);
    }
  }

  async function compare({ rows, labels }: Judgement, dtype: OnnxDType) {
    const [count, seq, width] = rows.dims as [number, number, number];
    expect([count, width]).toEqual([TEXTS.length, config.hidden_size]);
    const likeliest = new Set<string>();
    for (const [text, given] of ids.entries()) {
      const first = text * seq * width;
      const found = rows.data.slice(first, first + given.length * width);
      expect(cosine(await own.rows(given), found)).toBeGreaterThanOrEqual(LEAST_COSINE[dtype]);
      const shares = softmax(await own.logits(given));
      const best = shares.indexOf(Math.max(...shares));
      likeliest.add(LABELS[best]!);
      expect(labels[text]!.label).toBe(LABELS[best]);
      expect(Math.abs(labels[text]!.score - shares[best]!)).toBeLessThan(OFF[dtype]);
    }
    expect(likeliest.size).toBe(LABELS.length);
  }
});

/** Writes the folders `features` and `classes`, and returns all files' bytes by their paths. */
async function writeModels(
  folder: string,
  model: OnnxFolder,
): Promise<ReadonlyMap<string, Uint8Array>> {
  const all = new Map<string, Uint8Array>();
  for (const [name, task] of [
    ['features', 'feature-extraction'],
    ['classes', 'text-classification'],
  ] as const) {
    for (const file of onnxFiles(model, { task, dtypes: DTYPES })) {
      all.set(`${name}/${file.name}`, await bytesOf(file));
    }
  }
  for (const [path, bytes] of all) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), bytes);
  }
  return all;
}

/** Runs in the page, to which functions go as their texts. */
async function judgeInPage(options: JudgeOptions & { readonly judge: string }): Promise<Judgement> {
  const loaded = await window.transformers;
  loaded.env.allowRemoteModels = false;
  loaded.env.allowLocalModels = true;
  loaded.env.localModelPath = '/models/';
  loaded.env.backends.onnx.wasm.wasmPaths = '/ort/';
  loaded.env.backends.onnx.wasm.numThreads = 1;
  const run = new Function(`return ${options.judge}`)();
  return run(loaded, options);
}

function softmax(logits: readonly number[]): readonly number[] {
  const most = Math.max(...logits);
  const shares = logits.map((logit) => Math.exp(logit - most));
  const sum = shares.reduce((all, share) => all + share, 0);
  return shares.map((share) => share / sum);
}
