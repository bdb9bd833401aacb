// How weights are cut into files and named, and what an index or a tied head may say.

import { fromF32Array } from '@shardweave/dtypes';
import {
  type HostTensor,
  type LazyTensor,
  modelFiles,
  openModelState,
  openSafetensors,
  parseModelConfig,
  readSafetensors,
  writeSafetensors,
} from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { filesWith, MemoryFile, MemoryFiles } from './support/memory-files.js';

const CONFIG = parseModelConfig(
  JSON.stringify({ vocab_size: 4, n_embd: 4, n_head: 2, n_layer: 1, n_positions: 4 }),
);

/** Tensors of one dtype, by the number of elements of each. */
const tensorsOf = (sizes: readonly number[], dtype: 'f32' | 'bf16' | 'f16' = 'f32') =>
  new Map(
    sizes.map((size, i): [string, HostTensor] => {
      const numbers = Float32Array.from({ length: size }, (_, at) => i + at);
      return [`t${i}`, { dtype, shape: [size], data: fromF32Array(numbers, dtype) }];
    }),
  );

const INDEX = 'model.safetensors.index.json';

describe('modelFiles', () => {
  it.each([
    ['all in one where they just fit', [2, 2, 2], 24, [[0, 1, 2]]],
    ['the next where one byte is missing', [2, 2, 2], 23, [[0, 1], [2]]],
    ['one for each that is larger than a file may be', [9, 1, 9, 9], 8, [[0], [1], [2], [3]]],
    ['as many as fit, those of no element too', [0, 1, 0, 1, 2], 8, [[0, 1, 2, 3], [4]]],
  ] as const)('puts tensors into files: %s', async (_, sizes, maxFileBytes, expected) => {
    const files = await filesWith(modelFiles(CONFIG, tensorsOf(sizes), { maxFileBytes }));
    const shards = expected.map((__, i) => {
      const [at, count] = [i + 1, expected.length].map((n) => String(n).padStart(5, '0'));
      return expected.length === 1 ? 'model.safetensors' : `model-${at}-of-${count}.safetensors`;
    });
    const found = shards.map((name) => [...readSafetensors(files.get(name)!.bytes).tensors.keys()]);
    expect(found.map((names) => names.sort())).toEqual(
      expected.map((numbers) => numbers.map((n) => `t${n}`)),
    );
    const index = expected.length === 1 ? [] : [INDEX];
    expect([...files.keys()]).toEqual([...shards, ...index, 'config.json']);
    if (index.length > 0) {
      const total = sizes.reduce<number>((sum, size) => sum + 4 * size, 0);
      expect(JSON.parse(files.text(INDEX))).toMatchObject({ metadata: { total_size: total } });
    }
  });

  it.each([
    ['f32', 'float32', 4],
    ['bf16', 'bfloat16', 2],
    ['f16', 'float16', 2],
    ['kept', 'bfloat16', undefined],
  ] as const)('writes floats as %s, and says so in the config', async (dtype, torch, bytes) => {
    const read = async () => fromF32Array(Float32Array.of(1, 2, 3), 'bf16');
    const parts: LazyTensor = {
      ...{ dtype: 'bf16', shape: [3], read },
      readPart: async ({ first, count }) => (await read()).slice(2 * first, 2 * (first + count)),
    };
    const state = new Map<string, HostTensor | LazyTensor>([
      ['half', { dtype: 'f16', shape: [2], data: fromF32Array(Float32Array.of(4, 5), 'f16') }],
      ['lazy', { dtype: 'bf16', shape: [3], read }],
      ['parts', parts],
      ['whole', { dtype: 'f32', shape: [1], data: fromF32Array(Float32Array.of(6), 'f32') }],
      ['ids', { dtype: 'i32', shape: [2], data: new Uint8Array(8).fill(1) }],
    ]);
    const files = await filesWith(modelFiles(CONFIG, state, { dtype }));
    expect(JSON.parse(files.text('config.json'))).toMatchObject({ torch_dtype: torch });
    const { tensors } = readSafetensors(files.get('model.safetensors')!.bytes);
    const kept = { half: 'f16', lazy: 'bf16', parts: 'bf16', whole: 'f32' } as const;
    for (const [name, numbers] of Object.entries({
      ...{ half: [4, 5], lazy: [1, 2, 3], parts: [1, 2, 3], whole: [6] },
    })) {
      const wanted = dtype === 'kept' ? kept[name as keyof typeof kept] : dtype;
      const tensor = tensors.get(name)!;
      expect(tensor.dtype).toBe(wanted);
      expect(tensor.data).toEqual(fromF32Array(Float32Array.from(numbers), wanted));
      expect(tensor.data.byteLength).toBe(numbers.length * (bytes ?? (wanted === 'f32' ? 4 : 2)));
    }
    expect(tensors.get('ids')).toMatchObject({ dtype: 'i32', data: new Uint8Array(8).fill(1) });
  });
});

describe('an index', () => {
  const cut = async () => filesWith(modelFiles(CONFIG, tensorsOf([1, 1]), { maxFileBytes: 4 }));
  const bytesOf = (value: unknown) =>
    new MemoryFile(
      new TextEncoder().encode(typeof value === 'string' ? value : JSON.stringify(value)),
    );

  it.each([
    ['that is no JSON', '{', 'expected JSON'],
    ['of no files', {}, 'expected weight_map'],
    ['of a list', { weight_map: [] }, 'expected weight_map'],
    ['that leads away', { weight_map: { t0: '../model-00001-of-00002.safetensors' } }, "'t0'"],
    ['that leads away backwards', { weight_map: { t0: '..\\a.safetensors' } }, "'t0'"],
    ['of another kind of file', { weight_map: { t0: 'weights.bin' } }, "'t0'"],
    ['of a file that is not there', { weight_map: { t0: 'a.safetensors' } }, 'no such file'],
    [
      'of a tensor that its file lacks',
      { weight_map: { t1: 'model-00001-of-00002.safetensors' } },
      "expected 't1' in model-00001-of-00002.safetensors, which does not have it",
    ],
  ])('%s is refused', async (_, value, message) => {
    const files = await cut();
    files.set(INDEX, bytesOf(value));
    await expect(openModelState(files, CONFIG)).rejects.toThrow(message);
  });

  it('too large to be one is refused before it is read', async () => {
    const files = new MemoryFiles();
    const huge = new MemoryFile(new Uint8Array(0));
    Object.defineProperty(huge, 'byteLength', { value: 65 * 2 ** 20 });
    files.set(INDEX, huge);
    await expect(openModelState(files, CONFIG)).rejects.toThrow('expected at most 67108864 bytes');
    expect(huge.bytesRead).toBe(0);
  });

  it('a header that is longer than the format allows is refused before it is read', async () => {
    const first = new Uint8Array(8);
    new DataView(first.buffer).setBigUint64(0, 100_000_001n, true);
    let bytesRead = 0;
    const source = {
      byteLength: 2 ** 40,
      read: async (into: Uint8Array) => {
        bytesRead += into.byteLength;
        into.set(first.subarray(0, into.byteLength));
      },
    };
    await expect(openSafetensors(source)).rejects.toThrow('got a header of 100000001');
    expect(bytesRead).toBe(8);
  });
});

it('a head beside the table that it is tied to is compared to its last number', async () => {
  const size = 2 ** 22 + 3; // more than is compared at once
  const table = {
    dtype: 'bf16',
    shape: [size, 1],
    data: new Uint8Array(2 * size).fill(3),
  } as const;
  const tensors = new Map([
    ['wte.weight', table],
    ['lm_head.weight', table],
  ]);
  const file = writeSafetensors(tensors);
  const files = new MemoryFiles([['model.safetensors', new MemoryFile(file)]]);
  const state = await openModelState(files, CONFIG);
  expect([...state.keys()]).toEqual(['transformer.wte.weight']);
  const { data } = readSafetensors(file).tensors.get('lm_head.weight')!;
  for (const at of [0, 2 ** 23 - 1, 2 ** 23, data.length - 1]) {
    data[at] = 4;
    await expect(openModelState(files, CONFIG)).rejects.toThrow('to be the token table');
    data[at] = 3;
  }
});
