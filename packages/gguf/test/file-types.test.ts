// Each tensor of a file in blocks has the type that llama.cpp's own quantizer gives it.

import { GGMLQuantizationType } from '@huggingface/gguf';
import { describe, expect, it } from 'vitest';
import { noGgml } from '../../../tooling/test-kit/ggml.ts';
import { decoder, gpt2, ownTypes, quantizedTypes } from './support/quantized-types.ts';

const MIXTURES = ['q4_K_S', 'q4_K_M', 'q5_K_M'] as const;
const suffix = noGgml === undefined ? '' : ` (${noGgml})`;

describe.skipIf(noGgml !== undefined)(`llama_model_quantize${suffix}`, () => {
  it.each([
    // An eighth of the layers is one; it is none of less than 8.
    ['a llama of 9 layers', decoder('llama', 9), MIXTURES],
    ['a tied qwen3', decoder('qwen3', 2, { tie_word_embeddings: true }), ['q4_0', 'q6_K']],
    ['a qwen2 of width 64', decoder('qwen2', 2, { hidden_size: 64 }), MIXTURES],
    ['a GPT-2 of width 160', gpt2(3, 160), MIXTURES],
  ] as const)('gives the types of %s', async (_, small, types) => {
    const { ours, theirs } = await quantizedTypes(small, types);
    expect(ours).toEqual(theirs);
  });
});

it.each(['q4_K', 'q5_K'] as const)('%s: one type for all matrices but the head', async (type) => {
  const { F32, Q4_K, Q5_K, Q6_K } = GGMLQuantizationType;
  const tensors = await ownTypes(decoder('llama', 9), type);
  for (const [name, found] of Object.entries(tensors)) {
    const isHead = name === 'output.weight';
    const isRow32 = name.endsWith('attn_output.weight');
    if (!isRow32) {
      const matrix = isHead ? Q6_K : type === 'q4_K' ? Q4_K : Q5_K;
      expect(found, name).toBe(name.includes('norm') ? F32 : matrix);
    }
  }
});
