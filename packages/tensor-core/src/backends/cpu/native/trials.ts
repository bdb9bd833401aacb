// What the process of a trial runs, from its source text: a library that has the function but does
// not multiply would train on garbage.

/** What such a process prints. */
export interface Printed {
  /** What the library says of itself, where it is one that does. */
  readonly says?: readonly string[];
  readonly keepsRows?: boolean;
  readonly fault?: string;
}

type Multiply = (
  m: number,
  n: number,
  k: number,
  a: Float32Array,
  b: Float32Array,
  out: Float32Array,
) => void;

/** Whether it makes the products of small matrices. */
export function multiplies(multiply: Multiply): boolean {
  const [m, n, k] = [65, 67, 129];
  // Whole numbers below 9, which bf16 has. Their sums are exact in f32, in every order.
  const a = Float32Array.from({ length: m * k }, (_, index) => (index % 17) - 8);
  const b = Float32Array.from({ length: k * n }, (_, index) => (index % 13) - 6);
  const out = new Float32Array(m * n).fill(Number.NaN);
  multiply(m, n, k, a, b, out);
  return out.every((value, at) => {
    const [row, column] = [Math.floor(at / n), at % n];
    let sum = 0;
    for (let i = 0; i < k; i++) {
      sum += a[row * k + i]! * b[i * n + column]!;
    }
    return sum === value;
  });
}

/** Tries a library in f32. It gets `multiplies`, since it has nothing of this module. */
export function trial(isProduct: typeof multiplies): void {
  const [, koffi, library] = process.argv as [string, string, string];
  const print = (found: Printed) => console.log(JSON.stringify(found));
  const one = <T>(act: () => T): T | undefined => {
    try {
      return act();
    } catch {
      return undefined;
    }
  };
  const ffi = process.getBuiltinModule('node:module').createRequire(koffi)(koffi);
  try {
    const handle = ffi.load(library);
    const ints = ['int', 'int', 'int', 'int', 'int', 'int'];
    const types = [...ints, 'float', 'void *', 'int', 'void *', 'int', 'float', 'void *', 'int'];
    const sgemm = one(() => handle.func('cblas_sgemm', 'void', types));
    if (sgemm === undefined) {
      print({ fault: 'it has no function cblas_sgemm' });
      return;
    }
    const isRight = isProduct((m, n, k, a, b, out) =>
      sgemm(101, 111, 111, m, n, k, 1, a, k, b, n, 0, out, n),
    );
    if (!isRight) {
      print({ fault: 'its cblas_sgemm does not multiply' });
      return;
    }
    const text = (name: string) => one(() => handle.func(name, 'str', [])() as string);
    const config = text('openblas_get_config')?.split(' ').slice(0, 2);
    const core = text('openblas_get_corename');
    if (!config || !core || process.arch !== 'x64') {
      // Others may choose their way by the size of a product, as OpenBLAS does on arm64 with SME.
      print(config && core ? { says: [...config, core] } : {});
      return;
    }
    // Rows and columns beyond one block of a library, and where its tiles are cut at the end.
    const [rows, columns, depth, first] = [8 * 48 + 37, 1801, 401, 48];
    // Numbers whose sums are rounded.
    const thirds = (size: number) => Float32Array.from({ length: size }, (_, i) => (i % 1009) / 3);
    const [left, right] = [thirds(rows * depth), thirds(depth * columns)];
    const keepsRows = [0, 1, 2, 3].every((transposes) => {
      const [ofLeft, ofRight] = [transposes & 1, transposes >> 1];
      const multiply = (from: number, to: number): Uint8Array => {
        const sums = new Float32Array((to - from) * columns);
        const ownLeft = left.subarray(ofLeft ? from : from * depth);
        const shape = [101, 111 + ofLeft, 111 + ofRight, to - from, columns, depth];
        const operands = [1, ownLeft, ofLeft ? rows : depth, right, ofRight ? depth : columns];
        sgemm(...shape, ...operands, 0, sums, columns);
        return new Uint8Array(sums.buffer);
      };
      const parts = [multiply(0, first), multiply(first, rows)];
      return Buffer.compare(Buffer.concat(parts), multiply(0, rows)) === 0;
    });
    print({ keepsRows, says: [...config, core] });
  } catch (error) {
    print({ fault: String((error as Error).message) });
  }
}

/** Tries oneDNN in bf16 with the processor's matrix unit. */
export function trialOfBf16(isProduct: typeof multiplies): void {
  const [, koffi, library] = process.argv as [string, string, string];
  const print = (found: Printed) => console.log(JSON.stringify(found));
  const ffi = process.getBuiltinModule('node:module').createRequire(koffi)(koffi);
  try {
    const handle = ffi.load(library);
    const AMX = 0x200;
    if ((handle.func('dnnl_get_effective_cpu_isa', 'int', [])() & AMX) === 0) {
      print({ fault: 'it does not use the matrix unit' });
      return;
    }
    const size = 'int64_t';
    const operands = ['float', 'void *', size, 'void *', size, 'float', 'void *', size];
    const types = ['int8_t', 'int8_t', size, size, size, ...operands];
    const gemm = handle.func('dnnl_gemm_bf16bf16f32', 'int', types);
    handle.func('omp_set_num_threads', 'void', ['int'])(1); // as each thread does, see gemm.ts
    const upper = (of: Float32Array) =>
      new Uint16Array(of.buffer).filter((_, index) => index % 2 === 1);
    const N = 78;
    const isRight = isProduct((m, n, k, a, b, out) =>
      gemm(N, N, m, n, k, 1, upper(a), k, upper(b), n, 0, out, n),
    );
    if (!isRight) {
      print({ fault: 'its product of bf16 does not multiply' });
      return;
    }
    const fields = { major: 'int', minor: 'int', patch: 'int' };
    const version = ffi.decode(handle.func('dnnl_version', 'void *', [])(), ffi.struct(fields));
    const { major, minor, patch } = version;
    print({ says: ['oneDNN', `${major}.${minor}.${patch}`, 'AMX'] });
  } catch (error) {
    print({ fault: String((error as Error).message) });
  }
}
