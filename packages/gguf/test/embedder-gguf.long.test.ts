// llama.cpp embeds texts with the files of embedders as our models do, and cuts texts into the
// tokens of their WordPiece tokenizer.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Tokenizer } from '@huggingface/tokenizers';
import { modelGguf } from '@shardweave/gguf';
import { Decoder, type DecoderConfig, loadStateDict } from '@shardweave/nn';
import { type EmbeddingBody, EmbeddingModel, embedDocuments } from '@shardweave/nn/embedding';
import { Device } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { SMALL_MODELS, tokenizerConfigText, tokenizerText } from './support/hub-models.ts';
import { llamaEmbeddings, openLlama, tokenIds } from './support/llama-cpp.ts';
import { randomModel } from './support/random-model.ts';
import { randomEncoder, wordPieceTexts } from './support/word-piece.ts';
import { bytesOf } from './support/written.ts';

const TEXTS = [
  'Call me Ishmael. Some years ago',
  'the shipment, unshippable!',
  'naive',
  'Ships (years-ago) some shipping ships?',
];
const HARD = [
  ...TEXTS,
  'Grüße, 你好世界 naïve CAFÉ e\u0301 ﬁ',
  'two  spaces\n\n\ttabs \r\n and zzz 1234567 x\u0000y \u00a0end  ',
  "don't [stop] (now) <b>bold</b> $5 = 3+4*2 ^ ~ `code` | a_b #1 @home 100%",
  'Привет こんにちは words unknown to it, and § signs',
];

const folder = newFolder();
const llama = await openLlama();
const backend = await createCpuBackend({ threads: 1 });
const device = new Device(backend);
afterAll(async () => {
  await llama.dispose();
  await backend.dispose();
});

/** The cosine of llama.cpp's and our embedding of each text. */
async function cosines(path: string, model: EmbeddingModel, encode: (text: string) => number[]) {
  const found = await llamaEmbeddings(llama, { path, texts: TEXTS });
  const all: number[] = [];
  expect(cosine(found[0]!, found[1]!)).toBeLessThan(0.99); // so that equal ones say something
  for (const [i, text] of TEXTS.entries()) {
    const ours = await (await embedDocuments(model, [encode(text)])).toArray();
    const theirs = found[i]!;
    expect(theirs).toHaveLength(ours.length);
    all.push(cosine(theirs, Array.from(ours, Number)));
  }
  return all;
}

function cosine(a: readonly number[], b: readonly number[]): number {
  const dot = a.reduce((sum, value, at) => sum + value * b[at]!, 0);
  return dot / (Math.hypot(...a) * Math.hypot(...b));
}

describe('a BERT', async () => {
  const { model: body, state, texts } = await randomEncoder(device);
  await loadStateDict(body, state);
  const hub = new Tokenizer(
    JSON.parse(texts.get('tokenizer.json')!),
    JSON.parse(texts.get('tokenizer_config.json')!),
  );

  it.each(['mean', 'cls', 'last'] as const)('embeds as ours does, by %s', async (pooling) => {
    const path = join(folder, `bert-${pooling}.gguf`);
    const file = modelGguf({ texts, state }, { type: 'f32', name: 'bert', pooling });
    writeFileSync(path, await bytesOf(file));
    const model = new EmbeddingModel(body as EmbeddingBody, { pooling });
    const found = await cosines(path, model, (text) => hub.encode(text).ids);
    expect(Math.min(...found)).toBeGreaterThan(0.99999);
  });

  it.each([true, false])(
    'has the tokens of its tokenizer.json (lowercase %s)',
    async (lowercase) => {
      const own = new Map([...texts, ...wordPieceTexts({ lowercase })]);
      const path = join(folder, 'tokens.gguf');
      const file = modelGguf({ texts: own, state }, { type: 'f16', name: 'bert' });
      writeFileSync(path, await bytesOf(file));
      const tokenizer = new Tokenizer(JSON.parse(own.get('tokenizer.json')!), {});
      const expected = HARD.map(
        (text) => tokenizer.encode(text, { add_special_tokens: false }).ids,
      );
      expect(await tokenIds(llama, { path, texts: HARD })).toEqual(expected);
    },
  );
});

it('a Qwen 3 embedder embeds as ours does, by the last token', async () => {
  const { config, texts, state } = await randomModel(SMALL_MODELS.qwen3.config);
  state.delete('lm_head.weight');
  const body = new Decoder(device, { ...config, tie_word_embeddings: true } as DecoderConfig);
  await loadStateDict(body, state);
  const path = join(folder, 'qwen3.gguf');
  const file = modelGguf({ texts, state }, { type: 'f32', name: 'qwen3', pooling: 'last' });
  writeFileSync(path, await bytesOf(file));
  const hub = new Tokenizer(JSON.parse(tokenizerText('qwen2')), JSON.parse(tokenizerConfigText));
  const model = new EmbeddingModel(body as EmbeddingBody, { pooling: 'last' });
  const found = await cosines(path, model, (text) => hub.encode(text).ids);
  expect(Math.min(...found)).toBeGreaterThan(0.99999);
});
