// Files of embedders: what they say of an encoder, of its WordPiece tokenizer, and of pooling.
// llama.cpp computes with such files in embedder-gguf.long.test.ts.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { modelGguf } from '@shardweave/gguf';
import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bareModel } from './support/hub-models.ts';
import { randomEncoder, wordPieceTexts } from './support/word-piece.ts';
import { bytesOf, readGguf } from './support/written.ts';

const folder = newFolder();
const encoder = await randomEncoder(new Device(createReferenceBackend()), {
  add_pooling_layer: true,
});

it("an encoder's file has llama.cpp's keys and tensors, without its pooler", async () => {
  const path = join(folder, 'bert.gguf');
  const file = modelGguf(encoder, { type: 'q8_0', name: 'small', pooling: 'cls' });
  writeFileSync(path, await bytesOf(file));
  const { metadata, tensorInfos } = await readGguf(path);
  expect(metadata).toMatchObject({
    'general.architecture': 'bert',
    'bert.block_count': 2,
    'bert.context_length': 64,
    'bert.embedding_length': 32,
    'bert.feed_forward_length': 48,
    'bert.attention.head_count': 4,
    'bert.attention.causal': false,
    'bert.pooling_type': 2,
    'tokenizer.ggml.token_type_count': 2,
    'tokenizer.ggml.model': 'bert',
    'tokenizer.ggml.unknown_token_id': 1,
    'tokenizer.ggml.bos_token_id': 2,
    'tokenizer.ggml.seperator_token_id': 3,
    'tokenizer.ggml.padding_token_id': 0,
    'tokenizer.ggml.mask_token_id': 4,
    'tokenizer.ggml.normalizer.lowercase': true,
    'tokenizer.ggml.normalizer.strip_accents': true,
  });
  expect(metadata['bert.attention.layer_norm_epsilon']).toBeCloseTo(1e-12, 18);
  const tokens = metadata['tokenizer.ggml.tokens'] as readonly string[];
  expect(['[CLS]', '\u2581call', 'ment', '\u2581.'].map((token) => tokens.includes(token))).toEqual(
    Array(4).fill(true),
  );
  const both = (name: string) => [`${name}.weight`, `${name}.bias`];
  const names = ['attn_q', 'attn_k', 'attn_v', 'attn_output', 'attn_output_norm', 'ffn_up'];
  expect(tensorInfos.map(({ name }) => name)).toEqual([
    ...['token_embd.weight', 'position_embd.weight', 'token_types.weight'],
    ...both('token_embd_norm'),
    ...[0, 1].flatMap((layer) =>
      [...names, 'ffn_down', 'layer_output_norm'].flatMap((name) => both(`blk.${layer}.${name}`)),
    ),
  ]);
  const f32 = tensorInfos.filter(({ dtype }) => dtype === 0).map(({ name }) => name);
  expect(f32).toContain('position_embd.weight');
  expect(f32).toContain('token_types.weight');
  expect(f32).not.toContain('token_embd.weight');
});

it('pooling is said where it is given, and an embedder may lack the head', async () => {
  const pooled = async (model: Parameters<typeof modelGguf>[0], pooling?: 'mean' | 'last') => {
    const path = join(folder, 'pooled.gguf');
    writeFileSync(path, await bytesOf(modelGguf(model, { type: 'f32', name: 'x', pooling })));
    const { metadata } = await readGguf(path);
    return metadata['bert.pooling_type'] ?? metadata['llama.pooling_type'];
  };
  expect(await pooled(encoder)).toBe(0);
  expect(await pooled(encoder, 'mean')).toBe(1);
  const decoder = bareModel(600);
  expect(await pooled(decoder)).toBeUndefined();
  const config = JSON.parse(decoder.texts.get('config.json')!) as object;
  decoder.texts.set('config.json', JSON.stringify({ ...config, tie_word_embeddings: false }));
  expect(await pooled(decoder, 'last')).toBe(3);
  await expect(pooled(decoder)).rejects.toThrow('got none of lm_head.weight');
});

it.each<[what: string, change: object, message: string]>([
  ['another normalizer', { normalizer: { type: 'Lowercase' } }, 'expected a BertNormalizer'],
  ['none', { normalizer: null }, 'expected a BertNormalizer'],
  [
    'another way to cut',
    { pre_tokenizer: { type: 'Whitespace' } },
    'expected the BertPreTokenizer',
  ],
  ['nothing around a text', { post_processor: null }, 'expected a post_processor that puts one'],
  [
    'two tokens that llama.cpp would take for one',
    { vocab: { '\u2581x': 216, '##\u2581\u2581x': 217 } },
    'expected tokens that differ in llama.cpp, too, got "\u2581x" and "##\u2581\u2581x"',
  ],
  ['another sign for what continues', { prefix: '@@' }, 'expected continuing_subword_prefix'],
  ['no unknown token', { unknown: '[NONE]' }, 'expected unk_token among the tokens, got "[NONE]"'],
])('a WordPiece tokenizer with %s is refused', (_, change, message) => {
  const texts = new Map(encoder.texts);
  const json = JSON.parse(wordPieceTexts().get('tokenizer.json')!) as {
    model: { vocab: object };
  };
  const { vocab, prefix, unknown, ...steps } = change as Readonly<Record<string, unknown>>;
  const model = {
    ...json.model,
    ...(prefix !== undefined && { continuing_subword_prefix: prefix }),
    ...(unknown !== undefined && { unk_token: unknown }),
    vocab: { ...json.model.vocab, ...(vocab as object | undefined) },
  };
  texts.set('tokenizer.json', JSON.stringify({ ...json, ...steps, model }));
  expect(() => modelGguf({ ...encoder, texts }, { type: 'f32', name: 'x' })).toThrow(message);
});

it("weights and poolings that are not the model's are refused", () => {
  const state = new Map([...encoder.state].filter(([name]) => !name.includes('layer.1.output')));
  const write = (options: object) => () =>
    modelGguf({ ...encoder, state }, { type: 'f32', name: 'x', ...options });
  expect(write({})).toThrow('got none of encoder.layer.1.output.dense.weight');
  expect(write({ pooling: 'max' })).toThrow('expected pooling to be mean, cls, last, got "max"');
});
