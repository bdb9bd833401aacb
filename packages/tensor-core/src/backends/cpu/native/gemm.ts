// The call into a library of the host, as each thread makes it. The function refers to nothing
// outside of it, because its source text travels to the workers, which have no modules.

/** Where the library and the package that calls it are, as threads are told. */
export interface NativeLibrary {
  /** The path of the file that a process loads. */
  readonly library: string;
  /** The path of the package koffi. */
  readonly koffi: string;
}

/**
 * out = alpha a b + beta out in f32, row-major. Addresses are offsets in the device's memory, rows
 * are counted in elements.
 */
export type Gemm = (
  transposeA: number,
  transposeB: number,
  m: number,
  n: number,
  k: number,
  alpha: number,
  a: number,
  aRow: number,
  b: number,
  bRow: number,
  beta: number,
  out: number,
  outRow: number,
) => void;

/** Binds the library's product to a memory. It is loaded by the first call. */
export function bindGemm({ library, koffi }: NativeLibrary, memory: WebAssembly.Memory): Gemm {
  const ROW_MAJOR = 101;
  const PLAIN = 111;
  const ADDRESS = 'uint64_t'; // a number, which koffi takes at a tenth of what a view costs
  let sgemm: ((...args: number[]) => void) | undefined;
  let base = 0;
  function load(): (...args: number[]) => void {
    const ffi = process.getBuiltinModule('node:module').createRequire(koffi)(koffi);
    // The address stays where the memory grows, because the engine has reserved all that it may
    // grow to.
    base = Number(ffi.address(new Uint8Array(memory.buffer)));
    const sizes = ['int', 'int', 'int', 'int', 'int', 'int'];
    const operands = ['float', ADDRESS, 'int', ADDRESS, 'int', 'float', ADDRESS, 'int'];
    return ffi.load(library).func('cblas_sgemm', 'void', [...sizes, ...operands]);
  }
  return (transposeA, transposeB, m, n, k, alpha, a, aRow, b, bRow, beta, out, outRow) => {
    sgemm ??= load();
    const places = [alpha, base + (a >>> 0), aRow, base + (b >>> 0), bRow];
    const order = [ROW_MAJOR, PLAIN + transposeA, PLAIN + transposeB, m, n, k];
    sgemm(...order, ...places, beta, base + (out >>> 0), outRow);
  };
}
