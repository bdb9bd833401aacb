// Products by a library of the host: equal bits on any number of threads, and libraries that can't
// be had. Each test opens a device of its own where memory or its end is what it is about.

import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import type { Backend } from '@shardweave/tensor-core';
import { createCpuBackend, findNativeProducts } from '@shardweave/tensor-core/cpu';
import { hiddenKeyKernelCases, kernelCases } from '@shardweave/tensor-core/testing';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bundle, RunningProgram } from '../../../tooling/test-kit/processes.ts';
import { openCpuBackend } from '../src/backends/cpu/create-cpu-backend.js';
import { locateBf16Library, locateLibrary } from '../src/backends/cpu/native/locate-library.js';
import { runAttention } from './support/cpu-attention.js';
import { expectProduct, runProduct } from './support/cpu-products.js';
import { canWriteLibrary, libraryProblem, writeLibrary } from './support/native-library.js';

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
});

const bf16Suffix = locateBf16Library().length > 0 ? '' : ' (no AMX, or no oneDNN)';
const suffix = libraryProblem === undefined ? '' : ` (${libraryProblem})`;

describe.skipIf(libraryProblem !== undefined)(`a library's products${suffix}`, () => {
  const devices: Backend[] = [];
  beforeAll(async () => {
    for (const threads of [1, 2, 3, 0]) {
      devices.push(await createCpuBackend({ threads, products: 'native' }));
    }
  });
  afterAll(() => Promise.all(devices.map((device) => device.dispose())));

  it.each([
    // In parts of a million multiply-adds OpenBLAS adds up otherwise.
    ['whole, where parts would be small', { m: 256, n: 256, k: 256, batches: 1 }],
    ['parts of rows and columns', { m: 437, n: 1530, k: 430, batches: 1 }],
    [
      'blocks of rows, columns and k, where they are widened',
      { m: 400, n: 391, k: 800, batches: 1 },
    ],
    ['more rows than a part may have', { m: 4001, n: 120, k: 140, batches: 1 }],
    ['a whole batch each', { m: 130, n: 120, k: 140, batches: 5 }],
  ])('have equal bits on 1, 2 and 3 threads and inline: %s', async (_, extent) => {
    for (const [dtype, transposeA, transposeB] of [
      ['f32', false, false],
      ['f32', true, false],
      ['f32', false, true],
      ['bf16', false, true],
      ['bf16', true, false],
      ['f16', true, true],
    ] as const) {
      await expectProduct(devices, dtype, { ...extent, transposeA, transposeB });
    }
  });

  it('sum many terms in parts of k, with equal bits on 1, 2 and 3 threads and inline', async () => {
    const [m, n, k, parts] = [128, 136, 6002, 3];
    const depth = Math.floor(k / parts);
    const values = (size: number) => Float32Array.from({ length: size }, (_, i) => Math.sin(i));
    const [a, b] = [values(m * k), values(k * n)];
    const shape = { m, n, k, batches: 1, transposeA: false, transposeB: false };
    const results = await Promise.all(
      devices.map((device) => runProduct(device, 'f32', shape, { a, b })),
    );
    const sums = new Float32Array(m * n);
    for (let first = 0; first < k; first += depth) {
      const own = { ...shape, k: Math.min(depth, k - first) };
      const terms = a.filter((_, at) => at % k >= first && at % k < first + own.k);
      const rows = b.subarray(first * n, (first + own.k) * n);
      const part = await runProduct(devices[0]!, 'f32', own, { a: terms, b: rows });
      new Float32Array(part.slice().buffer).forEach((value, at) => {
        sums[at]! += value;
      });
    }
    for (const result of results) {
      expect(Buffer.compare(result, new Uint8Array(sums.buffer))).toBe(0);
    }
  });

  it.each(['f32', 'bf16'] as const)(
    'have equal bits on 1, 2 and 3 threads and inline: those of attention in %s',
    async (dtype) => {
      const [first, ...others] = await Promise.all(
        devices.map((device) => runAttention(device, dtype, { queries: 200, keys: 250, dim: 41 })),
      );
      for (const other of others) {
        expect(Buffer.compare(other, first!)).toBe(0);
      }
    },
  );

  it("are the library's in attention of long rows, and wasm's where they are short or few", async () => {
    const wasm = await createCpuBackend({ threads: 1 });
    const isSame = async (queries: number, keys: number, dim: number) => {
      const all = [wasm, devices[0]!].map((device) =>
        runAttention(device, 'f32', { queries, keys, dim }),
      );
      const [ours, theirs] = await Promise.all(all);
      return Buffer.compare(ours!, theirs!) === 0;
    };
    expect(await isSame(127, 128, 16)).toBe(true);
    expect(await isSame(128, 128, 16)).toBe(false);
    await wasm.dispose();
  });

  it("are the library's where they are large, and wasm's where they are small or of few rows", async () => {
    const wasm = await createCpuBackend({ threads: 1 });
    const isSame = async (m: number, n: number, k: number) => {
      const shape = { m, n, k, batches: 1, transposeA: false, transposeB: false };
      const values = (size: number) => Float32Array.from({ length: size }, (_, i) => Math.sin(i));
      const operands = { a: values(m * k), b: values(k * n) };
      const [ours, theirs] = [
        await runProduct(wasm, 'f32', shape, operands),
        await runProduct(devices[0]!, 'f32', shape, operands),
      ];
      return Buffer.compare(ours, theirs) === 0;
    };
    expect(await isSame(32, 32, 1023)).toBe(true);
    expect(await isSame(32, 32, 1024)).toBe(false);
    expect(await isSame(5, 1024, 1024)).toBe(true);
    expect(await isSame(6, 1024, 1024)).toBe(false);
    await wasm.dispose();
  });

  it.skipIf(bf16Suffix !== '')(
    `are those of oneDNN in bf16, unless a library is named${bf16Suffix}`,
    async () => {
      const library = locateLibrary(undefined)[0]!;
      const named = await createCpuBackend({ threads: 1, products: 'native', library });
      expect(devices[0]!.info.compiledFor).toMatch(/ and oneDNN \S+ AMX by rule/);
      expect(named.info.compiledFor).not.toContain('oneDNN');
      const shape = { m: 128, n: 136, k: 1002, batches: 1, transposeA: false, transposeB: true };
      const values = (size: number) => Float32Array.from({ length: size }, (_, i) => Math.sin(i));
      const operands = { a: values(128 * 1002), b: values(136 * 1002) };
      const run = (dtype: 'f32' | 'bf16') =>
        Promise.all([named, devices[0]!].map((own) => runProduct(own, dtype, shape, operands)));
      const [f32, bf16] = [await run('f32'), await run('bf16')];
      expect(Buffer.compare(f32[0]!, f32[1]!)).toBe(0);
      expect(Buffer.compare(bf16[0]!, bf16[1]!)).not.toBe(0);
      await named.dispose();
    },
  );

  it('pass the cases of products at every size', async () => {
    const device = await openCpuBackend({ threads: 2, products: 'native' }, 1);
    const all = [...kernelCases(), ...hiddenKeyKernelCases()];
    const cases = all.filter(({ name }) => /^(matmul|linear|attention)/.test(name));
    expect(cases.length).toBeGreaterThan(20);
    for (const one of cases) {
      await one.run(device);
    }
    await device.dispose();
  });

  it('stay right while the memory grows', async () => {
    const device = await createCpuBackend({ threads: 1, products: 'native' });
    const shape = { m: 64, n: 64, k: 300, batches: 1, transposeA: false, transposeB: false };
    await expectProduct([device, devices[0]!], 'f32', shape);
    const large = device.alloc(256 * 2 ** 20, 'more than there was');
    await expectProduct([device, devices[0]!], 'f32', shape);
    device.free(large);
    await device.dispose();
  });

  it.skipIf(!existsSync('/sys/kernel/mm/transparent_hugepage'))(
    'rest in memory that Linux may give large pages',
    async () => {
      const MiB = 2 ** 20;
      const native = await createCpuBackend({
        threads: 0,
        products: 'native',
        memoryBytes: 509 * MiB,
      });
      const plain = await createCpuBackend({ threads: 0, memoryBytes: 507 * MiB });
      const sizes = bytesWithLargePages();
      expect(sizes).toContain(509 * MiB);
      expect(sizes).not.toContain(507 * MiB);
      await Promise.all([native.dispose(), plain.dispose()]);
    },
  );

  it('put library, version and core into the class of the device, and say so', () => {
    const [, name] =
      /, (OpenBLAS \d+\.\d+\S* \w+(?: and oneDNN \S+ AMX)?|Accelerate of .+) by rule 4$/.exec(
        devices[1]!.info.compiledFor,
      )!;
    expect(devices[1]!.info.compiledFor).toMatch(/^(fused|plain) products, /);
    expect(devices[1]!.info.description).toBe(
      `${devices[1]!.info.description.split(', ')[0]}, 2 threads, ${name}`,
    );
  });

  it.skipIf(process.platform !== 'linux')(
    'leave no thread, no variable and no process behind, and try the library once',
    async () => {
      const path = await bundle(new URL('support/native-process.ts', import.meta.url));
      mkdirSync(join(dirname(path), 'node_modules'));
      const koffi = dirname(createRequire(import.meta.url).resolve('koffi'));
      symlinkSync(koffi, join(dirname(path), 'node_modules/koffi'));
      vi.stubEnv('TMPDIR', newFolder());
      // The second process is told of no program to try a library in: it has been tried.
      for (const args of [[], ['/no/program']]) {
        const { exitCode, printed, complained } = await new RunningProgram(path, args).ended;
        expect(complained).toBe('');
        expect(printed).toEqual(['results 256', 'results 256', 'threads 0', 'variables as before']);
        expect(exitCode).toBe(0);
      }
      // By this variable the library takes other kernels, whose bits nobody has named yet.
      vi.stubEnv('OPENBLAS_CORETYPE', 'Prescott');
      const other = await new RunningProgram(path, ['/no/program']).ended;
      expect(other.complained).toMatch(
        /: a process that tried it ended without an answer\. Install/,
      );
    },
  );
});

/** The bytes of each stretch of this process's memory that is marked for large pages (`hg`). */
function bytesWithLargePages(): number[] {
  const maps = readFileSync('/proc/self/smaps', 'utf8').split(/^(?=[0-9a-f]+-[0-9a-f]+ )/m);
  const stretches: { from: number; to: number }[] = [];
  for (const map of maps.filter((text) => /^VmFlags:.* hg\b/m.test(text))) {
    const [from, to] = map
      .split(' ', 1)[0]!
      .split('-')
      .map((hex) => Number.parseInt(hex, 16));
    const last = stretches.at(-1);
    if (last?.to === from) {
      last!.to = to!;
    } else {
      stretches.push({ from: from!, to: to! });
    }
  }
  return stretches.map(({ from, to }) => to - from);
}

describe('a library that can not be had', () => {
  const root = newFolder();
  /** Opens a device and returns the message of its refusal, without the hint of all of them. */
  async function refusal(library: string): Promise<string> {
    const refused = await createCpuBackend({ threads: 0, products: 'native', library }).then(
      (device) => device.info.description,
      (error) => error,
    );
    expect(refused).toMatchObject({ code: 'STATE' });
    expect(refused.message).toMatch(/ Install OpenBLAS .*, or leave products in wasm\.$/);
    expect(refused.message).not.toContain('\n');
    return refused.message.split(' Install ')[0];
  }

  it('is refused in one line where it is missing', async () => {
    expect(await refusal('libnone.so')).toBe(
      'cpu: native products: expected the library libnone.so, got none: this machine has no such file.',
    );
    expect(await refusal(join(root, 'none.so'))).toMatch(/none\.so, got none/);
  });

  it('is refused where it is no library', async () => {
    const text = join(root, 'text.so');
    writeFileSync(text, 'no library');
    expect(await refusal(text)).toMatch(/text\.so: /);
  });

  it.skipIf(!canWriteLibrary)('is refused by what it does in a process of its own', async () => {
    const path = join(root, 'library.so');
    writeLibrary(path, 'other_function', 'returns');
    expect(await refusal(path)).toMatch(/library\.so: it has no function cblas_sgemm\.$/);
    // Another file at that place is another library.
    writeLibrary(path, 'cblas_sgemm', 'returns');
    expect(await refusal(path)).toMatch(/its cblas_sgemm does not multiply\.$/);
    writeLibrary(path, 'cblas_sgemm', 'crashes');
    expect(await refusal(path)).toMatch(/a process that tried it ended by SIG\w+\.$/);
  });

  it('is refused without `products`, and where it has no name', async () => {
    const refused = { code: 'OPTION' };
    const library = 'libopenblas.so.0';
    await expect(createCpuBackend({ library })).rejects.toMatchObject(refused);
    const empty = createCpuBackend({ products: 'native', library: '' });
    await expect(empty).rejects.toMatchObject(refused);
    await expect(findNativeProducts('')).rejects.toMatchObject(refused);
  });

  it('is not tried where the trial would start the program itself again', async () => {
    vi.stubEnv('SHARDWEAVE_LIBRARY_TRIAL', '1');
    const text = join(root, 'untried.so');
    writeFileSync(text, 'no library');
    expect(await refusal(text)).toMatch(
      /this program is its own Node, in which nothing can be tried/,
    );
  });

  it('is refused with `auto` where it is named, and leaves products in wasm where none is', async () => {
    const options = { threads: 0, products: 'auto' } as const;
    const named = createCpuBackend({ ...options, library: 'libnone.so' });
    await expect(named).rejects.toMatchObject({ code: 'STATE' });
    vi.spyOn(process, 'platform', 'get').mockReturnValue('aix');
    const device = await createCpuBackend(options);
    expect(device.info.description).toMatch(/^wasm (relaxed )?simd, inline$/);
    await device.dispose();
  });

  it('is looked for where the loader of a system looks', () => {
    const places = (platform: NodeJS.Platform, env = {}, listed: readonly string[] = []) => ({
      platform,
      env,
      loaderCache: () => `head\0libx.so.1\0${listed.map((path) => `${path}\0`).join('')}`,
    });
    const [first, second] = ['a', 'b'].map((name) => {
      const folder = join(root, name);
      mkdirSync(folder);
      writeFileSync(join(folder, 'libx.so.1'), name);
      return folder;
    }) as [string, string];
    const listed = [join(first, 'libx.so.1'), join(first, 'liblibx.so.1'), '/none/libx.so.1'];
    const find = (env = {}) => locateLibrary('libx.so.1', places('linux', env, listed));
    expect(find()).toEqual([join(first, 'libx.so.1')]);
    const [found] = find({ LD_LIBRARY_PATH: `:relative:${second}` });
    expect(found).toBe(join(second, 'libx.so.1'));
    expect(locateLibrary('libx.so.1', places('win32', { PATH: second }))).toHaveLength(1);
    const accelerate = '/System/Library/Frameworks/Accelerate.framework/Accelerate';
    expect(locateLibrary(undefined, places('darwin'))[0]).toBe(accelerate);
    expect(locateLibrary(undefined, places('aix'))).toEqual([]);
  });
});
