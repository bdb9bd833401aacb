// The calls into libraries of the host, as each thread makes them. The function refers to nothing
// outside of it, because its source text travels to the workers, which have no modules.

/** Where the library and the package that calls it are, as threads are told. */
export interface NativeLibrary {
  /** The path of the file that a process loads. */
  readonly library: string;
  /** That of a library for bf16, where there is one. */
  readonly bf16?: string;
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

/** The kernels' imports. */
export interface Gemms {
  readonly gemm: Gemm;
  /** With operands in bf16. */
  readonly gemmBf16: Gemm;
}

/** Binds the libraries' products to a memory. Each is loaded by its first call. */
export function bindGemms(
  { library, bf16, koffi }: NativeLibrary,
  memory: WebAssembly.Memory,
): Gemms {
  const ROW_MAJOR = 101;
  const PLAIN = 111;
  const [N, T] = [78, 84]; // the letters by which oneDNN is told of a transpose
  const ADDRESS = 'uint64_t'; // a number, which koffi takes at a tenth of what a view costs
  type Call = (...args: number[]) => number;
  let sgemm: Call | undefined;
  let bgemm: Call | undefined;
  let base = 0;
  function open(path: string) {
    const ffi = process.getBuiltinModule('node:module').createRequire(koffi)(koffi);
    // The address stays where the memory grows, because the engine has reserved all that it may
    // grow to.
    base = Number(ffi.address(new Uint8Array(memory.buffer)));
    return ffi.load(path);
  }
  function loadF32(): Call {
    const sizes = ['int', 'int', 'int', 'int', 'int', 'int'];
    const operands = ['float', ADDRESS, 'int', ADDRESS, 'int', 'float', ADDRESS, 'int'];
    return open(library).func('cblas_sgemm', 'void', [...sizes, ...operands]);
  }
  function loadBf16(): Call {
    const handle = open(bf16!);
    handle.func('omp_set_num_threads', 'void', ['int'])(1); // which counts for this thread alone
    const size = 'int64_t';
    const operands = ['float', ADDRESS, size, ADDRESS, size, 'float', ADDRESS, size];
    const types = ['int8_t', 'int8_t', size, size, size, ...operands];
    return handle.func('dnnl_gemm_bf16bf16f32', 'int', types);
  }
  return {
    gemm: (transposeA, transposeB, m, n, k, alpha, a, aRow, b, bRow, beta, out, outRow) => {
      sgemm ??= loadF32();
      const places = [alpha, base + (a >>> 0), aRow, base + (b >>> 0), bRow];
      const order = [ROW_MAJOR, PLAIN + transposeA, PLAIN + transposeB, m, n, k];
      sgemm(...order, ...places, beta, base + (out >>> 0), outRow);
    },
    gemmBf16: (transposeA, transposeB, m, n, k, alpha, a, aRow, b, bRow, beta, out, outRow) => {
      bgemm ??= loadBf16();
      const places = [alpha, base + (a >>> 0), aRow, base + (b >>> 0), bRow];
      const order = [transposeA ? T : N, transposeB ? T : N, m, n, k];
      const status = bgemm(...order, ...places, beta, base + (out >>> 0), outRow);
      if (status !== 0) {
        throw new Error(`oneDNN refused a product of ${m} x ${n} x ${k} with status ${status}`);
      }
    },
  };
}
