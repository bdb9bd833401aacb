// quantizeBase: which matrices get which blocks, where their values come from, and what state
// dicts, loads and saves have of them.

import { piecesIn } from '@shardweave/checkpoint';
import {
  BLOCK_SIZES,
  type BlockType,
  blocksByteLength,
  decodeBlocks,
  encodeBlocks,
} from '@shardweave/dtypes/blocks';
import {
  applyLora,
  type LanguageModel,
  type LazyTensor,
  Linear,
  loadCheckpoint,
  loadStateDict,
  type ModelConfig,
  makeModel,
  NnConfigError,
  packParameters,
  parseModelConfig,
  quantizeBase,
  Sequential,
  StateDictError,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { materialize } from '@shardweave/nn/flat';
import { createHostStore } from '@shardweave/shard-store';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { sharedBackend } from '../../../tooling/test-kit/ranks.ts';

const backend = await sharedBackend();

const CONFIG = parseModelConfig(
  JSON.stringify({
    ...{ model_type: 'llama', vocab_size: 70, hidden_size: 64, intermediate_size: 256 },
    ...{ num_hidden_layers: 1, num_attention_heads: 2, max_position_embeddings: 16 },
    tie_word_embeddings: false,
  }),
);
const Q = 'model.layers.0.self_attn.q_proj.weight'; // rows of 64
const DOWN = 'model.layers.0.mlp.down_proj.weight'; // rows of 256
const TABLE = 'model.embed_tokens.weight';

function adapted({ isDeferred = false }: { readonly isDeferred?: boolean } = {}): LanguageModel {
  const device = new Device(backend);
  const model = makeModel(device, CONFIG, { seed: 4, deferInit: isDeferred });
  applyLora(model, { rank: 2, targets: ['q_proj'], seed: 1 });
  return model;
}

const named = (model: LanguageModel, name: string): Tensor =>
  new Map(model.namedParameters()).get(name)!;

/** The numbers after they have been in blocks. */
function rounded(numbers: Float32Array, type: BlockType): Float32Array {
  const decoded = new Float32Array(numbers.length);
  decodeBlocks(type, encodeBlocks(type, numbers), decoded);
  return decoded;
}

async function numbersOf(tensor: Tensor): Promise<Float32Array> {
  return (await tensor.toArray()) as Float32Array;
}

describe('quantizeBase', () => {
  it('takes linear layers and tables, in shorter blocks where rows are short', async () => {
    const model = adapted();
    const types = await quantizeBase(model, { type: 'q4_K' });
    expect(types.get(DOWN)).toBe('q4_K');
    expect(types.get(Q)).toBe('q5_0');
    expect(types.get(TABLE)).toBe('q8_0');
    expect(types.get('lm_head.weight')).toBe('q8_0');
    expect(types.size).toBe(9);
    expect((await quantizeBase(adapted(), { type: 'q5_K' })).get(TABLE)).toBe('q8_0');
    const left = model.namedParameters().filter(([, { blocks }]) => blocks === undefined);
    expect(new Set(left.map(([name]) => name.split('.').at(-2)))).toEqual(
      new Set(['lora_A', 'lora_B', 'input_layernorm', 'post_attention_layernorm', 'norm']),
    );
  });

  it('rounds values that are there once, to those of the blocks', async () => {
    const [plain, model] = [adapted(), adapted()];
    await quantizeBase(model, { type: 'q4_0', tables: 'q6_K' });
    expect(await numbersOf(named(model, DOWN))).toEqual(
      rounded(await numbersOf(named(plain, DOWN)), 'q4_0'),
    );
    // Rows of 64 fill no blocks of 256.
    expect(named(model, TABLE).blocks?.type).toBe('q8_0');
  });

  it('encodes a matrix that is more than the host has at once', async () => {
    const size = { inFeatures: 2 ** 15, outFeatures: 33, bias: false };
    const layer = new Linear(new Device(backend), size);
    layer.weight.requiresGrad = false;
    const expected = rounded(await numbersOf(layer.weight), 'q8_0');
    await quantizeBase(layer, { type: 'q8_0' });
    const found = await numbersOf(layer.weight);
    expect(found.findIndex((value, i) => value !== expected[i])).toBe(-1);
    layer.device.dispose();
  });

  it('draws and encodes deferred values when they are made', async () => {
    const [model, plain] = [adapted({ isDeferred: true }), adapted()];
    await quantizeBase(model, { type: 'q4_K' });
    await materialize(model);
    expect(await numbersOf(named(model, DOWN))).toEqual(
      rounded(await numbersOf(named(plain, DOWN)), 'q4_K'),
    );
  });

  it.each([
    ['q4_0', 'q4_0', 'q8_0'],
    ['q4_1', 'q4_1', 'q8_0'],
    ['q5_0', 'q5_0', 'q8_0'],
    ['q5_1', 'q5_1', 'q8_0'],
    ['q8_0', 'q8_0', 'q8_0'],
    ['q4_K', 'q5_0', 'q8_0'],
    ['q5_K', 'q5_1', 'q8_0'],
    ['q6_K', 'q8_0', 'q8_0'],
  ] as const)(
    '%s: short rows rest in %s, and tables in %s or what is told',
    async (type, short, table) => {
      const model = adapted();
      const { device } = model;
      const found = await quantizeBase(model, { type });
      expect([found.get(Q), found.get(TABLE), found.get(DOWN)]).toEqual([short, table, type]);
      const told = await quantizeBase(adapted(), { type, tables: 'q5_0' });
      expect([told.get(Q), told.get(TABLE), told.get('lm_head.weight')]).toEqual([
        ...[short, 'q5_0', 'q5_0'],
      ]);
      device.dispose();
    },
  );

  it('takes a tied table once, and leaves matrices that are trained or without a number', async () => {
    const device = new Device(backend);
    const model = makeModel(device, { ...CONFIG, tie_word_embeddings: true } as ModelConfig, {});
    for (const parameter of model.parameters()) {
      parameter.requiresGrad = parameter.name.includes('v_proj');
    }
    const empty = new Linear(device, { inFeatures: 32, outFeatures: 0, bias: false });
    empty.weight.requiresGrad = false;
    const types = await quantizeBase(new Sequential(device, [model, empty]), { type: 'q4_0' });
    const names = [...types.keys()];
    expect(types.get(`0.${TABLE}`)).toBe('q8_0');
    expect(names.filter((name) => /lm_head|v_proj|^1/.test(name))).toEqual([]);
    expect(names).toHaveLength(1 + 6);
  });

  it('blocks are decoded to what a packed model computes in, and drawn once', async () => {
    const [model, plain] = [adapted({ isDeferred: true }), adapted({ isDeferred: true })];
    for (const each of [model, plain]) {
      await quantizeBase(each, { type: 'q8_0' });
      await expect(numbersOf(named(each, Q))).rejects.toThrow('materialize(module)');
      await materialize(each);
    }
    const before = await numbersOf(named(plain, Q));
    named(plain, Q).storage.write(new Uint8Array(named(plain, Q).storage.byteLength));
    await materialize(plain); // which draws nothing again
    expect(new Set(await numbersOf(named(plain, Q)))).toEqual(new Set([0]));
    using _packed = packParameters(model, { computeDType: 'bf16' });
    expect(named(model, Q).dtype).toBe('bf16');
    const { device } = model;
    const ids = device.tensor(Int32Array.of(1, 2), [1, 2]);
    expect((await device.noGrad(() => model.call(ids))).dtype).toBe('bf16');
    expect((await numbersOf(named(model, Q))).length).toBe(before.length);
  });

  it('asks select, which may leave a matrix as it is', async () => {
    const asked: unknown[] = [];
    const types = await quantizeBase(adapted(), {
      type: 'q6_K',
      select: (path, { shape, usual }) => {
        asked.push([path, shape, usual]);
        return path === DOWN ? 'q4_1' : undefined;
      },
    });
    expect([...types]).toEqual([[DOWN, 'q4_1']]);
    expect(asked).toContainEqual([Q, [64, 64], 'q8_0']);
  });

  it('asks once of a matrix that two layers share, by its first name', async () => {
    const device = new Device(backend);
    const first = new Linear(device, { inFeatures: 32, outFeatures: 2, bias: false });
    const model = new Sequential(device, [first, new Sequential(device, [first])]);
    first.weight.requiresGrad = false;
    const asked: string[] = [];
    await quantizeBase(model, { type: 'q8_0', select: (path) => void asked.push(path) });
    expect(asked).toEqual(['0.weight']);
  });

  it('decodes to the dtype that the model is cast to', async () => {
    const model = adapted();
    await quantizeBase(model, { type: 'q8_0' });
    const before = await numbersOf(named(model, Q));
    model.to('bf16');
    expect(named(model, Q).dtype).toBe('bf16');
    const bits = new Uint32Array((await numbersOf(named(model, Q))).buffer);
    expect(bits.every((word) => (word & 0xffff) === 0)).toBe(true);
    expect(before).not.toEqual(await numbersOf(named(model, Q)));
  });

  it.each([
    [{ type: 'q4_k' }, 'or \'q6_K\', got "q4_k"'],
    [{ type: 'q4_0', tables: 4 }, 'expected tables to be'],
    [{ type: 'q4_0', select: () => 'q4_K' }, 'blocks fill rows of'],
    [{ type: 'q4_0', select: () => 'iq4' }, 'got iq4'],
  ])('refuses %o', async (options, message) => {
    const model = adapted();
    const failed = quantizeBase(model, options as { type: 'q4_0' });
    await expect(failed).rejects.toThrow(message);
    expect(named(model, DOWN).blocks).toBeUndefined();
  });

  it('names the matrix with a number that no block holds, and leaves it as it is', async () => {
    const model = adapted();
    const { shape } = named(model, DOWN);
    const numbers = (await numbersOf(named(model, DOWN))).slice();
    numbers[300] = -1e6;
    const data = new Uint8Array(numbers.buffer);
    const state = new Map([[DOWN, { dtype: 'f32', shape, data } as const]]);
    await loadStateDict(model, state, { strict: false });
    await expect(quantizeBase(model, { type: 'q4_0' })).rejects.toThrow(
      new NnConfigError(
        `quantizeBase: expected numbers below 524160 in '${DOWN}', as q4_0 holds them, got -1000000. Mend the weights, or leave that one out by select.`,
      ),
    );
    expect(named(model, DOWN).blocks).toBeUndefined();
    expect(await numbersOf(named(model, DOWN))).toEqual(numbers);
  });

  it('refuses a model that is trained, and one that is packed', async () => {
    const device = new Device(backend);
    const trained = new Linear(device, { inFeatures: 32, outFeatures: 2 });
    await expect(quantizeBase(trained, { type: 'q4_0' })).rejects.toThrow(
      new NnConfigError(
        'quantizeBase: expected a model with frozen weights of linear layers, got none. Blocks are not trained: call applyLora first, or set requiresGrad to false.',
      ),
    );
    const packed = adapted();
    packParameters(packed, { computeDType: 'bf16' });
    await expect(quantizeBase(packed, { type: 'q4_0' })).rejects.toThrow('Quantize first.');
  });
});

describe('the state of a model with blocks', () => {
  const state = stateDict(adapted());

  async function opened(type: BlockType = 'q4_K'): Promise<LanguageModel> {
    const model = adapted({ isDeferred: true });
    await quantizeBase(model, { type });
    return model;
  }

  it('has words, from which another model gets the same blocks', async () => {
    const [first, second] = [await opened(), await opened()];
    await loadStateDict(first, await state);
    const words = await stateDict(first);
    const length = blocksByteLength('q4_K', 64 * 256) / 4;
    expect(words.get(DOWN)).toMatchObject({ dtype: 'u32', shape: [length] });
    await loadStateDict(second, words);
    expect(await stateDict(second)).toEqual(words);
  });

  it.each(['f32', 'bf16'] as const)('encodes %s, whole or in parts', async (dtype) => {
    const { shape, data } = (await state).get(DOWN)!;
    const numbers = new Float32Array(data.slice().buffer).map((value) =>
      dtype === 'f32' ? value : new Float32Array(new Uint32Array([bitsOf(value)]).buffer)[0]!,
    );
    const bytes =
      dtype === 'f32'
        ? new Uint8Array(numbers.buffer)
        : new Uint8Array(Uint16Array.from(numbers, (value) => bitsOf(value) >>> 16).buffer);
    const size = dtype === 'f32' ? 4 : 2;
    const parts: number[] = [];
    const lazy: LazyTensor = {
      dtype,
      shape,
      read: () => Promise.reject(new Error('read as a whole')),
      readPart: async ({ first, count }) => {
        parts.push(count);
        return bytes.slice(first * size, (first + count) * size);
      },
    };
    for (const entry of [lazy, { dtype, shape, data: bytes }]) {
      const model = await opened();
      await loadStateDict(model, new Map([[DOWN, entry]]), { strict: false });
      expect(await numbersOf(named(model, DOWN))).toEqual(rounded(numbers, 'q4_K'));
    }
    expect(parts.reduce((all, count) => all + count, 0)).toBe(numbers.length);
  });

  it('names the weight with a number that no block holds', async () => {
    const model = await opened();
    const { shape, data } = (await state).get(DOWN)!;
    const numbers = new Float32Array(data.slice().buffer);
    numbers[300] = Number.NaN;
    const entry = { dtype: 'f32', shape, data: new Uint8Array(numbers.buffer) } as const;
    const loading = loadStateDict(model, new Map([[DOWN, entry]]), { strict: false });
    await expect(loading).rejects.toThrow(StateDictError);
    await expect(loading).rejects.toThrow(
      `expected numbers below 4127760 in '${DOWN}', as q4_K holds them, got NaN. Mend the weights`,
    );
  });

  it('refuses floats of another shape, and words of another number', async () => {
    const model = await opened();
    const zeros = (dtype: 'f32' | 'u32', shape: number[]) =>
      new Map([[DOWN, { dtype, shape, data: new Uint8Array(4 * shape.reduce((a, b) => a * b)) }]]);
    const load = (given: ReturnType<typeof zeros>) =>
      loadStateDict(model, given, { strict: false });
    await expect(load(zeros('f32', [64, 255]))).rejects.toThrow(StateDictError);
    await expect(load(zeros('f32', [64, 255]))).rejects.toThrow('expected f32 [64, 256]');
    await expect(load(zeros('u32', [7]))).rejects.toThrow('expected u32 [2304], got u32 [7]');
  });

  it('is saved and loaded, base and all', async () => {
    const store = piecesIn(createHostStore());
    const [first, second] = [await opened(), await opened()];
    await loadStateDict(first, await state);
    await saveCheckpoint(first, store);
    await loadCheckpoint(second, store);
    expect(await stateDict(second)).toEqual(await stateDict(first));
  });

  it('takes as much memory as its blocks', async () => {
    const model = await opened('q8_0');
    await loadStateDict(model, await state);
    const tensor = named(model, DOWN);
    const { bytes, elements } = BLOCK_SIZES.q8_0;
    expect(tensor.storage.byteLength).toBe((64 * 256 * bytes) / elements);
  });
});

/** The bits of a number that bf16 holds, cut off. */
function bitsOf(value: number): number {
  return (new Uint32Array(Float32Array.of(value).buffer)[0]! & 0xffff0000) >>> 0;
}
