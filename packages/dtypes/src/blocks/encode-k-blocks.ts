// Blocks of 256. Each sub-block has a fit of its own; then the scales of all become small integers,
// and each sub-block takes the integers near its own that leave the least squared error.

import { f16ToF32, f32ToF16 } from '../float16.js';
import { type BlockPlace, putHalf } from './block-place.js';
import { fitRange, fitScale } from './sub-block-fit.js';

const LARGEST_HALF = 65_504;

/** q4_K and q5_K: 8 sub-blocks of 32, each with a scale and a minimum of 6 bits. */
export function encodeSubBlocks(
  { values, from, bytes, at }: BlockPlace,
  { hasFifthBit }: { readonly hasFifthBit: boolean },
): void {
  const most = hasFifthBit ? 31 : 15;
  const fits = Array.from({ length: 8 }, (_, part) =>
    fitRange({ values, from: from + part * 32, count: 32 }, most),
  );
  const scale = roundedToHalf(Math.max(...fits.map((fit) => fit.scale)) / 63);
  const minimum = roundedToHalf(Math.max(...fits.map((fit) => fit.minimum)) / 63);
  putHalf(bytes, at, scale);
  putHalf(bytes, at + 2, minimum);
  for (const [part, fit] of fits.entries()) {
    const span = { values, first: from + part * 32, most };
    const near = {
      scaleBits: multipleOf(fit.scale, scale),
      minimumBits: multipleOf(fit.minimum, minimum),
    };
    const bits = nearestBits(span, { scale, minimum, near });
    putSixBits(bytes, { at: at + 4, part, ...bits });
    const line = { step: scale * bits.scaleBits, offset: minimum * bits.minimumBits };
    putCodes(span, { bytes, at: at + 16, part, ...line });
  }
}

/** The codes of 32 numbers: nibbles and, where there are 32 codes, fifth bits before them. */
function putCodes(
  { values, first, most }: Span,
  place: Line & { readonly bytes: Uint8Array; readonly at: number; readonly part: number },
): void {
  const { bytes, at: highAt, part, step, offset } = place;
  const nibblesAt = highAt + (most === 31 ? 32 : 0) + (part >> 1) * 32;
  const inverse = inverseOf(step);
  for (let i = 0; i < 32; i++) {
    const steps = Math.floor((values[first + i]! + offset) * inverse + 0.5);
    const code = Math.max(0, Math.min(most, steps));
    bytes[nibblesAt + i]! |= (code & 15) << (part & 1 ? 4 : 0);
    if (most === 31) {
      bytes[highAt + i]! |= (code >> 4) << part;
    }
  }
}

/** Numbers [first, first + 32), which get codes 0 to `most`. */
interface Span {
  readonly values: Float32Array;
  readonly first: number;
  readonly most: number;
}

/** Numbers are about `step * code - offset`. */
interface Line {
  readonly step: number;
  readonly offset: number;
}

interface Bits {
  readonly scaleBits: number;
  readonly minimumBits: number;
}

/** The pair of integers, of the nine around the given one, that leaves the least squared error. */
function nearestBits(
  span: Span,
  whole: { readonly scale: number; readonly minimum: number; readonly near: Bits },
): Bits {
  const { scale, minimum, near } = whole;
  let best = near;
  let least = Number.POSITIVE_INFINITY;
  for (let scaleBits = near.scaleBits - 1; scaleBits <= near.scaleBits + 1; scaleBits++) {
    for (
      let minimumBits = near.minimumBits - 1;
      minimumBits <= near.minimumBits + 1;
      minimumBits++
    ) {
      if (!isSixBits(scaleBits) || !isSixBits(minimumBits)) {
        continue;
      }
      const error = squaredError(span, { step: scale * scaleBits, offset: minimum * minimumBits });
      if (error < least) {
        least = error;
        best = { scaleBits, minimumBits };
      }
    }
  }
  return best;
}

function squaredError({ values, first, most }: Span, { step, offset }: Line): number {
  const inverse = inverseOf(step);
  let sum = 0;
  for (let i = first; i < first + 32; i++) {
    const value = values[i]! + offset;
    const code = Math.max(0, Math.min(most, Math.floor(value * inverse + 0.5)));
    const off = value - step * code;
    sum += off * off;
  }
  return sum;
}

/** The places of these bits are those that decode-blocks.ts reads. */
function putSixBits(
  bytes: Uint8Array,
  { at, part, scaleBits, minimumBits }: Bits & { readonly at: number; readonly part: number },
): void {
  if (part < 4) {
    bytes[at + part]! |= scaleBits;
    bytes[at + part + 4]! |= minimumBits;
    return;
  }
  bytes[at + part + 4] = (scaleBits & 15) | ((minimumBits & 15) << 4);
  bytes[at + part - 4]! |= (scaleBits >> 4) << 6;
  bytes[at + part]! |= (minimumBits >> 4) << 6;
}

/** 16 sub-blocks of 16, each with a signed scale of 8 bits. */
export function encodeQ6_K({ values, from, bytes, at }: BlockPlace): void {
  const fits = Array.from({ length: 16 }, (_, part) =>
    fitScale({ values, from: from + part * 16, count: 16 }),
  );
  const largest = fits.reduce((most, fit) => (Math.abs(fit) > Math.abs(most) ? fit : most), 0);
  // As with numbers, the lowest of the signed scales has the largest magnitude.
  const scale = roundedToHalf(largest / -128);
  putHalf(bytes, at + 208, scale);
  for (const [part, fit] of fits.entries()) {
    const first = from + part * 16;
    const near = Math.max(-128, Math.min(127, Math.round(fit * inverseOf(scale))));
    const bits = nearestByte({ values, first, scale }, near);
    bytes[at + 192 + part] = bits;
    const inverse = inverseOf(scale * bits);
    for (let i = 0; i < 16; i++) {
      const steps = Math.floor(values[first + i]! * inverse + 0.5);
      putSixBitCode(bytes, {
        at,
        index: part * 16 + i,
        code: Math.max(-32, Math.min(31, steps)) + 32,
      });
    }
  }
}

/** The integer, of the three around the given one, that leaves the least squared error. */
function nearestByte(
  {
    values,
    first,
    scale,
  }: { readonly values: Float32Array; readonly first: number; readonly scale: number },
  near: number,
): number {
  let best = near;
  let least = Number.POSITIVE_INFINITY;
  for (let bits = Math.max(-128, near - 1); bits <= Math.min(127, near + 1); bits++) {
    const step = scale * bits;
    const inverse = inverseOf(step);
    let sum = 0;
    for (let i = first; i < first + 16; i++) {
      const value = values[i]!;
      const code = Math.max(-32, Math.min(31, Math.floor(value * inverse + 0.5)));
      const off = value - step * code;
      sum += off * off;
    }
    if (sum < least) {
      least = sum;
      best = bits;
    }
  }
  return best;
}

/** The places of these bits are those that decode-blocks.ts reads. */
function putSixBitCode(
  bytes: Uint8Array,
  { at, index, code }: { readonly at: number; readonly index: number; readonly code: number },
): void {
  const half = index >> 7;
  const part = (index >> 5) & 3;
  bytes[at + half * 64 + (index & 63)]! |= (code & 15) << (part < 2 ? 0 : 4);
  bytes[at + 128 + half * 32 + (index & 31)]! |= (code >> 4) << (part * 2);
}

/** The nearest f16. Regression may find a scale just beyond those of the numbers that fit. */
function roundedToHalf(value: number): number {
  return f16ToF32(f32ToF16(Math.max(-LARGEST_HALF, Math.min(LARGEST_HALF, value))));
}

/** The 6 bits whose multiple of `unit` is nearest. */
function multipleOf(value: number, unit: number): number {
  return Math.min(63, Math.round(value * inverseOf(unit)));
}

function isSixBits(bits: number): boolean {
  return bits >= 0 && bits <= 63;
}

function inverseOf(step: number): number {
  return step === 0 ? 0 : 1 / step;
}
