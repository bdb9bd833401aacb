// The 16-bit converters are compared over all 65,536 patterns with float64 arithmetic on powers of
// two.

import {
  bf16ToF32,
  type DType,
  f16ToF32,
  f32ToBf16,
  f32ToF16,
  fromF32Array,
  toF32Array,
} from '@shardweave/dtypes';
import { describe, expect, it } from 'vitest';

const ALL = Array.from({ length: 65536 }, (_, i) => i);
const FORMATS = [
  { dtype: 'f16', exponentBits: 5, mantissaBits: 10, narrow: f32ToF16, widen: f16ToF32 },
  { dtype: 'bf16', exponentBits: 8, mantissaBits: 7, narrow: f32ToBf16, widen: bf16ToF32 },
] as const;

/**
 * Returns the value of a pattern by the definition of the format (sign, exponent, mantissa), in
 * float64.
 */
function patternValue(bits: number, exponentBits: number, mantissaBits: number): number {
  const sign = bits >= 32768 ? -1 : 1;
  const exponent = Math.floor(bits / 2 ** mantissaBits) % 2 ** exponentBits;
  const mantissa = bits % 2 ** mantissaBits;
  const bias = 2 ** (exponentBits - 1) - 1;
  if (exponent === 2 ** exponentBits - 1) {
    return mantissa === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  }
  return exponent === 0
    ? sign * mantissa * 2 ** (1 - bias - mantissaBits)
    : sign * (1 + mantissa / 2 ** mantissaBits) * 2 ** (exponent - bias);
}

describe.each(FORMATS)('$dtype', ({ dtype, exponentBits, mantissaBits, narrow, widen }) => {
  const reference = ALL.map((bits) => patternValue(bits, exponentBits, mantissaBits));

  it('widens every pattern to its value', () => {
    const wrong = ALL.filter((bits) => !Object.is(widen(bits), reference[bits]));
    expect(wrong).toEqual([]);
    const array = toF32Array(Uint16Array.from(ALL), dtype);
    expect(ALL.filter((bits) => !Object.is(array[bits], reference[bits]))).toEqual([]);
  });

  it('narrows every value back to its pattern, NaN to NaN', () => {
    const isNan = (bits: number) => Number.isNaN(reference[bits]!);
    const wrong = ALL.filter((bits) =>
      isNan(bits) ? !isNan(narrow(Number.NaN)) : narrow(reference[bits]!) !== bits,
    );
    expect(wrong).toEqual([]);
  });

  it('keeps NaN payloads and makes them quiet in arrays', () => {
    const quiet = 2 ** (mantissaBits - 1);
    const bytes = fromF32Array(toF32Array(Uint16Array.from(ALL), dtype), dtype);
    const back = new Uint16Array(bytes.buffer);
    const wrong = ALL.filter((bits) => {
      const expected = Number.isNaN(reference[bits]!) ? bits | quiet : bits;
      return back[bits] !== expected;
    });
    expect(wrong).toEqual([]);
  });

  it('rounds between neighbors to nearest, ties to even', () => {
    const wrong: unknown[] = [];
    const largest = ALL.findIndex((bits) => reference[bits] === Number.POSITIVE_INFINITY) - 1;
    for (let bits = 0; bits < largest; bits++) {
      const low = reference[bits]!;
      const high = reference[bits + 1]!;
      // This is exact in f32, since it needs one bit more than the format has.
      const middle = (low + high) / 2;
      const even = bits % 2 === 0 ? bits : bits + 1;
      const gap = (high - low) / 8;
      const cases = [
        [low + gap, bits],
        [middle, even],
        [high - gap, bits + 1],
      ] as const;
      for (const [value, expected] of cases) {
        if (Math.fround(value) !== value) {
          continue; // This value is finer than the smallest f32 (bf16 subnormals).
        }
        if (narrow(value) !== expected || narrow(-value) !== expected + 32768) {
          wrong.push([value, expected, narrow(value)]);
        }
      }
    }
    expect(wrong).toEqual([]);
    // From half a step above the largest finite value on, numbers become infinity. Anything below
    // is rounded down to it.
    const top = reference[largest]!;
    const step = top - reference[largest - 1]!;
    expect(narrow(top + step / 4)).toBe(largest);
    expect(narrow(top + step / 2)).toBe(largest + 1);
    expect(narrow(-top * 2)).toBe(largest + 1 + 32768);
  });
});

describe('arrays', () => {
  it('treats inputs as f32 first', () => {
    // 1 + 2^-11 + 2^-30 rounds up as a float64, but as an f32 it is a tie, which goes to even.
    expect(f32ToF16(1 + 2 ** -11 + 2 ** -30)).toBe(f32ToF16(1));
  });

  it('reads unaligned bytes', () => {
    const bytes = fromF32Array([1, -2, 3.5], 'f16');
    const shifted = new Uint8Array(bytes.length + 1);
    shifted.set(bytes, 1);
    expect([...toF32Array(shifted.subarray(1), 'f16')]).toEqual([1, -2, 3.5]);
  });

  it('truncates and saturates integers', () => {
    const values = [1.9, -1.9, 3e9, -3e9, 1e20, Number.NaN];
    expect([...new Int32Array(fromF32Array(values, 'i32').buffer)]).toEqual([
      1, -1, 2147483647, -2147483648, 2147483647, 0,
    ]);
    expect([...new Uint32Array(fromF32Array(values, 'u32').buffer)]).toEqual([
      1, 0, 3e9, 0, 4294967295, 0,
    ]);
    expect([...toF32Array(Int32Array.of(-5, 7), 'i32')]).toEqual([-5, 7]);
  });

  it('refuses part of an element', () => {
    expect(() => toF32Array(new Uint8Array(3), 'f16')).toThrow(/multiple of 2 bytes/);
  });

  it('refuses unknown dtypes', () => {
    for (const name of ['fp16', 'f64', 'u8', 'constructor']) {
      const dtype = name as DType; // Plain JavaScript can pass it.
      expect(() => fromF32Array([1], dtype)).toThrow(RangeError);
      expect(() => fromF32Array([1], dtype)).toThrow(`got '${name}'`);
      expect(() => toF32Array(new Uint8Array(8), dtype)).toThrow(`got '${name}'`);
    }
  });
});
