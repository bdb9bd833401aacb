// Each tensor of a file in blocks has the type that llama.cpp's own quantizer gives it: all types,
// and more shapes than the short test has.

import { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { noGgml } from '../../../tooling/test-kit/ggml.ts';
import { decoder, FILE_TYPES, gpt2, quantizedTypes } from './support/quantized-types.ts';
import { randomEncoder } from './support/word-piece.ts';

const TYPES = Object.keys(FILE_TYPES) as (keyof typeof FILE_TYPES)[];
const TIED = { tie_word_embeddings: true };
const NARROW = { hidden_size: 64 };
const suffix = noGgml === undefined ? '' : ` (${noGgml})`;

describe.skipIf(noGgml !== undefined)(`llama_model_quantize${suffix}`, () => {
  it.each([
    ['a llama of 8 layers', decoder('llama', 8)],
    ['a llama of 9 layers, tied', decoder('llama', 9, TIED)],
    ['a llama of 34 layers', decoder('llama', 34, { intermediate_size: 512 })],
    ['a llama of 32 layers, of width 64', decoder('llama', 32, { ...NARROW, ...TIED })],
    ['a llama with rows of 288', decoder('llama', 4, { hidden_size: 288 })],
    ['a llama with rows of 80', decoder('llama', 2, { hidden_size: 80 })],
    // These are as deep as those of 65 and 70 billion weights.
    ['a llama of 80 layers', decoder('llama', 80, NARROW)],
    [
      'a llama of 80 layers, each head with its v',
      decoder('llama', 80, { ...NARROW, num_key_value_heads: 2 }),
    ],
    ['a qwen2 of 80 layers', decoder('qwen2', 80, { ...NARROW, num_key_value_heads: 2 })],
    ['a qwen3 of 80 layers', decoder('qwen3', 80, NARROW)],
    ['a qwen2 of 24 layers, tied', decoder('qwen2', 24, TIED)],
    ['a qwen3 of 28 layers', decoder('qwen3', 28)],
    ['a GPT-2 of 12 layers', gpt2(12, 256)],
    ['a GPT-2 of 80 layers', gpt2(80, 32)],
  ] as const)('gives the types of %s', async (_, small) => {
    const { ours, theirs } = await quantizedTypes(small, TYPES);
    expect(ours).toEqual(theirs);
  });

  it.each([256, 64])(
    'gives the types of a BERT of 12 layers, of width %i',
    { timeout: 300_000 },
    async (width) => {
      const device = new Device(createReferenceBackend());
      const sizes = { hidden_size: width, intermediate_size: 256, num_hidden_layers: 12 };
      const { ours, theirs } = await quantizedTypes(await randomEncoder(device, sizes), TYPES);
      expect(ours).toEqual(theirs);
    },
  );
});
