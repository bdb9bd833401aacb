// The WebGPU device in Node runs the conformance suite, with the device's own limits and with a
// small one that makes kernels split. Further tests check how it fails.

import {
  type ConformanceCase,
  hiddenKeyKernelCases,
  kernelCases,
  manyKernelCases,
} from '@shardweave/tensor-core/testing';
import {
  createWebGpuBackend,
  listAdapters,
  type WebGpuBackend,
} from '@shardweave/tensor-core/webgpu';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { fewHalves } from '../../../tooling/test-kit/first-of-each.ts';
import { foldTexts } from './support/fast-math.js';
import {
  Bench,
  isLong,
  type Options,
  open,
  openQuick,
  openTilesDevice,
  reason,
  tilesReason,
  title,
  webGpu,
} from './support/webgpu-kit.js';

/**
 * The rows of every case fit this binding, while patterns, tables and products don't fit as a
 * whole.
 */
const SMALL_BINDING = 48 * 1024;
/**
 * Each kernel of attention for hardware takes a second or two to compile, so only some of its cases
 * run: many rows loaded by elements. Few rows, rows loaded by vectors, documents and dropout run
 * among the long tests.
 */
const SOME_TILES = /f32 \[1, 1\/1, ([2-9]\d|\d{3})\/\d+, [48]\] (?!documents)/;

/** The time of a case whose kernels take long to compile, by a cold cache and other programs. */
const COMPILED_MS = 600_000;

/** With so few operations for a dispatch, attention is cut: see cut-grid.ts. */
const FEW_FLOPS = 50_000;

describe.skipIf(reason !== undefined)(title('webgpu device'), () => {
  const small = kernelCases();
  const all = [...small, ...manyKernelCases()];
  const some = (cases: readonly ConformanceCase[]) => (isLong ? cases : fewHalves(cases));
  describe.each<{ name: string; options: Options; cases: readonly ConformanceCase[] }>([
    { name: "the device's own limits", options: {}, cases: some(all) },
    {
      name: 'bindings of 48 KiB',
      options: { maxBindingBytes: SMALL_BINDING },
      // Cases that fit the binding would run the same kernels as without the limit. In 16 bits rows
      // are cut as in f32.
      cases: small.filter(
        ({ name, largestBytes }) =>
          isLong || (!/\bb?f16\b/.test(name) && (largestBytes?.() ?? 0) > SMALL_BINDING),
      ),
    },
    {
      name: 'the products for hardware',
      options: { kernelProfile: 'hardware' },
      // The other kernels are the same for software, but for layer norm's.
      cases: all.filter(({ name }) => /matmul|layerNorm/i.test(name)),
    },
  ])('conformance with $name', ({ options, cases }) => {
    let backend: WebGpuBackend;
    beforeAll(async () => {
      // A software driver of the machine runs products for hardware only in the long tests.
      const isQuick = options.kernelProfile === 'hardware' && !isLong;
      backend = await (isQuick ? openQuick : open)(options);
    });
    afterAll(() => backend.dispose());
    // A CPU driver compiles each product for hardware for seconds, and all of them for minutes if
    // its shader cache is cold. Their 16-bit forms, further products, layerNorm (rmsNorm is the
    // same kernel) and, of any kernels, workgroups by the ten thousand with many lanes run only in
    // `npm run test:long`.
    const slow =
      options.kernelProfile === 'hardware'
        ? /f16|^layerNorm|^matmul (?!(N.*|f32) of all shapes)|operands of matmul/
        : /65,601 spans/;
    for (const { name, run } of cases.filter(({ name }) => isLong || !slow.test(name))) {
      const limit = slow.test(name) ? { timeout: COMPILED_MS } : {};
      test(name, limit, () => run(backend));
    }
  });

  describe.skipIf(tilesReason !== undefined)(
    title("conformance with attention's kernels for hardware, by fast math", tilesReason),
    () => {
      let gpu: GPUDevice;
      let backend: WebGpuBackend;
      beforeAll(async () => {
        gpu = await openTilesDevice();
        foldTexts(gpu);
        const options = { kernelProfile: 'hardware', maxFlops: FEW_FLOPS } as const;
        backend = await createWebGpuBackend({ device: gpu, ...options });
      });
      afterAll(async () => {
        await backend.dispose();
        gpu.destroy();
      });
      const cases = [...small, ...hiddenKeyKernelCases()].filter(
        ({ name }) => name.startsWith('attention') && (isLong || SOME_TILES.test(name)),
      );
      for (const kernelCase of cases) {
        test(kernelCase.name, () => kernelCase.run(backend));
      }
      test('many of these cases take more than one submit', () => {
        expect(backend.statistics().submits).toBeGreaterThan(3 * cases.length);
      });
      test('a step that is cut gives the bits of the whole one', async () => {
        const { run } = cases.find(({ name }) => name.includes('130/130, 8] isCausal true'))!;
        const uncut = await createWebGpuBackend({ device: gpu, kernelProfile: 'hardware' });
        const results = [];
        for (const each of [uncut, backend]) {
          const before = each.statistics().submits;
          const bits = await bitsRead(each, () => run(each));
          results.push({ bits, submits: each.statistics().submits - before });
        }
        await uncut.dispose();
        const [whole, cut] = results;
        expect(whole!.bits.length).toBeGreaterThan(0);
        expect(cut!.bits).toEqual(whole!.bits);
        expect(cut!.submits).toBeGreaterThan(whole!.submits + 6);
      });
    },
  );

  describe('failures', () => {
    test('adapters are described', async () => {
      const adapters = await listAdapters(webGpu());
      expect(adapters.length).toBeGreaterThan(0);
      expect(adapters[0]!.maxBindingBytes).toBeGreaterThanOrEqual(128 * 1024 * 1024);
    });

    test('no GPU and no adapter are typed errors', async () => {
      const none = { requestAdapter: async () => null } as unknown as GPU;
      await expect(createWebGpuBackend({ gpu: none })).rejects.toMatchObject({
        code: 'DEVICE_LOST',
        reason: 'no-adapter',
      });
    });

    test('a kernel that does not compile rejects reads with its numbered source', async () => {
      const adapter = await webGpu().requestAdapter();
      const device = await adapter!.requestDevice();
      const create = device.createShaderModule.bind(device);
      device.createShaderModule = ({ code, ...rest }) =>
        create({
          ...rest,
          code: code.replace('fn main', 'fn other() -> u32 { return lost; }\nfn main'),
        });
      const backend = await createWebGpuBackend({ device });
      const x = new Bench(backend).zeros(4);
      backend.run('affine', { x, out: x, scale: 1, shift: 1 });
      await expect(backend.read(x.buffer, 0, 16)).rejects.toMatchObject({
        code: 'SHADER',
        label: 'affine f32 x=out',
        message: expect.stringMatching(/\d+:\d+ error: .*lost[\s\S]* 1 \| struct Params/),
      });
      await expect(backend.sync()).rejects.toMatchObject({ code: 'SHADER' });
      await backend.dispose();
      device.destroy();
    });

    test('a lost device rejects pending and later reads, by the name of its adapter', async () => {
      const adapter = await webGpu().requestAdapter();
      const device = await adapter!.requestDevice();
      const backend = await createWebGpuBackend({ device });
      const bench = new Bench(backend);
      const x = bench.zeros(4);
      const large = bench.zeros(2 ** 19);
      const pending = backend.read(x.buffer, 0, 16);
      const write = (to: typeof x, byteLength: number) =>
        backend.write(to.buffer, 0, new Uint8Array(byteLength));
      write(x, 16); // into memory that is mapped when the device goes
      device.destroy();
      write(x, 16);
      write(large, 2 ** 21);
      const { description: name } = backend.info;
      await expect(pending).rejects.toMatchObject({
        code: 'DEVICE_LOST',
        reason: 'destroyed',
        message: expect.stringContaining(`the device of ${name} was lost (destroyed): `),
      });
      await expect(backend.read(x.buffer, 0, 16)).rejects.toMatchObject({ code: 'DEVICE_LOST' });
      await expect(backend.sync()).rejects.toMatchObject({ code: 'DEVICE_LOST' });
      await backend.dispose();
    });

    test('a disposed device rejects and throws', async () => {
      const backend = await open();
      const x = new Bench(backend).zeros(4);
      const pending = backend.read(x.buffer, 0, 16);
      const rejected = expect(pending).rejects.toMatchObject({ code: 'DISPOSED' });
      await backend.dispose();
      await backend.dispose();
      await rejected;
      expect(() => backend.alloc(4, 'late')).toThrow(/disposed/);
      expect(backend.usage()).toEqual({ bytes: 0, buffers: 0 });
    });
  });
});

/** The bytes of all that `act` reads from a device, as digits. */
async function bitsRead(backend: WebGpuBackend, act: () => Promise<void>): Promise<string[]> {
  const bits: string[] = [];
  const read = backend.read.bind(backend);
  backend.read = async (...range) => {
    const bytes = await read(...range);
    bits.push(Buffer.from(bytes).toString('hex'));
    return bytes;
  };
  try {
    await act();
  } finally {
    backend.read = read;
  }
  return bits;
}
