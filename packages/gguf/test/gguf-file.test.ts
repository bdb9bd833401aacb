// The bytes of a file are read by the format's own reader and by a plain one in this test.

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { f16ToF32, fromF32Array, toF32Array } from '@shardweave/dtypes';
import {
  type GgufFile,
  GgufModelError,
  type GgufTensor,
  type GgufType,
  GgufUsageError,
  ggufFile,
  type MetadataValue,
  modelGguf,
} from '@shardweave/gguf';
import type { HostTensor } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bareModel } from './support/hub-models.ts';
import { bytesOf, readGguf } from './support/written.ts';

const GEMMA = {
  ...{ model_type: 'gemma3_text', num_key_value_heads: 1, head_dim: 2 },
  query_pre_attn_scalar: 2,
};
const LLAMA3 = {
  rope_type: 'llama3',
  factor: 8,
  low_freq_factor: 1,
  high_freq_factor: 4,
  original_max_position_embeddings: 8192,
};

const folder = newFolder();

describe('ggufFile', () => {
  it('is read by @huggingface/gguf as it was written', async () => {
    // The list is long enough that the header outgrows its first array within each kind of value.
    const many = Array.from({ length: 3000 }, (_, i) => `token ${i} \u00e9\u{1f40b}`);
    const metadata = new Map<string, MetadataValue>([
      ['general.architecture', { type: 'string', value: 'llama' }],
      ['general.alignment', { type: 'u32', value: 32 }],
      ['a.count', { type: 'u32', value: 2 ** 32 - 1 }],
      ['a.number', { type: 'f32', value: 1e-5 }],
      ['a.flag', { type: 'bool', value: true }],
      ['a.texts', { type: 'string[]', value: many }],
      ['a.ints', { type: 'i32[]', value: many.map((_, i) => 7 - i) }],
      ['a.floats', { type: 'f32[]', value: many.map((_, i) => i / 4) }],
    ]);
    const tensors = [
      tensorOf('first', [2, 3]),
      tensorOf('second', [5]),
      tensorOf('third', [1, 2, 4]),
    ];
    const path = await write(ggufFile(metadata, tensors));
    const read = await readGguf(path);
    const { version, tensor_count, kv_count, ...values } = read.metadata;
    expect([version, tensor_count, kv_count]).toEqual([3, 3n, 8n]);
    expect(values).toEqual(
      Object.fromEntries(
        [...metadata].map(([key, { value }]) => [
          key,
          key === 'a.number' ? Math.fround(1e-5) : value,
        ]),
      ),
    );
    expect(
      read.tensorInfos.map(({ name, shape, dtype, offset }) => [name, shape, dtype, offset]),
    ).toEqual([
      ['first', [3n, 2n], 0, 0n],
      ['second', [5n], 0, 32n],
      ['third', [4n, 2n, 1n], 0, 64n],
    ]);
    expect(read.tensorDataOffset % 32n).toBe(0n);
  });

  it('reads a tensor when its turn comes, and one after the other', async () => {
    const log: string[] = [];
    const tensors = ['first', 'second'].map(
      (name): GgufTensor => ({
        ...tensorOf(name, [8]),
        pieces: () => {
          log.push(name);
          return [new Uint8Array(32)];
        },
      }),
    );
    const file = ggufFile(new Map(), tensors);
    expect(log).toEqual([]);
    const sizes: number[] = [];
    for await (const piece of file.pieces()) {
      sizes.push(piece.byteLength);
      log.push('written');
    }
    expect(log.filter((word, i) => word !== 'written' || log[i - 1] !== 'written')).toEqual([
      'written',
      'first',
      'written',
      'second',
      'written',
    ]);
    expect(sizes.reduce((sum, size) => sum + size, 0)).toBe(file.byteLength);
  });

  it.each([
    ['a name twice', [tensorOf('x', [1]), tensorOf('x', [1])], /'x' once/],
    ['a name of 64 bytes', [tensorOf('\u00e9'.repeat(32), [1])], /at most 63 bytes/],
    ['no dimension', [tensorOf('x', [])], /1 to 4 dimensions/],
    ['five dimensions', [tensorOf('x', [1, 1, 1, 1, 1])], /1 to 4 dimensions/],
    ['part of a block', [{ ...tensorOf('x', [48]), type: 'q8_0' as const }], /blocks of 32/],
  ])('refuses %s', (_, tensors, message) => {
    const act = () => ggufFile(new Map(), tensors);
    expect(act).toThrow(GgufUsageError);
    expect(act).toThrow(message);
  });

  it("refuses bytes that don't fit the shape, and numbers that don't fit the header", async () => {
    const short = { ...tensorOf('x', [8]), pieces: () => [new Uint8Array(28)] };
    await expect(bytesOf(ggufFile(new Map(), [short]))).rejects.toThrow(/expected 32 bytes of 'x'/);
    const negative = new Map([['n', { type: 'u32', value: -1 }]] as const);
    expect(() => ggufFile(negative, [])).toThrow(/whole number from 0/);
  });
});

describe('modelGguf', () => {
  const TABLE = 'model.embed_tokens.weight';
  const WIDTH = 64;
  const ROWS = 512;

  it.each([
    ['f32', 'f16'],
    ['f16', 'bf16'],
    ['bf16', 'f32'],
    ['f16', 'f16'],
  ] as const)('%s from a source in %s', async (type, source) => {
    const table = randomTable(source);
    const stored = await storedTable(table, type);
    expect(stored.type).toBe(type);
    const values = toF32Array(table.data, source);
    expect(Buffer.compare(stored.bytes, fromF32Array(values, type))).toBe(0);
  });

  it('q8_0 has the scale of each block in f16, halves away from zero', async () => {
    const block = [127, -0.5, 0.5, 1.5, -1.5, 2.49, -126.6];
    const values = new Float32Array(ROWS * WIDTH);
    values.set(block);
    const data = fromF32Array(values, 'f32');
    const { bytes } = await storedTable({ dtype: 'f32', shape: [ROWS, WIDTH], data }, 'q8_0');
    const [low, high, ...numbers] = new Int8Array(bytes.buffer, bytes.byteOffset, 34);
    expect(f16ToF32((low! & 0xff) | ((high! & 0xff) << 8))).toBe(1);
    expect(numbers).toEqual([127, -1, 1, 2, -2, 2, -127, ...new Array<number>(25).fill(0)]);
    expect(bytes.subarray(34, 68)).toEqual(new Uint8Array(34)); // This is a block of zeros.
  });

  it('q8_0 is within half a step of each number, and as close as its scale in f16', async () => {
    const table = randomTable('f32');
    const { bytes } = await storedTable(table, 'q8_0');
    const values = toF32Array(table.data, 'f32');
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const off = [...values].map((value, i) => {
      const at = Math.floor(i / 32) * 34;
      const scale = f16ToF32(view.getUint16(at, true));
      const stored = scale * view.getInt8(at + 2 + (i % 32));
      return Math.abs(stored - value) - scale / 2 - Math.abs(value) * 2 ** -11;
    });
    expect(bytes.byteLength).toBe((values.length / 32) * 34);
    expect(Math.max(...off)).toBeLessThanOrEqual(1e-6);
  });

  it('leaves vectors in f32, and in f16 what has no whole blocks', async () => {
    const { texts, state } = bareModel(ROWS);
    const path = await write(modelGguf({ texts, state }, { type: 'q8_0', name: 'x' }));
    const { tensorInfos, metadata } = await readGguf(path);
    expect(metadata['general.file_type']).toBe(7);
    expect(tensorInfos.map(({ n_dims, dtype }) => [n_dims, dtype])).toEqual(
      tensorInfos.map(({ n_dims }) => [n_dims, n_dims === 1 ? 0 : 1]),
    );
  });

  it('writes no infinity where a number is too large for its type', async () => {
    const { texts, state } = bareModel(ROWS);
    const data = fromF32Array(new Float32Array(ROWS * 2).fill(65_520), 'f32');
    state.set(TABLE, { dtype: 'f32', shape: [ROWS, 2], data });
    const file = modelGguf({ texts, state }, { type: 'f16', name: 'x' });
    await expect(bytesOf(file)).rejects.toThrow(
      /embed_tokens.weight: expected numbers below 65520/,
    );
    data.fill(0); // The file gets the source's values at the time when each is written.
    await bytesOf(file);
  });

  it('refuses weights that contradict the configuration', () => {
    const { texts, state } = bareModel(ROWS);
    const act = (change: (of: Map<string, HostTensor>) => void) => () => {
      const changed = new Map(state);
      change(changed);
      modelGguf({ texts, state: changed }, { type: 'f32', name: 'x' });
    };
    expect(act((of) => of.delete(TABLE))).toThrow(GgufModelError);
    expect(act((of) => of.delete(TABLE))).toThrow(/got none of model.embed_tokens.weight/);
    expect(act((of) => of.set('extra', of.get(TABLE)!))).toThrow(/others: extra/);
    const flipped = { ...state.get(TABLE)!, shape: [2, ROWS] };
    expect(act((of) => of.set(TABLE, flipped))).toThrow(/\[512, 2\], got \[2, 512\]/);
    expect(act((of) => of.set(TABLE, { ...of.get(TABLE)!, dtype: 'i32' }))).toThrow(/got i32/);
    // A tied head is the table itself.
    expect(act((of) => of.set('lm_head.weight', of.get(TABLE)!))).not.toThrow();
  });

  it.each([
    [{ model_type: 'qwen2', rope_scaling: LLAMA3 }, /rope_scaling/],
    [{ model_type: 'qwen3', head_dim: 2, attention_bias: true }, /attention_bias/],
    [{ ...GEMMA, attention_bias: true }, /attention_bias/],
    [{ ...GEMMA, layer_types: ['full_attention'] }, /layer_types in which other layers/],
    [{ ...GEMMA, rope_local_base_freq: 500 }, /rope_local_base_freq other than 10000/],
    [{ ...GEMMA, query_pre_attn_scalar: 8 }, /query_pre_attn_scalar other than 2/],
    [{ model_type: 'smollm3', mlp_bias: true }, /mlp_bias/],
    [{ model_type: 'smollm3', no_rope_layers: [0] }, /no_rope_layers in which other layers/],
  ])('refuses what llama.cpp computes otherwise: %j', (fields, message) => {
    const { texts, state } = bareModel(ROWS);
    const config = { ...JSON.parse(texts.get('config.json')!), ...fields };
    texts.set('config.json', JSON.stringify(config));
    const act = () => modelGguf({ texts, state }, { type: 'f32', name: 'x' });
    expect(act).toThrow(GgufModelError);
    expect(act).toThrow(message);
  });

  it("refuses a GPT-2 with another activation than llama.cpp's", () => {
    const { texts, state } = bareModel(ROWS);
    texts.set('config.json', JSON.stringify({ model_type: 'gpt2', activation_function: 'gelu' }));
    const act = () => modelGguf({ texts, state }, { type: 'f32', name: 'x' });
    expect(act).toThrow(GgufModelError);
    expect(act).toThrow(/activation_function 'gelu'/);
  });

  it('refuses an unknown type, and a model without a config', () => {
    const { texts, state } = bareModel(ROWS);
    const type = 'q3_K' as GgufType;
    expect(() => modelGguf({ texts, state }, { type, name: 'x' })).toThrow(
      /f32, f16, bf16, q8_0, .*, q4_0, got "q3_K"/,
    );
    texts.delete('config.json');
    const act = () => modelGguf({ texts, state }, { type: 'f32', name: 'x' });
    expect(act).toThrow(GgufUsageError);
  });

  /**
   * Makes a table of numbers of very different magnitudes, so that blocks have different scales.
   */
  function randomTable(dtype: 'f32' | 'f16' | 'bf16'): HostTensor {
    let seed = 7;
    const values = Float32Array.from({ length: ROWS * WIDTH }, (_, i) => {
      seed = (seed * 48_271) % 2_147_483_647;
      return (seed / 2_147_483_647 - 0.5) * 2 ** (Math.floor(i / 32) % 12);
    });
    return { dtype, shape: [ROWS, WIDTH], data: fromF32Array(values, dtype) };
  }

  /** Returns the token table as a file of that type stores it. */
  async function storedTable(table: HostTensor, type: GgufType) {
    const { texts, state } = bareModel(ROWS, WIDTH);
    state.set(TABLE, table);
    const path = await write(modelGguf({ texts, state }, { type, name: 'x' }));
    const { tensorInfos, tensorDataOffset } = await readGguf(path);
    const { dtype, offset } = tensorInfos.find(({ name }) => name === 'token_embd.weight')!;
    const blocks = BLOCKS.find(([, id]) => id === dtype)!;
    const [stored, , elements, bytes] = blocks;
    const start = Number(tensorDataOffset + offset);
    const length = ((ROWS * WIDTH) / elements) * bytes;
    return {
      type: stored,
      bytes: Uint8Array.from(readFileSync(path).subarray(start, start + length)),
    };
  }
});

/** The name, the format's number, the elements and the bytes of a block. */
const BLOCKS = [
  ['f32', 0, 1, 4],
  ['f16', 1, 1, 2],
  ['q8_0', 8, 32, 34],
  ['bf16', 30, 1, 2],
] as const;

function tensorOf(name: string, shape: readonly number[]): GgufTensor {
  const bytes = shape.reduce((product, size) => product * size, 4);
  return { name, type: 'f32', shape, pieces: () => [new Uint8Array(bytes)] };
}

async function write(file: GgufFile): Promise<string> {
  const path = join(folder, 'written.gguf');
  const bytes = await bytesOf(file);
  expect(bytes.byteLength).toBe(file.byteLength);
  writeFileSync(path, bytes);
  return path;
}
