// What a library is found to do before it is used, with packages koffi that stand for libraries,
// and what follows for how products are cut.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { splitForThreads } from '../src/backends/cpu/encode-matmul.js';
import { trialOfBf16 } from '../src/backends/cpu/native/trials.js';
import { tryLibrary } from '../src/backends/cpu/native/try-library.js';

const OMP = 'omp_set_num_threads() {}';

describe("a library's trial", () => {
  /** A koffi whose library multiplies, and adds some of the depth to many rows at once. */
  const koffiOf = (some: number) => `
    const sgemm = (order, transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, out) => {
      if (m > 100) return out.fill(m > 400 ? k * ${some} : 0);
      for (let i = 0; i < m * n; i++) {
        const [row, column] = [Math.floor(i / n), i % n];
        out[i] = 0;
        for (let j = 0; j < k && n < 100; j++) out[i] += a[row * k + j] * b[j * n + column];
      }
    };
    const of = { cblas_sgemm: sgemm, openblas_get_config: () => 'A 1 x', openblas_get_corename: () => 'B' };
    module.exports = { load: () => ({ func: (name) => of[name] }) };`;

  it('finds whether rows have the same bits alone as beside others', async () => {
    const root = newFolder();
    const found = [];
    for (const some of [0, 1]) {
      const koffi = join(root, `koffi-${some}.cjs`);
      writeFileSync(koffi, koffiOf(some));
      found.push(await tryLibrary({ library: koffi, koffi }));
    }
    expect(found).toEqual([
      { name: 'A 1 B', keepsRows: process.arch === 'x64' },
      { name: 'A 1 B', keepsRows: false },
    ]);
  });

  it.each([
    [
      'multiplies',
      0x3e7,
      (sum: number) => sum,
      OMP,
      { name: 'oneDNN 9.8.7 AMX', keepsRows: false },
    ],
    ['lies', 0x3e7, () => 1, OMP, { fault: 'its product of bf16 does not multiply' }],
    ['has no matrix unit', 0xe7, () => 1, OMP, { fault: 'it does not use the matrix unit' }],
    ['has no OpenMP', 0x3e7, (sum: number) => sum, '', { fault: expect.any(String) }],
  ])('finds whether a library for bf16 %s', async (_, isa, sum, omp, found) => {
    const koffi = join(newFolder(), 'koffi.cjs');
    writeFileSync(
      koffi,
      `const f32 = (upper) => new Float32Array(new Uint32Array([upper << 16]).buffer)[0];
      const gemm = (ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, out) => {
        for (let i = 0; i < m * n; i++) {
          let sum = 0;
          for (let j = 0; j < k; j++) sum += f32(a[((i / n) | 0) * k + j]) * f32(b[j * n + (i % n)]);
          out[i] = (${sum})(sum);
        }
      };
      const of = { dnnl_get_effective_cpu_isa: () => ${isa}, dnnl_gemm_bf16bf16f32: gemm, dnnl_version() {}, ${omp} };
      module.exports = {
        load: () => ({ func: (name) => of[name] }),
        struct: () => 0,
        decode: () => ({ major: 9, minor: 8, patch: 7 }),
      };`,
    );
    expect(await tryLibrary({ library: koffi, koffi }, trialOfBf16)).toEqual(found);
    // It is none for f32, whatever is known of it.
    const fault = 'it has no function cblas_sgemm';
    expect(await tryLibrary({ library: koffi, koffi })).toEqual({ fault });
  });

  it('lets the device cut rows for its threads, or by the shape alone', () => {
    const view = { dtype: 'f32' };
    const shape = { m: 1024, n: 2048, k: 512, batch: [1, 1], a: view, b: view, out: view };
    const split = (threads: number, keepsRows: boolean, own = {}) => {
      const { rows, columns } = splitForThreads({ ...shape, ...own } as never, {
        threads,
        library: { keepsRows, takesBf16: false, least: 1, load: () => {} },
      });
      return [rows, columns];
    };
    expect([1, 2, 3, 16].map((threads) => split(threads, true))).toEqual([
      [1, 1],
      [4, 1],
      [6, 1],
      [8, 1],
    ]);
    expect([1, 2, 16].map((threads) => split(threads, false))).toEqual([
      [8, 1],
      [8, 1],
      [8, 1],
    ]);
    expect(split(1, true, { m: 8192 })).toEqual([3, 1]);
    // Blocks of 384 rows are widened as one.
    expect(split(16, true, { a: { dtype: 'bf16' } })).toEqual([2, 4]);
  });
});
