// What the writer wrote comes back: the configuration, the names and the numbers, in the Hub's
// order.

import { fromF32Array, toF32Array } from '@shardweave/dtypes';
import { BLOCK_SIZES, BLOCK_TYPES, decodeBlocks } from '@shardweave/dtypes/blocks';
import { GgufError, GgufModelError, modelGguf } from '@shardweave/gguf';
import {
  type GgufValue,
  ggufConfigText,
  ggufTokenizerTexts,
  openGguf,
  readGgufModel,
} from '@shardweave/gguf/read';
import { FormatError, NnError, parseModelConfig } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { bareModel, SMALL_MODELS } from './support/hub-models.ts';
import { randomModel } from './support/random-model.ts';
import { changedGguf, sourceOf } from './support/raw-gguf.ts';
import { bytesOf } from './support/written.ts';

const read = async (bytes: Uint8Array) => readGgufModel(await openGguf(sourceOf(bytes)));

/** Format numbers of the block types. */
const IDS: Readonly<Record<string, number>> = {
  ...{ q4_0: 2, q4_1: 3, q5_0: 6, q5_1: 7, q8_0: 8, q4_K: 12, q5_K: 13, q6_K: 14 },
};
const LLAMA = {
  model_type: 'llama',
  vocab_size: 512,
  hidden_size: 256,
  intermediate_size: 256,
  num_hidden_layers: 1,
  num_attention_heads: 8,
  num_key_value_heads: 2,
  max_position_embeddings: 64,
  attention_bias: true,
};

const idsOf = (config: object) =>
  Object.fromEntries(Object.entries(config).filter(([key]) => key.endsWith('token_id')));

describe.each(Object.entries(SMALL_MODELS))('%s', async (name, { config: fields, pre }) => {
  const { config, texts, state } = await randomModel(fields, pre);

  it.each(['f32', 'f16', 'bf16'] as const)('%s: the same configuration and state', async (type) => {
    const bytes = await bytesOf(modelGguf({ texts, state }, { type, name }));
    const { tensors, config: found } = await read(bytes);
    // The file has the tokens of the tokenizer, and nothing of how a model was begun.
    const { initializer_range } = config;
    expect({ ...found, initializer_range, ...idsOf(config) }).toEqual(config);
    expect([...tensors.keys()].sort()).toEqual([...state.keys()].sort());
    for (const [key, { shape, values }] of tensors) {
      const given = state.get(key)!;
      expect(shape, key).toEqual(given.shape);
      expect(values.shape, key).toEqual(given.shape);
      const expected =
        values.dtype === 'f32'
          ? storedNorm(given.data, config.model_type === 'gemma3_text' && key.includes('norm'))
          : fromF32Array(toF32Array(given.data, 'f32'), type);
      expect(values.dtype === 'f32' || values.dtype === type).toBe(true);
      expect(Buffer.compare(await values.read(), expected), key).toBe(0);
    }
  });

  it('q8_0: decoded blocks, and parts at any place', async () => {
    const bytes = await bytesOf(modelGguf({ texts, state }, { type: 'q8_0', name }));
    const { tensors } = await read(bytes);
    let parts = 0;
    for (const [key, { type, values, shape }] of tensors) {
      const whole = toF32Array(await values.read(), values.dtype);
      const given = toF32Array(state.get(key)!.data, 'f32');
      const largest = given.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
      const off = whole.reduce((most, value, i) => Math.max(most, Math.abs(value - given[i]!)), 0);
      // Half a step of 127 to the largest number of a block, and a scale in f16; and half a step of
      // f32 where one is added to a norm.
      expect(off, key).toBeLessThan(type === 'q8_0' ? largest / 220 : type === 'f16' ? 1e-3 : 1e-7);
      for (const [first, count] of [
        [0, 1],
        [shape.at(-1)! - 1, 3],
        [whole.length - 5, 5],
        [33, 31],
      ] as const) {
        if (values.readPart === undefined || first + count > whole.length) {
          continue;
        }
        parts++;
        const part = toF32Array(await values.readPart({ first, count }), values.dtype);
        expect([...part], `${key} ${first}`).toEqual([...whole.subarray(first, first + count)]);
      }
    }
    expect(parts).toBeGreaterThan(10);
  });
});

/** A vector as a file has it: Gemma's norms are rounded where the file adds one to them. */
function storedNorm(data: Uint8Array, isMoved: boolean): Uint8Array {
  const values = toF32Array(data, 'f32');
  return isMoved
    ? fromF32Array(
        values.map((value) => Math.fround(value + 1) - 1),
        'f32',
      )
    : data;
}

describe('a matrix of blocks', async () => {
  const { texts, state } = await randomModel(LLAMA, 'llama-bpe');
  const plain = await bytesOf(modelGguf({ texts, state }, { type: 'f32', name: 'x' }));

  it.each(BLOCK_TYPES)('%s: its rows are moved as they are', async (type) => {
    const { elements, bytes: blockBytes } = BLOCK_SIZES[type];
    let seed = 3;
    const random = (length: number) =>
      Uint8Array.from({ length }, () => {
        seed = (seed * 48_271) % 2_147_483_647;
        return seed >> 8;
      });
    const written = new Map<string, Uint8Array>();
    const bytes = await changedGguf(plain, {
      tensor: ({ name, shape }, data) => {
        const size = shape.reduce((product, dim) => product * dim, 1);
        const own = shape.length === 1 ? data : random((size / elements) * blockBytes);
        written.set(name, own);
        return [shape.length === 1 ? 0 : IDS[type]!, own];
      },
    });
    const { tensors } = await read(bytes);
    const q = tensors.get('model.layers.0.self_attn.q_proj.weight')!;
    expect([q.name, q.type, q.shape]).toEqual(['blk.0.attn_q.weight', type, [256, 256]]);
    const rowBytes = (256 / elements) * blockBytes;
    const own = written.get('blk.0.attn_q.weight')!;
    // A head has 32 rows here. The file alternates between those of its two halves.
    const fileRow = (row: number) =>
      row - (row % 32) + ((row % 32) % 16) * 2 + Math.floor((row % 32) / 16);
    const rowAt = (row: number) =>
      own.subarray(fileRow(row) * rowBytes, (fileRow(row) + 1) * rowBytes);
    const expected = Buffer.concat(Array.from({ length: 256 }, (_, row) => rowAt(row)));
    expect(Buffer.compare(await q.readRows({ first: 0, count: 256 }), expected)).toBe(0);
    const three = expected.subarray(15 * rowBytes, 18 * rowBytes);
    expect(Buffer.compare(await q.readRows({ first: 15, count: 3 }), three)).toBe(0);
    const numbers = new Float32Array(3 * 256);
    decodeBlocks(type, three, numbers);
    const part = await q.values.readPart!({ first: 15 * 256 + 5, count: 700 });
    expect(Buffer.compare(part, new Uint8Array(numbers.buffer).subarray(20, 2820))).toBe(0);
    const v = tensors.get('model.layers.0.self_attn.v_proj.weight')!;
    const bare = written.get('blk.0.attn_v.weight')!.subarray(rowBytes, 2 * rowBytes);
    expect(Buffer.compare(await v.readRows({ first: 1, count: 1 }), bare)).toBe(0);
  });
});

it("GPT-2's rows are columns in the file: read as floats, refused as blocks", async () => {
  const { texts, state } = await randomModel(SMALL_MODELS.gpt2.config, 'gpt-2');
  const key = 'transformer.h.0.attn.c_attn.weight';
  const rowsOf = async (type: 'f32' | 'q8_0') => {
    const { tensors } = await read(await bytesOf(modelGguf({ texts, state }, { type, name: 'x' })));
    return await tensors.get(key)!.readRows({ first: 3, count: 2 });
  };
  const rowBytes = 3 * 64 * 4;
  const expected = state.get(key)!.data.subarray(3 * rowBytes, 5 * rowBytes);
  expect(Buffer.compare(await rowsOf('f32'), expected)).toBe(0);
  await expect(rowsOf('q8_0')).rejects.toThrow(
    /'blk\.0\.attn_qkv\.weight': .* got q8_0\. Read its values/,
  );
});

describe('the keys and tensors of a model', async () => {
  const { texts, state } = await randomModel(LLAMA, 'llama-bpe');
  const plain = await bytesOf(modelGguf({ texts, state }, { type: 'f32', name: 'x' }));
  const set = (key: string, value: GgufValue['value'] | undefined, type = 'u32') => ({
    metadata: (metadata: Map<string, GgufValue>) => {
      if (value === undefined) {
        metadata.delete(key);
      } else {
        metadata.set(key, { type, value } as GgufValue);
      }
    },
  });
  const change = (file: Parameters<typeof changedGguf>[1]) => changedGguf(plain, file);
  const without = (name: string) => ({
    tensor: (stored: { readonly name: string }, data: Uint8Array) =>
      stored.name === name ? undefined : ([0, data] as const),
  });

  it('a file without some keys has the usual values', async () => {
    const bytes = await change({
      metadata: (metadata) => {
        for (const key of [
          'attention.key_length',
          'attention.value_length',
          'rope.freq_base',
          'vocab_size',
          'rope.dimension_count',
        ]) {
          metadata.delete(`llama.${key}`);
        }
        metadata.set('llama.expert_count', { type: 'u32', value: 0 });
        metadata.set('llama.rope.scaling.type', { type: 'string', value: 'none' });
        metadata.set('llama.attention.sliding_window', { type: 'u32', value: 64 });
      },
    });
    const { config } = await read(bytes);
    expect(config).toEqual((await read(plain)).config);
    expect(config).toMatchObject({
      head_dim: 32,
      rope_theta: 10_000,
      vocab_size: 512,
      attention_bias: true,
    });
  });

  it.each<[string, Parameters<typeof change>[0], RegExp]>([
    ['of adapters', set('general.type', 'adapter', 'string'), /expected a model, got "adapter"/],
    [
      'of another architecture',
      set('general.architecture', 'gemma2', 'string'),
      /llama, qwen2, qwen3, smollm3, gemma3, gpt2, got "gemma2"/,
    ],
    ['of none', set('general.architecture', undefined), /got none/],
    [
      'of experts',
      set('llama.expert_count', 8),
      /llama\.expert_count: expected no such key, got 8/,
    ],
    [
      'with yarn',
      set('llama.rope.scaling.type', 'yarn', 'string'),
      /rope\.scaling\.type: expected 'none', got yarn/,
    ],
    [
      'with stretched positions',
      set('llama.rope.scaling.factor', 4, 'f32'),
      /factor: expected 1, got 4/,
    ],
    [
      'with a narrow window',
      set('llama.attention.sliding_window', 32),
      /none below context_length 64, got 32/,
    ],
    [
      'with a partial rotation',
      set('llama.rope.dimension_count', 16),
      /dimension_count: expected 32/,
    ],
    ['with wider values', set('llama.attention.value_length', 64), /value_length: expected 32/],
    [
      'without its width',
      set('llama.embedding_length', undefined),
      /embedding_length: .* got none/,
    ],
    [
      'with heads by layer',
      set('llama.attention.head_count', [8], 'i32[]'),
      /head_count: .* got a list/,
    ],
    [
      'with a billion blocks',
      set('llama.block_count', 1e9),
      /at most as many blocks as tensors \(\d+\), got 1000000000/,
    ],
    [
      'with an epsilon of 0',
      set('llama.attention.layer_norm_rms_epsilon', 0, 'f32'),
      /a number above 0, got 0/,
    ],
    [
      'of another width',
      set('llama.embedding_length', 128),
      /expected \[512, 128\] as the metadata has it, got \[512, 256\]/,
    ],
    ['without a tensor', without('blk.0.ffn_up.weight'), /got none of blk\.0\.ffn_up\.weight/],
    [
      'without its table',
      without('token_embd.weight'),
      /expected the matrix 'token_embd\.weight', got none/,
    ],
    [
      'with too few blocks',
      without('blk.0.attn_q.bias'),
      /It has others: blk\.0\.attn_k\.bias, blk\.0\.attn_v\.bias/,
    ],
  ])('a file %s is refused', async (_, file, message) => {
    const error = await read(await change(file)).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(GgufModelError);
    expect((error as Error).message).toMatch(message);
  });

  it('a vector in blocks is refused', async () => {
    const bytes = await change({
      tensor: ({ name }, data) =>
        name === 'blk.0.attn_q.bias' ? [8, new Uint8Array(8 * 34)] : [0, data],
    });
    await expect(read(bytes)).rejects.toThrow(/'blk\.0\.attn_q\.bias': expected a vector in f32/);
  });

  it('keys that contradict each other are an error of nn', async () => {
    const error = await read(await change(set('llama.attention.head_count_kv', 3))).catch(
      (e: unknown) => e,
    );
    expect(error).toBeInstanceOf(NnError);
  });
});

describe('rotary factors', async () => {
  const scaling = {
    rope_type: 'llama3',
    factor: 32,
    low_freq_factor: 1,
    high_freq_factor: 4,
    original_max_position_embeddings: 8192,
  };
  const { texts, state } = await randomModel(
    { ...LLAMA, rope_theta: 500_000, rope_scaling: scaling },
    'llama-bpe',
  );
  const plain = await bytesOf(modelGguf({ texts, state }, { type: 'f32', name: 'x' }));
  const withFactors = (values: readonly number[]) =>
    changedGguf(plain, {
      tensor: ({ name }, data) => [
        0,
        name === 'rope_freqs.weight' ? new Uint8Array(Float32Array.from(values).buffer) : data,
      ],
    });

  it("become Llama 3's scaling, and those of 1 none", async () => {
    const found = (await read(plain)).config as { readonly rope_scaling: unknown };
    expect(found.rope_scaling).toEqual(scaling);
    const ones = await read(await withFactors(new Array<number>(16).fill(1)));
    expect(ones.config).toMatchObject({ rope_scaling: null });
  });

  it.each([
    [
      'of another formula',
      Array.from({ length: 16 }, (_, i) => 1 + i),
      /Llama 3's rope_scaling, got 1, 2, 3, 4, \.\.\./,
    ],
  ])('%s are refused', async (_, values, message) => {
    await expect(read(await withFactors(values))).rejects.toThrow(message);
  });
});

describe("GPT-2's head", async () => {
  const { texts, state } = await randomModel(SMALL_MODELS.gpt2.config, 'gpt-2');
  const plain = await bytesOf(modelGguf({ texts, state }, { type: 'f32', name: 'x' }));
  /** The position table becomes a head, which has the token table's size here or is refused. */
  const withHead = async (head: (table: Uint8Array) => Uint8Array) => {
    const gguf = await openGguf(sourceOf(plain));
    const table = gguf.tensors.get('token_embd.weight')!;
    const data = head(await table.read({ start: 0, byteLength: table.byteLength }));
    const stored = {
      ...table,
      name: 'output.weight',
      read: async ({ start, byteLength }: { start: number; byteLength: number }) =>
        data.subarray(start, start + byteLength),
    };
    return readGgufModel({
      ...gguf,
      tensors: new Map([...gguf.tensors, ['output.weight', stored]]),
    });
  };

  it('may be stored a second time, and is refused where it differs', async () => {
    expect((await withHead((table) => table)).tensors.has('lm_head.weight')).toBe(false);
    await expect(
      withHead((table) => table.map((byte, i) => (i === 9 ? byte ^ 1 : byte))),
    ).rejects.toThrow(/token table of a gpt2/);
  });
});

it('the text of the configuration is one of a config.json', async () => {
  const bytes = await bytesOf(modelGguf(bareModel(512), { type: 'f16', name: 'x' }));
  const text = await ggufConfigText(await openGguf(sourceOf(bytes)));
  expect(JSON.parse(text)).toMatchObject({
    architectures: ['LlamaForCausalLM'],
    tie_word_embeddings: true,
    rms_norm_eps: 1e-6,
  });
  expect(() => parseModelConfig(text)).not.toThrow(FormatError);
});

it('a file with changed bytes gives a model and texts, or an error of its own', async () => {
  const whole = await bytesOf(modelGguf(bareModel(512), { type: 'f32', name: 'x' }));
  let seed = 5;
  const random = (below: number) => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed % below;
  };
  let refused = 0;
  for (let i = 0; i < 300; i++) {
    const bytes = Uint8Array.from(whole);
    // The keys of the model come first, then those of the tokenizer.
    bytes[random(i % 2 === 0 ? 1500 : whole.byteLength)]! ^= 1 << random(8);
    try {
      const gguf = await openGguf(sourceOf(bytes));
      ggufTokenizerTexts(gguf);
      const { tensors } = await readGgufModel(gguf);
      for (const { values } of tensors.values()) {
        await values.read();
      }
    } catch (error) {
      refused++;
      expect(
        [GgufError, NnError].some((kind) => error instanceof kind),
        String(error),
      ).toBe(true);
    }
  }
  expect(refused).toBeGreaterThan(30);
});
