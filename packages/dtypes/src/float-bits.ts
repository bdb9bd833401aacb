// The bit pattern of an f32, and back. The two views are scratch memory that is written and read
// within one synchronous call, so they carry nothing from one call to the next.

const SCRATCH = new Float32Array(1);
const SCRATCH_BITS = new Uint32Array(SCRATCH.buffer);

/** The 32 bits of `x` rounded to f32, as an unsigned number. */
export function bitsOfF32(x: number): number {
  SCRATCH[0] = x;
  return SCRATCH_BITS[0]!;
}

/** The f32 value of 32 bits. */
export function f32OfBits(bits: number): number {
  SCRATCH_BITS[0] = bits;
  return SCRATCH[0]!;
}
