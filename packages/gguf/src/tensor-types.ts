// How numbers are stored in a file: as plain floats, or in blocks of 32 that share a scale.

import { f32ToF16, fromF32Array, toF32Array } from '@shardweave/dtypes';
import { GgufModelError } from './errors.js';

/** The type in which the matrices of a file are stored. */
export type GgufType = 'f32' | 'f16' | 'bf16' | 'q8_0';

/** The float types of the files that models come in. */
export type SourceType = 'f32' | 'f16' | 'bf16';

interface TypeInfo {
  /** The format's number for the type. */
  readonly id: number;
  /** The format's number for a file whose matrices have the type (`general.file_type`). */
  readonly fileType: number;
  readonly blockElements: number;
  readonly blockBytes: number;
}

export const TYPE_INFO: Readonly<Record<GgufType, TypeInfo>> = {
  f32: { id: 0, fileType: 0, blockElements: 1, blockBytes: 4 },
  f16: { id: 1, fileType: 1, blockElements: 1, blockBytes: 2 },
  bf16: { id: 30, fileType: 32, blockElements: 1, blockBytes: 2 },
  q8_0: { id: 8, fileType: 7, blockElements: 32, blockBytes: 34 },
};

/** The names of all tensor types that this package knows. */
export const GGUF_TYPES = Object.keys(TYPE_INFO) as readonly GgufType[];

/** The bytes of `elements` elements, which are a whole number of blocks. */
export function storedBytes(type: GgufType, elements: number): number {
  const { blockElements, blockBytes } = TYPE_INFO[type];
  return (elements / blockElements) * blockBytes;
}

/**
 * Encodes a piece of a tensor, in whole rows, as its file stores it. f16 and bf16 round to nearest
 * even; blocks are quantized as llama.cpp's reference does, to the same bytes.
 * @throws {GgufModelError} for a number that the type can't hold and would turn into infinity
 */
export function encode(
  bytes: Uint8Array,
  types: { readonly name: string; readonly from: SourceType; readonly to: GgufType },
): Uint8Array {
  const { name, from, to } = types;
  if (from === to) {
    return bytes;
  }
  const values = toF32Array(bytes, from);
  if (to === 'f32') {
    return new Uint8Array(values.buffer);
  }
  if (to !== 'bf16') {
    requireWithin(values, { name, to });
  }
  return to === 'q8_0' ? quantize(values) : fromF32Array(values, to);
}

/**
 * Numbers below this round to the largest f16 or less; this one and those above round to infinity.
 */
const F16_BELOW = 65_520;
/** The largest magnitude of a block is stored as this number. */
const Q8_LARGEST = 127;

function requireWithin(
  values: Float32Array,
  { name, to }: { readonly name: string; readonly to: 'f16' | 'q8_0' },
): void {
  const below = to === 'f16' ? F16_BELOW : F16_BELOW * Q8_LARGEST;
  const outside = values.find((value) => !(Math.abs(value) < below));
  if (outside !== undefined) {
    throw new GgufModelError(
      `${name}: expected numbers below ${below}, as ${to} holds them, got ${outside}. Write it as bf16 or f32.`,
    );
  }
}

/**
 * Quantizes each block of 32: its scale in f16, then its numbers, divided by the unrounded scale,
 * as int8.
 */
function quantize(values: Float32Array): Uint8Array {
  const { blockElements, blockBytes } = TYPE_INFO.q8_0;
  const blocks = values.length / blockElements;
  const output = new Uint8Array(blocks * blockBytes);
  const view = new DataView(output.buffer);
  for (let block = 0; block < blocks; block++) {
    const at = block * blockBytes;
    const first = block * blockElements;
    let largest = 0;
    for (let i = 0; i < blockElements; i++) {
      largest = Math.max(largest, Math.abs(values[first + i]!));
    }
    const scale = Math.fround(largest / Q8_LARGEST);
    const inverse = scale === 0 ? 0 : Math.fround(1 / scale);
    view.setUint16(at, f32ToF16(scale), true);
    for (let i = 0; i < blockElements; i++) {
      const scaled = Math.fround(values[first + i]! * inverse);
      // Halves are rounded away from zero, as C's roundf does; Math.round would round them up.
      view.setInt8(at + 2 + i, Math.sign(scaled) * Math.floor(Math.abs(scaled) + 0.5));
    }
  }
  return output;
}
