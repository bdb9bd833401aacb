// These model files are too large for one array. They are written in pieces and read by ranges,
// with one tensor in memory at a time. All their bytes come from one shared array of zeros, so that
// offsets exceed 2^32 and memory does not.

import { constants } from 'node:buffer';
import { toF32Array } from '@shardweave/dtypes';
import {
  type ByteSource,
  type ElementRange,
  FormatError,
  GPT2_DEFAULTS,
  Gpt2,
  type HostTensor,
  type LazyTensor,
  type ModelConfig,
  modelFiles,
  openModelState,
  openSafetensors,
  readSafetensors,
  safetensorsPieces,
  stateDict,
  writeSafetensors,
} from '@shardweave/nn';
import type { Shape } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { makeDevice } from './support/support.js';

const CHUNK_BYTES = 2 ** 28;
const ZEROS = new Uint8Array(CHUNK_BYTES);

/** This file takes pieces in order and stores only those that are not part of the shared zeros. */
class SparseFile implements ByteSource {
  byteLength = 0;
  bytesRead = 0;
  largestPiece = 0;
  readonly #kept: { readonly offset: number; readonly bytes: Uint8Array }[] = [];

  append(bytes: Uint8Array): void {
    if (bytes.buffer !== ZEROS.buffer) {
      this.#kept.push({ offset: this.byteLength, bytes });
    }
    this.byteLength += bytes.byteLength;
    this.largestPiece = Math.max(this.largestPiece, bytes.byteLength);
  }

  async read(into: Uint8Array, { offset }: { readonly offset: number }): Promise<void> {
    const end = offset + into.byteLength;
    if (end > this.byteLength) {
      throw new RangeError('a read beyond the end');
    }
    this.bytesRead += into.byteLength;
    for (const { offset: at, bytes } of this.#kept) {
      const [from, to] = [Math.max(at, offset), Math.min(at + bytes.byteLength, end)];
      if (from < to) {
        into.set(bytes.subarray(from - at, to - at), from - offset);
      }
    }
  }
}

async function written(pieces: AsyncIterable<Uint8Array>): Promise<SparseFile> {
  const file = new SparseFile();
  for await (const piece of pieces) {
    file.append(piece);
  }
  return file;
}

function zeros(shape: Shape): LazyTensor {
  const byteLength = shape.reduce((product, dim) => product * dim, 4);
  return { dtype: 'f32', shape, read: async () => ZEROS.subarray(0, byteLength) };
}

describe('a file of more than 4 GiB', () => {
  const last: HostTensor = { dtype: 'f16', shape: [3], data: Uint8Array.of(1, 2, 3, 4, 5, 6) };
  const tensors = () =>
    new Map<string, HostTensor | LazyTensor>([
      ['last', last],
      ...Array.from(
        { length: 17 },
        (_, i) => [`part.${i}`, zeros([CHUNK_BYTES / 4])] as [string, LazyTensor],
      ),
    ]);

  it('is written in pieces and read by ranges, offsets beyond 2^32 included', async () => {
    const file = await written(safetensorsPieces(tensors(), { metadata: { format: 'pt' } }));
    expect(file.byteLength).toBeGreaterThan(17 * CHUNK_BYTES);
    expect(17 * CHUNK_BYTES).toBeGreaterThan(2 ** 32);
    expect(file.largestPiece).toBeLessThanOrEqual(2 ** 26);
    const opened = await openSafetensors(file);
    expect(opened.metadata).toEqual({ format: 'pt' });
    expect([...opened.tensors.keys()].at(-1)).toBe('last'); // Wider elements come first.
    const { read, readPart, ...described } = opened.tensors.get('last')!;
    expect(described).toEqual({ dtype: 'f16', shape: [3] });
    const before = file.bytesRead;
    expect(await read()).toEqual(last.data);
    expect(file.bytesRead - before).toBe(6);
    expect(await readPart!({ first: 1, count: 2 })).toEqual(last.data.subarray(2));
    expect(file.bytesRead - before).toBe(10);
  });

  it('takes a tensor of more than 64 MiB in parts, converted or not', async () => {
    const count = 2 ** 24 + 3; // This is 64 MiB of f32 and three elements.
    const values = new Float32Array(count);
    values.set([1, 2, 3], 2 ** 24);
    const bytes = new Uint8Array(values.buffer);
    const parts: ElementRange[] = [];
    const tensor: LazyTensor = {
      dtype: 'f32',
      shape: [count],
      read: () => Promise.reject(new Error('read whole')),
      readPart: async (part) => {
        parts.push(part);
        return bytes.subarray(part.first * 4, (part.first + part.count) * 4);
      },
    };
    const state = new Map([['wide', tensor]]);
    const file = await written(safetensorsPieces(state));
    expect(parts).toEqual([
      { first: 0, count: 2 ** 24 },
      { first: 2 ** 24, count: 3 },
    ]);
    const wide = (await openSafetensors(file)).tensors.get('wide')!;
    const last = { first: 2 ** 24, count: 3 };
    expect(await wide.readPart!(last)).toEqual(bytes.subarray(2 ** 26));
    const [halves] = modelFiles(GPT2_DEFAULTS, state, {
      dtype: 'bf16',
    });
    const half = await written(halves!.pieces() as AsyncIterable<Uint8Array>);
    const { readPart } = (await openSafetensors(half)).tensors.get('wide')!;
    expect(toF32Array(await readPart!(last), 'bf16')).toEqual(Float32Array.of(1, 2, 3));
    const short: LazyTensor = { ...tensor, readPart: async () => bytes.subarray(0, 8) };
    await expect(written(safetensorsPieces(new Map([['wide', short]])))).rejects.toThrow(
      /expected 67108864 bytes for 'wide' \(f32 \[16777216\]\), got 8/,
    );
  });

  it('a file that ends early is refused before a tensor is read', async () => {
    const file = await written(safetensorsPieces(tensors()));
    file.byteLength -= 1;
    const before = file.bytesRead;
    await expect(openSafetensors(file)).rejects.toThrow(FormatError);
    await expect(openSafetensors(file)).rejects.toThrow(/Is the file truncated\?/);
    expect(file.bytesRead - before).toBeLessThan(10_000);
  });

  // Engines with larger arrays are skipped, since the test would need as much memory as such an
  // array has.
  it.skipIf(constants.MAX_LENGTH > 2 ** 33)('a file as one array is a typed error', () => {
    const data = ZEROS;
    const count = constants.MAX_LENGTH / CHUNK_BYTES + 1;
    const whole = Array.from({ length: count }, (_, i) => {
      return [`part.${i}`, { dtype: 'u8', shape: [CHUNK_BYTES], data }] as const;
    });
    expect(() => writeSafetensors(new Map(whole))).toThrow(FormatError);
    expect(() => writeSafetensors(new Map(whole))).toThrow(/safetensorsPieces/);
  });
});

it('pieces are, byte for byte, the file that is written whole', async () => {
  const model = new Gpt2(makeDevice(), {
    vocab_size: 9,
    n_positions: 4,
    n_embd: 8,
    n_layer: 1,
    n_head: 2,
  });
  const state = await stateDict(model);
  const pieces: Uint8Array[] = [];
  const [file] = modelFiles(model.config, state);
  expect(file!.name).toBe('model.safetensors');
  for await (const piece of file!.pieces()) {
    pieces.push(piece);
  }
  const whole = writeSafetensors(state, { metadata: { format: 'pt' } });
  expect(Buffer.concat(pieces).equals(whole)).toBe(true);
  expect(new Map(readSafetensors(whole).tensors)).toEqual(state);
});

const opened = (file: ByteSource, config: ModelConfig) =>
  openModelState(
    { open: async (name) => (name === 'model.safetensors' ? file : undefined) },
    config,
  );

describe('openModelState', () => {
  it('a file of GPT-2 large, 3 GB, is read for what it is asked for alone', async () => {
    const config = { n_embd: 1280, n_layer: 36, n_head: 20 };
    const model = new Gpt2(makeDevice(), config, { deferInit: true });
    const named = model.namedParameters();
    const bias: HostTensor = {
      dtype: 'f32',
      shape: [1280],
      data: Uint8Array.from({ length: 5120 }, (_, i) => i % 251),
    };
    const entries = named.map(([name, { shape }]) => {
      const isLast = name === 'transformer.ln_f.bias';
      return [name.replace('transformer.', ''), isLast ? bias : zeros(shape)] as const;
    });
    const file = await written(safetensorsPieces(new Map(entries)));
    expect(file.byteLength).toBeGreaterThan(2 ** 31);
    const state = await opened(file, model.config);
    expect([...state.keys()].sort()).toEqual(named.map(([name]) => name).sort());
    const headerBytes = file.bytesRead;
    expect(headerBytes).toBeLessThan(100_000);
    expect(await state.get('transformer.ln_f.bias')!.read()).toEqual(bias.data);
    expect(file.bytesRead - headerBytes).toBe(5120);
  });

  it.each([
    { is: 'the table', head: 0, isTied: true },
    { is: 'another', head: 1, isTied: false },
  ])('compares a head with the table: $is', async ({ head, isTied }) => {
    const table = (value: number): HostTensor => {
      return { dtype: 'f32', shape: [2, 2], data: new Uint8Array(16).fill(value) };
    };
    const state = new Map([
      ['wte.weight', table(0)],
      ['lm_head.weight', table(head)],
      ['h.0.attn.bias', table(3)],
    ]);
    const opening = opened(await written(safetensorsPieces(state)), GPT2_DEFAULTS);
    if (isTied) {
      expect([...(await opening).keys()]).toEqual(['transformer.wte.weight']);
    } else {
      await expect(opening).rejects.toThrow(FormatError);
    }
  });
});
