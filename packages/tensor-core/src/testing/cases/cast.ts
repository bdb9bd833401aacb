// Cases of fill and cast, with all 16-bit patterns, and f32 around every border between two 16-bit
// values.

import type { DType } from '@shardweave/dtypes';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS, INPUT_OFFSETS, OUTPUT_OFFSETS, SIZES } from '../kit/sizes.js';

const ALL_DTYPES: readonly DType[] = ['f32', 'f16', 'bf16', 'i32', 'u32'];

/** Values around zero and around each integer limit, infinities, NaN and subnormals. */
const F32_EDGES = [
  0,
  -0,
  0.5,
  -0.5,
  0.99999994,
  -0.99999994,
  1,
  -1,
  1.5,
  -1.5,
  2.5,
  255.9,
  -255.9,
  65504,
  65519.996,
  65520,
  -65520,
  65536,
  16777215,
  16777216,
  2147483520,
  2147483648,
  2147483904,
  -2147483520,
  -2147483648,
  -2147483904,
  4294967040,
  4294967296,
  4294967808,
  1e20,
  -1e20,
  3.4e38,
  -3.4e38,
  3.3961775e38,
  Number.POSITIVE_INFINITY,
  Number.NEGATIVE_INFINITY,
  Number.NaN,
  1.4e-45,
  -1.4e-45,
  1.1754942e-38,
  1.17549435e-38,
  5.9604645e-8,
  2.9802322e-8,
  2.9802326e-8,
  6.1035156e-5,
  6.1e-5,
];

export function castCases(): ConformanceCase[] {
  return [
    fillCase(),
    ...(['f16', 'bf16'] as const).flatMap((from) =>
      ALL_DTYPES.map((to) => allPatternsCase(from, to)),
    ),
    ...ALL_DTYPES.map((to) => edgesCase(to)),
    borderCase('f16', f16Borders),
    borderCase('bf16', bf16Borders),
    ...(['i32', 'u32'] as const).flatMap((from) => ALL_DTYPES.map((to) => integerCase(from, to))),
    ...(['i32', 'u32'] as const).map(largeIntegerCase),
    placesCase(),
  ];
}

function fillCase(): ConformanceCase {
  return recordedCase('fill of every dtype', 'exact', (calls) => {
    const floats = [0, -0, 1.5, -0.1, 2049, 65504, 1e9, 1e-6, Number.NEGATIVE_INFINITY, Number.NaN];
    for (const dtype of FLOATS) {
      SIZES.forEach((size, i) => {
        const out = calls.output(size, dtype, { offset: OUTPUT_OFFSETS[i]! });
        calls.run('fill', { out, value: floats[i]! });
        calls.run('fill', { out: calls.output(3, dtype), value: floats[5 + i]! });
      });
    }
    for (const value of [0, 7, -7, 2 ** 31 - 1, -(2 ** 31)]) {
      calls.run('fill', { out: calls.output(65, 'i32', { offset: 1 }), value });
    }
    for (const value of [0, 7, 2 ** 31, 2 ** 32 - 1]) {
      calls.run('fill', { out: calls.output(65, 'u32', { offset: 1 }), value });
    }
  });
}

function allPatternsCase(from: DType, to: DType): ConformanceCase {
  return recordedCase(`cast all 65,536 ${from} patterns to ${to}`, 'exact', (calls) => {
    const patterns = Uint16Array.from({ length: 65536 }, (_, i) => i);
    calls.run('cast', { x: calls.bits(patterns, from), out: calls.output(65536, to) });
  });
}

function edgesCase(to: DType): ConformanceCase {
  return recordedCase(`cast f32 edges and random bits to ${to}`, 'exact', (calls) => {
    const x = calls.values(F32_EDGES, 'f32', { offset: 1 });
    calls.run('cast', { x, out: calls.output(F32_EDGES.length, to) });
    const any = calls.anyBits(4001, 'f32', { offset: 3 });
    calls.run('cast', { x: any, out: calls.output(4001, to, { offset: 2 }) });
  });
}

/** Casts the f32 values halfway between neighboring 16-bit values, and their own two neighbors. */
function borderCase(to: 'f16' | 'bf16', borders: () => Uint32Array): ConformanceCase {
  return recordedCase(`cast f32 around every rounding border of ${to}`, 'exact', (calls) => {
    const around = borders();
    for (const step of [-1, 0, 1]) {
      const x = calls.bits(
        around.map((bits) => bits + step),
        'f32',
      );
      calls.run('cast', { x, out: calls.output(around.length, to) });
    }
  });
}

function bf16Borders(): Uint32Array {
  return Uint32Array.from({ length: 65536 }, (_, high) => ((high << 16) | 0x8000) >>> 0);
}

/** Returns the bits of the halfway values of both signs, including those of subnormal values. */
function f16Borders(): Uint32Array {
  const halfways = new Float32Array(2 * 0x7c00);
  for (let bits = 0; bits < 0x7c00; bits++) {
    const exponent = bits >>> 10;
    const mantissa = bits & 0x3ff;
    const unit = 2 ** (Math.max(exponent, 1) - 25);
    const value = ((exponent > 0 ? 1024 : 0) + mantissa) * unit;
    halfways[2 * bits] = value + unit / 2;
    halfways[2 * bits + 1] = -(value + unit / 2);
  }
  return new Uint32Array(halfways.buffer);
}

/** Casts integers of both signs up to 2^24, where f32 is exact. */
function integerCase(from: 'i32' | 'u32', to: DType): ConformanceCase {
  return recordedCase(`cast ${from} to ${to}`, 'exact', (calls) => {
    const magnitudes = [0, 1, 2, 255, 257, 259, 2049, 2051, 65504, 65519, 65520, 65536, 16777215];
    const values = from === 'i32' ? magnitudes.flatMap((x) => [x, -x]) : magnitudes;
    const x = calls.values(values, from, { offset: 1 });
    calls.run('cast', { x, out: calls.output(values.length, to) });
    if (to !== 'i32' && to !== 'u32') {
      return;
    }
    const any = calls.anyBits(65, from);
    calls.run('cast', { x: any, out: calls.output(65, to, { offset: 1 }) });
  });
}

/** Casts integers beyond 2^24, where WGSL may round either way. */
function largeIntegerCase(from: 'i32' | 'u32'): ConformanceCase {
  return recordedCase(`cast large ${from} to floats`, 'arithmetic', (calls) => {
    const x = calls.anyBits(65, from);
    for (const to of FLOATS) {
      const isTooLarge = to === 'f16'; // all of them are infinite there
      const out = calls.output(65, to, isTooLarge ? { tolerance: 'exact' } : {});
      calls.run('cast', { x, out });
    }
  });
}

function placesCase(): ConformanceCase {
  return recordedCase('cast at odd sizes and offsets', 'exact', (calls) => {
    for (const from of FLOATS) {
      for (const to of FLOATS) {
        SIZES.forEach((size, i) => {
          const x = calls.floats(size, from, { offset: INPUT_OFFSETS[i]! });
          const out = calls.output(size, to, { offset: OUTPUT_OFFSETS[4 - i]! });
          calls.run('cast', { x, out });
        });
      }
    }
  });
}
