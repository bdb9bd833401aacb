// The product of a library of the host, such as OpenBLAS, on this memory.

/** out = alpha a b + beta out, row-major; the last number of an operand is its row in elements. */
@external('env', 'gemm')
export declare function gemm(
  transposeA: i32,
  transposeB: i32,
  m: u32,
  n: u32,
  k: u32,
  alpha: f32,
  a: usize,
  aRow: u32,
  b: usize,
  bRow: u32,
  beta: f32,
  out: usize,
  outRow: u32,
): void;

/** Does so with bf16 operands, where the host has a library for them. */
@external('env', 'gemmBf16')
export declare function gemmBf16(
  transposeA: i32,
  transposeB: i32,
  m: u32,
  n: u32,
  k: u32,
  alpha: f32,
  a: usize,
  aRow: u32,
  b: usize,
  bRow: u32,
  beta: f32,
  out: usize,
  outRow: u32,
): void;
