// Numbers to blocks. Blocks of 32 get the bytes of ggml's own reference, which rounds to f32 after
// each operation; what the blocks of 256 search for is in sub-block-fit.ts.

import { CodedError } from '../messages/coded-error.js';
import { type BlockPlace, putHalf } from './block-place.js';
import { BLOCK_SIZES, type BlockType, blocksByteLength } from './block-types.js';
import { encodeQ6_K, encodeSubBlocks } from './encode-k-blocks.js';

const ENCODERS: Readonly<Record<BlockType, (place: BlockPlace) => void>> = {
  q8_0: encodeQ8_0,
  q4_0: (place) => encodeNibbles(place, { hasMinimum: false, hasFifthBit: false }),
  q4_1: (place) => encodeNibbles(place, { hasMinimum: true, hasFifthBit: false }),
  q5_0: (place) => encodeNibbles(place, { hasMinimum: false, hasFifthBit: true }),
  q5_1: (place) => encodeNibbles(place, { hasMinimum: true, hasFifthBit: true }),
  q4_K: (place) => encodeSubBlocks(place, { hasFifthBit: false }),
  q5_K: (place) => encodeSubBlocks(place, { hasFifthBit: true }),
  q6_K: encodeQ6_K,
};

/** Numbers below this one round to the largest f16 or less; it and those above, to infinity. */
const F16_BELOW = 65_520;

/**
 * What magnitudes must be below, so that no scale and no minimum of a block becomes infinity: the
 * largest multiple of a scale, or of a minimum, that the type has. Types with a minimum of 16 bits
 * have no multiple of it.
 */
const BELOW: Readonly<Record<BlockType, number>> = {
  q8_0: F16_BELOW * 127,
  q4_0: F16_BELOW * 8,
  q4_1: F16_BELOW,
  q5_0: F16_BELOW * 16,
  q5_1: F16_BELOW,
  q4_K: F16_BELOW * 63,
  q5_K: F16_BELOW * 63,
  q6_K: F16_BELOW * 128 * 31,
};

/** A number that a block type can't hold: too large, an infinity or NaN. */
export class BlockNumberError extends CodedError {
  readonly code = 'BLOCK_NUMBER';
  /** What magnitudes must be below. */
  readonly below: number;
  /** The first number that is not. */
  readonly found: number;

  constructor(type: BlockType, found: number) {
    const below = BELOW[type];
    super(`encodeBlocks: expected numbers below ${below}, as ${type} holds them, got ${found}.`);
    this.below = below;
    this.found = found;
  }
}

/**
 * Encodes numbers in whole blocks. q8_0, q4_0, q4_1, q5_0 and q5_1 have the bytes of ggml's
 * reference; q4_K, q5_K and q6_K are the blocks that a search for the least squared error finds.
 * @throws {RangeError} for an unknown type, and for numbers that do not fill whole blocks
 * @throws {BlockNumberError} for a number that the type can't hold
 * @example
 * ```ts
 * import { decodeBlocks, encodeBlocks } from '@shardweave/dtypes/blocks';
 *
 * const bytes = encodeBlocks('q4_0', Float32Array.from({ length: 32 }, (_, i) => i - 16));
 * const found = new Float32Array(32);
 * decodeBlocks('q4_0', bytes, found);
 * console.log(bytes.length, found[0], found[31]); // logs 18 -16 14
 * ```
 */
export function encodeBlocks(type: BlockType, values: Float32Array): Uint8Array {
  const bytes = new Uint8Array(blocksByteLength(type, values.length));
  const below = BELOW[type];
  for (let i = 0; i < values.length; i++) {
    // The comparison with NaN is false.
    if (!(Math.abs(values[i]!) < below)) {
      throw new BlockNumberError(type, values[i]!);
    }
  }
  const size = BLOCK_SIZES[type];
  const encode = ENCODERS[type];
  for (let at = 0, from = 0; from < values.length; at += size.bytes, from += size.elements) {
    encode({ values, from, bytes, at });
  }
  return bytes;
}

function encodeQ8_0({ values, from, bytes, at }: BlockPlace): void {
  let largest = 0;
  for (let i = from; i < from + 32; i++) {
    largest = Math.max(largest, Math.abs(values[i]!));
  }
  const scale = Math.fround(largest / 127);
  const inverse = inverseOf(scale);
  putHalf(bytes, at, scale);
  for (let i = 0; i < 32; i++) {
    const scaled = Math.fround(values[from + i]! * inverse);
    // Halves are rounded away from zero, as C's roundf does; Math.round would round them up.
    bytes[at + 2 + i] = Math.sign(scaled) * Math.floor(Math.abs(scaled) + 0.5);
  }
}

/**
 * Blocks of 32 with nibbles. With a minimum, numbers are steps above it. Without one the number of
 * the largest magnitude is the lowest step, whose magnitude is one above that of the highest; so
 * the scale is negative where that number is positive.
 */
function encodeNibbles(
  { values, from, bytes, at }: BlockPlace,
  { hasMinimum, hasFifthBit }: { readonly hasMinimum: boolean; readonly hasFifthBit: boolean },
): void {
  const most = hasFifthBit ? 31 : 15;
  let least = values[from]!;
  let highest = least;
  let largest = least;
  for (let i = from + 1; i < from + 32; i++) {
    const value = values[i]!;
    least = Math.min(value, least);
    highest = Math.max(value, highest);
    largest = Math.abs(value) > Math.abs(largest) ? value : largest;
  }
  const middle = (most + 1) / 2;
  const scale = Math.fround(hasMinimum ? Math.fround(highest - least) / most : largest / -middle);
  const inverse = inverseOf(scale);
  const origin = hasMinimum ? least : 0;
  const rounding = hasMinimum ? 0.5 : middle + 0.5;
  putHalf(bytes, at, scale);
  if (hasMinimum) {
    putHalf(bytes, at + 2, least);
  }
  const highAt = at + (hasMinimum ? 4 : 2);
  const nibblesAt = highAt + (hasFifthBit ? 4 : 0);
  for (let i = 0; i < 32; i++) {
    const scaled = Math.fround(Math.fround(values[from + i]! - origin) * inverse);
    const code = Math.min(most, Math.fround(scaled + rounding) | 0);
    bytes[nibblesAt + (i & 15)]! |= (code & 15) << (i & 16 ? 4 : 0);
    if (hasFifthBit) {
      bytes[highAt + (i >> 3)]! |= (code >> 4) << (i & 7);
    }
  }
}

/** The inverse in f32; 0 where there is none, for such a scale is 0 in f16. */
function inverseOf(scale: number): number {
  const inverse = Math.fround(1 / scale);
  return Number.isFinite(inverse) ? inverse : 0;
}
