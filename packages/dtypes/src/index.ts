export { bf16FromF32Bits, bf16ToF32, f32BitsFromBf16, f32ToBf16 } from './bfloat16.js';
export { fromF32Array, toF32Array } from './convert-array.js';
export { byteSize, type DType, isFloat, type ReduceDType } from './dtype.js';
export { f16FromF32Bits, f16ToF32, f32BitsFromF16, f32ToF16 } from './float16.js';
export { FNV_BASIS, fnv1a } from './fnv1a.js';
export { IN_PLACE_SCRATCH_BYTES, type SharedParts } from './in-place-sums.js';
export { RankSum } from './rank-sum.js';
export { type ReduceOp, type ReduceOptions, reducePartsPlain } from './reduce-plain.js';
export { type ElementArray, viewAs } from './view.js';
export {
  type CodingOptions,
  type EncodeOptions,
  encodedByteLength,
  INT8_BLOCK_ELEMENTS,
  type SliceOptions,
  WIRE_FORMATS,
  WireCodec,
  type WireFormat,
} from './wire-codec.js';
export { yieldToEventLoop } from './yield-to-event-loop.js';
