import {
  FormatError,
  type HostTensor,
  type LazyTensor,
  readSafetensors,
  safetensorsPieces,
  writeSafetensors,
} from '@shardweave/nn';
import { describe, expect, it } from 'vitest';

/** Builds a file of the safetensors format from a header and data. */
function fileOf(header: unknown, data: number[] | Uint8Array = []): Uint8Array {
  const text = typeof header === 'string' ? header : JSON.stringify(header);
  const bytes = new TextEncoder().encode(text);
  const file = new Uint8Array(8 + bytes.length + data.length);
  new DataView(file.buffer).setBigUint64(0, BigInt(bytes.length), true);
  file.set(bytes, 8);
  file.set(data, 8 + bytes.length);
  return file;
}

const bytes = (count: number, first = 1) => Uint8Array.from({ length: count }, (_, i) => first + i);

describe('safetensors', () => {
  it('reads tensors, dtypes, shapes and metadata of a file made by hand', () => {
    const file = fileOf(
      {
        __metadata__: { format: 'pt' },
        b: { dtype: 'BF16', shape: [2, 1], data_offsets: [8, 12] },
        a: { dtype: 'F32', shape: [2], data_offsets: [0, 8] },
        scalar: { dtype: 'I64', shape: [], data_offsets: [12, 20] },
        none: { dtype: 'F16', shape: [0, 3], data_offsets: [20, 20] },
      },
      bytes(20),
    );
    const { tensors, metadata } = readSafetensors(file);
    expect(metadata).toEqual({ format: 'pt' });
    expect([...tensors]).toEqual([
      ['a', { dtype: 'f32', shape: [2], data: bytes(8) }],
      ['b', { dtype: 'bf16', shape: [2, 1], data: bytes(4, 9) }],
      ['scalar', { dtype: 'i64', shape: [], data: bytes(8, 13) }],
      ['none', { dtype: 'f16', shape: [0, 3], data: bytes(0) }],
    ]);
  });

  it('gives back what it wrote, from any offset of a larger array, with aligned data', () => {
    const tensors = new Map<string, HostTensor>([
      ['flag', { dtype: 'bool', shape: [3], data: bytes(3) }],
      ['half', { dtype: 'f16', shape: [5], data: bytes(10) }],
      ['wide', { dtype: 'f64', shape: [2], data: bytes(16) }],
      ['plain', { dtype: 'f32', shape: [3, 1], data: bytes(12) }],
      ['ids', { dtype: 'i32', shape: [1], data: bytes(4) }],
      ['empty', { dtype: 'u32', shape: [4, 0], data: bytes(0) }],
    ]);
    const file = writeSafetensors(tensors, { metadata: { format: 'pt', note: 'über' } });
    const shifted = new Uint8Array(file.length + 3);
    shifted.set(file, 3);
    for (const source of [file, shifted.subarray(3)]) {
      const read = readSafetensors(source);
      expect(new Map(read.tensors)).toEqual(tensors);
      expect(read.metadata).toEqual({ format: 'pt', note: 'über' });
    }
    const sizes = { f64: 8, f32: 4, i32: 4, f16: 2, bool: 1 } as Record<string, number>;
    for (const { dtype, data } of readSafetensors(file).tensors.values()) {
      if (data.length > 0) {
        expect(data.byteOffset % sizes[dtype]!).toBe(0);
      }
    }
  });

  it('pads a header of any length with spaces', () => {
    const tensors = new Map([['a', { dtype: 'f32', shape: [1], data: bytes(4) } as const]]);
    for (let length = 0; length < 8; length++) {
      const metadata = { note: 'x'.repeat(length) };
      const file = writeSafetensors(tensors, { metadata });
      expect(Number(new DataView(file.buffer).getBigUint64(0, true)) % 8).toBe(0);
      expect(readSafetensors(file).metadata).toEqual(metadata);
    }
  });

  const good = { dtype: 'F32', shape: [2], data_offsets: [0, 8] };
  const cases: [string, Uint8Array, string][] = [
    ['an empty file', new Uint8Array(0), 'at least 8 bytes'],
    ['a header beyond the file', fileOf({ a: good }, bytes(8)).subarray(0, 20), 'truncated'],
    ['data cut short', fileOf({ a: good }, bytes(7)), 'truncated'],
    ['data left over', fileOf({ a: good }, bytes(9)), '8 bytes of data'],
    ['no JSON', fileOf('{"a":'), 'JSON'],
    ['an array as header', fileOf([]), 'an object'],
    ['a huge header length', Uint8Array.from({ length: 16 }, () => 255), 'truncated'],
    ['an unknown dtype', fileOf({ a: { ...good, dtype: 'F7' } }, bytes(8)), 'dtype'],
    [
      'a dtype named like a property',
      fileOf({ a: { ...good, dtype: 'constructor' } }, bytes(8)),
      'dtype',
    ],
    ['a negative dimension', fileOf({ a: { ...good, shape: [-2] } }, bytes(8)), 'dimensions'],
    ['a broken dimension', fileOf({ a: { ...good, shape: [0.5, 4] } }, bytes(8)), 'dimensions'],
    ['one offset', fileOf({ a: { ...good, data_offsets: [8] } }, bytes(8)), 'offsets'],
    ['offsets of another size', fileOf({ a: { ...good, shape: [3] } }, bytes(8)), '12 bytes'],
    ['a hole', fileOf({ a: { ...good, data_offsets: [4, 12] } }, bytes(12)), 'start at byte 0'],
    ['an overlap', fileOf({ a: good, b: { ...good, data_offsets: [4, 12] } }, bytes(12)), "'b'"],
    ['metadata that is no text', fileOf({ __metadata__: { a: 1 } }), 'metadata'],
    ['an entry that is no object', fileOf({ a: 3 }), "object for 'a'"],
  ];
  it.each(cases)('refuses %s with a typed error', (_, file, message) => {
    expect(() => readSafetensors(file)).toThrow(FormatError);
    expect(() => readSafetensors(file)).toThrow(message);
  });

  it('does not write bytes that do not match their shape', async () => {
    const spec = { dtype: 'f32', shape: [2] } as const;
    const tensors = new Map([['a', { ...spec, data: bytes(7) }]]);
    expect(() => writeSafetensors(tensors)).toThrow('8 bytes');
    const read = async () => bytes(9);
    const forms: (HostTensor | LazyTensor)[] = [
      { ...spec, data: bytes(7) },
      { ...spec, read },
      { ...spec, read, readPart: read },
    ];
    for (const form of forms) {
      const pieces = safetensorsPieces(new Map([['a', form]]));
      await pieces.next(); // the header
      await expect(pieces.next()).rejects.toThrow("expected 8 bytes for 'a'");
    }
  });
});
