// The element types that tensors, wires and files share.

/**
 * f32, two 16-bit floats and two integers. The 16-bit floats are for storage; arithmetic is in f32.
 */
export type DType = 'f32' | 'f16' | 'bf16' | 'i32' | 'u32';

/** What can be reduced: every dtype, and bytes, though no tensor has them. */
export type ReduceDType = DType | 'u8';

const BYTES: Readonly<Record<ReduceDType, number>> = {
  f32: 4,
  f16: 2,
  bf16: 2,
  i32: 4,
  u32: 4,
  u8: 1,
};

/**
 * The bytes of one element.
 * @throws {RangeError} for an unknown dtype
 */
export function byteSize(dtype: ReduceDType): number {
  const size: unknown = BYTES[dtype];
  if (typeof size === 'number') {
    return size;
  }
  throw new RangeError(
    `byteSize: expected one of ${Object.keys(BYTES).join(', ')}, got '${String(dtype)}'.`,
  );
}

/** Whether the dtype is one of f32, f16, bf16. */
export function isFloat(dtype: ReduceDType): dtype is 'f32' | 'f16' | 'bf16' {
  return dtype === 'f32' || dtype === 'f16' || dtype === 'bf16';
}
