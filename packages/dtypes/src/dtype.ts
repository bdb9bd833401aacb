// The element types that tensors, wires and files share.

/** f32, two 16-bit floats, two integers. 16-bit floats are storage: arithmetic is f32. */
export type DType = 'f32' | 'f16' | 'bf16' | 'i32' | 'u32';

const BYTES: Readonly<Record<DType, number>> = { f32: 4, f16: 2, bf16: 2, i32: 4, u32: 4 };

/** Bytes of one element. */
export function byteSize(dtype: DType): number {
  return BYTES[dtype];
}

/** Whether the dtype is one of f32, f16, bf16. */
export function isFloat(dtype: DType): boolean {
  return dtype === 'f32' || dtype === 'f16' || dtype === 'bf16';
}
