// Blocks back to numbers, to the bits of ggml's `dequantize_row_*`.
//
// Scales are f16 (11 bits) and small integers, so that each product fits the 24 bits of an f32:
// only the difference of the types with a minimum is rounded, and it is rounded once.

import { f16ToF32 } from '../float16.js';
import { BLOCK_SIZES, type BlockType, blocksByteLength } from './block-types.js';

/** Where a block begins: its bytes in `bytes`, and its numbers in `into`. */
interface Place {
  readonly bytes: Uint8Array;
  readonly at: number;
  readonly into: Float32Array;
  readonly to: number;
}

const DECODERS: Readonly<Record<BlockType, (place: Place) => void>> = {
  q8_0: decodeQ8_0,
  q4_0: (place) => decodeNibbles(place, { hasMinimum: false, hasFifthBit: false }),
  q4_1: (place) => decodeNibbles(place, { hasMinimum: true, hasFifthBit: false }),
  q5_0: (place) => decodeNibbles(place, { hasMinimum: false, hasFifthBit: true }),
  q5_1: (place) => decodeNibbles(place, { hasMinimum: true, hasFifthBit: true }),
  q4_K: (place) => decodeSubBlocks(place, { hasFifthBit: false }),
  q5_K: (place) => decodeSubBlocks(place, { hasFifthBit: true }),
  q6_K: decodeQ6_K,
};

/**
 * Writes the numbers of whole blocks into `into`, which says how many there are.
 * @throws {RangeError} for an unknown type, numbers that do not fill whole blocks, and too few
 * bytes
 */
export function decodeBlocks(type: BlockType, bytes: Uint8Array, into: Float32Array): void {
  const byteLength = blocksByteLength(type, into.length);
  if (bytes.byteLength < byteLength) {
    throw new RangeError(
      `expected ${byteLength} bytes for ${into.length} numbers in ${type}, got ${bytes.byteLength}.`,
    );
  }
  const size = BLOCK_SIZES[type];
  const decode = DECODERS[type];
  for (let at = 0, to = 0; at < byteLength; at += size.bytes, to += size.elements) {
    decode({ bytes, at, into, to });
  }
}

function decodeQ8_0({ bytes, at, into, to }: Place): void {
  const scale = halfAt(bytes, at);
  for (let i = 0; i < 32; i++) {
    into[to + i] = scale * signed(bytes[at + 2 + i]!);
  }
}

/**
 * Blocks of 32 with a scale, perhaps a minimum, perhaps 4 bytes of fifth bits, and 16 bytes whose
 * low nibbles are numbers 0 to 15 and whose high ones are numbers 16 to 31.
 */
function decodeNibbles(
  { bytes, at, into, to }: Place,
  form: { readonly hasMinimum: boolean; readonly hasFifthBit: boolean },
): void {
  const { hasMinimum, hasFifthBit } = form;
  const scale = halfAt(bytes, at);
  const minimum = hasMinimum ? halfAt(bytes, at + 2) : 0;
  const highAt = at + (hasMinimum ? 4 : 2);
  const nibblesAt = highAt + (hasFifthBit ? 4 : 0);
  const middle = hasMinimum ? 0 : hasFifthBit ? 16 : 8;
  for (let i = 0; i < 32; i++) {
    const byte = bytes[nibblesAt + (i & 15)]!;
    const nibble = i < 16 ? byte & 15 : byte >> 4;
    const fifth = hasFifthBit ? ((bytes[highAt + (i >> 3)]! >> (i & 7)) & 1) << 4 : 0;
    const product = scale * ((nibble | fifth) - middle);
    into[to + i] = hasMinimum ? product + minimum : product;
  }
}

/** q4_K and q5_K: 8 sub-blocks of 32, each with a scale and a minimum of 6 bits. */
function decodeSubBlocks(
  { bytes, at, into, to }: Place,
  { hasFifthBit }: { readonly hasFifthBit: boolean },
): void {
  const scale = halfAt(bytes, at);
  const minimum = halfAt(bytes, at + 2);
  const highAt = at + 16;
  const nibblesAt = highAt + (hasFifthBit ? 32 : 0);
  for (let part = 0; part < 8; part++) {
    const [scaleBits, minimumBits] = sixBits(bytes, { at: at + 4, part });
    const partScale = scale * scaleBits;
    const partMinimum = minimum * minimumBits;
    // Two sub-blocks share 32 bytes: one has their low nibbles, the next their high ones.
    const from = nibblesAt + (part >> 1) * 32;
    for (let i = 0; i < 32; i++) {
      const byte = bytes[from + i]!;
      const nibble = (part & 1) === 0 ? byte & 15 : byte >> 4;
      const fifth = hasFifthBit ? ((bytes[highAt + i]! >> part) & 1) << 4 : 0;
      into[to + part * 32 + i] = partScale * (nibble | fifth) - partMinimum;
    }
  }
}

/**
 * The scale and the minimum of a sub-block, from 12 bytes. Those of the first four are the low 6
 * bits of bytes 0 to 3 and 4 to 7. The others have their low 4 bits in bytes 8 to 11 and their
 * high 2 in the high bits of the first eight bytes.
 */
function sixBits(
  bytes: Uint8Array,
  { at, part }: { readonly at: number; readonly part: number },
): readonly [scale: number, minimum: number] {
  if (part < 4) {
    return [bytes[at + part]! & 63, bytes[at + part + 4]! & 63];
  }
  const low = bytes[at + part + 4]!;
  const [scaleHigh, minimumHigh] = [bytes[at + part - 4]! >> 6, bytes[at + part]! >> 6];
  return [(low & 15) | (scaleHigh << 4), (low >> 4) | (minimumHigh << 4)];
}

/** 128 bytes of low nibbles, 64 of high pairs, 16 signed scales and the scale of the block. */
function decodeQ6_K({ bytes, at, into, to }: Place): void {
  const scale = halfAt(bytes, at + 208);
  for (let i = 0; i < 256; i++) {
    // Each half of a block takes 64 bytes of nibbles and 32 of pairs. Within it, numbers 0 to 63
    // have the low nibbles, 64 to 127 the high ones, and each 32 numbers the next pair of bits.
    const half = i >> 7;
    const part = (i >> 5) & 3;
    const byte = bytes[at + half * 64 + (i & 63)]!;
    const nibble = part < 2 ? byte & 15 : byte >> 4;
    const pair = (bytes[at + 128 + half * 32 + (i & 31)]! >> (part * 2)) & 3;
    const partScale = scale * signed(bytes[at + 192 + (i >> 4)]!);
    into[to + i] = partScale * ((nibble | (pair << 4)) - 32);
  }
}

function halfAt(bytes: Uint8Array, at: number): number {
  return f16ToF32(bytes[at]! | (bytes[at + 1]! << 8));
}

function signed(byte: number): number {
  return (byte << 24) >> 24;
}
