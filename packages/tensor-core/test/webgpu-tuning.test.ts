// These tests cover how tiles are chosen by measuring, where the choice is kept, and kernels that
// are compiled before they run.

import { mkdtempSync, readdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Device, matmul, softmax, sum } from '@shardweave/tensor-core';
import {
  createWebGpuBackend,
  listAdapters,
  type TuningStore,
  type WebGpuBackend,
} from '@shardweave/tensor-core/webgpu';
import { fileTuningStore, openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { afterEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { MatmulChoices } from '../src/backends/webgpu/kernel/matmul-choices.js';
import { KernelContext } from '../src/backends/webgpu/queue/context.js';
import { type MatmulTuning, tuneMatmul } from '../src/backends/webgpu/tuning/matmul-tuning.js';
import { reason, title, webGpu } from './support/webgpu-kit.js';

const PROFILE = {
  isSoftware: false,
  subgroupSize: undefined,
  hasShaderF16: false,
  matrixUnit: undefined,
  maxBindingBytes: 2 ** 30,
  maxInvocations: 1024,
  maxWorkgroupBytes: 32768,
};

/**
 * Tunes on a device whose products take the time that `msOf` gives for their tile. `disturbed`
 * scales the n-th measurement.
 */
async function tuneOn(
  msOf: (tile: string) => number,
  {
    leastMs,
    disturbed = () => 1,
    ...tuning
  }: { leastMs: number; disturbed?: (n: number) => number } & MatmulTuning,
) {
  const ran: string[] = [];
  const kernels = new Map<string, unknown>();
  const buffer = { id: 0, byteLength: 2 ** 20 };
  const scratch = { take: () => buffer, give: () => {} };
  const context = new KernelContext(PROFILE, {
    encoder: {
      kernel: (key, build) => {
        if (!kernels.has(key)) {
          kernels.set(key, { kernel: build() });
        }
        return kernels.get(key) as never;
      },
      dispatch: ({ kernel }) => void ran.push(kernel.label.replace(/.*(?=shared)/, '')),
      upload: () => {},
    },
    scratch: { current: scratch },
    tableMemory: scratch,
    matmulChoices: new MatmulChoices(),
  });
  const measured: { tile: string; repetitions: number }[] = [];
  const time = async (encode: () => void) => {
    ran.length = 0;
    encode();
    measured.push({ tile: ran[0]!, repetitions: ran.length });
    return disturbed(measured.length) * ran.length * msOf(ran[0]!);
  };
  const backend = { alloc: () => buffer, free: () => {} } as unknown as WebGpuBackend;
  await tuneMatmul(
    { backend, context, stopwatch: { leastMs, time }, prepare: async () => {} },
    { shapes: [[256, 256, 256]], ...tuning },
  );
  return { choices: context.matmulChoices.export(), measured };
}

describe('measuring', () => {
  const FAST = 'shared 64x64x8/8';
  test('the median of interleaved rounds counts, whatever disturbs some of them', async () => {
    const msOf = (tile: string) => (tile === FAST ? 0.8 : 1);
    // One measurement in three takes three times as long, and one in eleven seems to take no time.
    const disturbed = (n: number) => (n % 3 === 0 ? 3 : n % 11 === 0 ? 0.01 : 1);
    const { choices, measured } = await tuneOn(msOf, { leastMs: 4, disturbed });
    expect([...new Set(Object.values(choices))]).toEqual([FAST]);
    const tiles = new Set(measured.map(({ tile }) => tile));
    expect(tiles.size).toBe(5);
    const last = measured.slice(-tiles.size).map(({ tile }) => tile);
    expect(new Set(last)).toEqual(tiles); // A round has one measurement of each tile.
  });

  test('short products are repeated until the clock can measure them', async () => {
    const { measured } = await tuneOn(() => 0.06, { leastMs: 4 });
    expect(measured.at(-1)!.repetitions).toBe(128); // 64 repetitions take 3.84 ms.
  });

  test('a tile that is hardly faster is not chosen', async () => {
    const { choices } = await tuneOn((tile) => (tile === FAST ? 0.97 : 1), { leastMs: 4 });
    expect(Object.values(choices)).not.toContain(FAST);
  });

  test('products of 16 bits are measured with outputs of 16 bits and of f32', async () => {
    const { choices } = await tuneOn(() => 1, { leastMs: 1, dtypes: ['f16'] });
    const outputs = ['f16', 'f32'].flatMap((out) =>
      ['NN', 'NT', 'TN'].map((letters) => `${letters} f16 f16 ${out} medium`),
    );
    expect(Object.keys(choices).sort()).toEqual(outputs.sort());
  });

  test('ends in time, with the largest products measured', async () => {
    let now = 1000;
    const clock = vi.spyOn(performance, 'now').mockImplementation(() => now);
    onTestFinished(() => clock.mockRestore());
    const passing = (n: number) => {
      now += 10 * Math.sign(n);
      return 1;
    };
    // A class takes 2 measurements for its repetitions and 7 of each of 5 tiles.
    const options = {
      leastMs: 1,
      disturbed: passing,
      shapes: undefined,
      mostMs: 10 * (37 * 2 + 9),
    };
    const { choices, measured } = await tuneOn(() => 1, options as never);
    expect(Object.keys(choices)).toEqual(['NN f32 f32 f32 huge', 'NT f32 f32 f32 huge']);
    expect(measured).toHaveLength(37 * 2 + 10);
  });

  test.skipIf(reason !== undefined)(title('by timestamps, of a device that has them'), async () => {
    const adapter = await webGpu().requestAdapter();
    // Without subgroups there are two tiles.
    const device = await adapter!.requestDevice({ requiredFeatures: ['timestamp-query'] });
    const backend = await createWebGpuBackend({ device });
    const table = await backend.tuneMatmul({ shapes: [[8, 64, 64]] });
    expect(Object.keys(table)).toHaveLength(3);
    expect(Object.values(table).every((tile) => /^direct [48]x[48]x8$/.test(tile))).toBe(true);
    await backend.dispose();
    device.destroy();
  });
});

describe('what was measured', () => {
  /** Opens a device on a driver that computes nothing, under any names. */
  async function openNamed(
    tuningStore: TuningStore,
    names: Partial<Record<'device' | 'description' | 'architecture' | 'vendor', string>> = {},
  ): Promise<WebGpuBackend> {
    const device = await (await openNull().requestAdapter())!.requestDevice();
    const info = { vendor: 'v', architecture: 'a', device: 'd', description: 'driver 1' };
    const adapterInfo = { ...info, ...names, isFallbackAdapter: false } as GPUAdapterInfo;
    return createWebGpuBackend({ device, adapterInfo, tuningStore, kernelProfile: 'software' });
  }
  const shapes = [[8, 64, 64]] as const;

  test('is found by the next device of its adapter, driver and kernels, and measured once', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'tiles-'));
    const store = fileTuningStore(folder);
    const first = await openNamed(store);
    expect(first.exportMatmulChoices()).toEqual({});
    const table = await first.tuneMatmul({ shapes });
    expect(Object.keys(table)).toHaveLength(3);
    const second = await openNamed(store);
    expect(second.exportMatmulChoices()).toEqual(table);
    const { submits } = second.statistics();
    expect(await second.tuneMatmul({ shapes })).toEqual(table);
    expect(second.statistics().submits - submits).toBe(0);
    for (const names of [{ device: 'e' }, { description: 'driver 2' }, { vendor: 'w' }]) {
      expect((await openNamed(store, names)).exportMatmulChoices()).toEqual({});
    }
    for (const damaged of ['{"a": 1}', '{"a"', '']) {
      for (const name of readdirSync(folder)) {
        writeFileSync(join(folder, name), damaged);
      }
      expect((await openNamed(store)).exportMatmulChoices()).toEqual({});
    }
  });

  test('is dropped silently where there is no place to store it', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'tiles-'));
    const file = join(folder, 'file');
    writeFileSync(file, '');
    const store = fileTuningStore(join(file, 'inside'));
    await store.write('any', { a: 'b' });
    expect(await store.read('any')).toBeUndefined();
  });
});

describe('kernels that a dry run met', () => {
  let backend: WebGpuBackend | undefined;
  afterEach(async () => {
    await backend?.dispose();
    backend = undefined;
  });

  async function openCounted(changed: (code: string, label: string) => string = (code) => code) {
    const gpu = await (await openNull().requestAdapter())!.requestDevice();
    const compiled: string[] = [];
    const create = gpu.createComputePipeline.bind(gpu);
    gpu.createComputePipeline = (descriptor) => {
      compiled.push(descriptor.label!);
      return create(descriptor);
    };
    const createModule = gpu.createShaderModule.bind(gpu);
    gpu.createShaderModule = ({ code, label = '' }) =>
      createModule({ label, code: changed(code, label) });
    backend = await createWebGpuBackend({ device: gpu, kernelProfile: 'hardware' });
    const device = new Device(backend);
    const step = () =>
      device.scope(async () => {
        const x = device.zeros([8, 16], { requiresGrad: true });
        const loss = sum(softmax(matmul(x, x, { transposeB: true })));
        await loss.backward();
        await loss.item();
      });
    return { gpu, backend, device, step, compiled };
  }

  test('are compiled before the first step, which waits for none', async () => {
    const { backend, device, step, compiled } = await openCounted();
    await device.dryRun(step);
    expect(backend.statistics().pipelines).toBe(0);
    // Two ranks that share the device ask at once, and both wait.
    const pipelines = () => backend.statistics().pipelines;
    const counts = [backend.preparePlanned(), backend.preparePlanned()].map((one) =>
      one.then(pipelines),
    );
    const [first, second] = await Promise.all(counts);
    expect(first).toBeGreaterThan(5);
    expect(second).toBe(first);
    await step();
    expect(compiled).toEqual([]);
    expect(pipelines()).toBe(first);
  });

  test('fail by name, and the device goes on without them', async () => {
    const { backend, device, step } = await openCounted((code, label) =>
      label.startsWith('softmax')
        ? code.replace('fn main', 'fn other() -> u32 { return lost; }\nfn main')
        : code,
    );
    await device.dryRun(step);
    await expect(backend.preparePlanned()).rejects.toMatchObject({
      code: 'SHADER',
      label: expect.stringMatching(/^softmax/),
      message: expect.stringMatching(/\d+:\d+ error: .*lost/),
    });
    await backend.sync();
    await device.zeros([4]).toArray();
  });

  test('reject with the loss of their device', async () => {
    const { gpu, backend, device, step } = await openCounted();
    await device.dryRun(step);
    const pending = backend.preparePlanned().catch((error) => error);
    gpu.destroy();
    await gpu.lost;
    await pending; // Dawn may have compiled them.
    await expect(backend.preparePlanned()).rejects.toMatchObject({ code: 'DEVICE_LOST' });
  });
});

const UNNAMED = { vendor: '', architecture: '', device: '', description: '' };

test('an adapter without info is an unknown one, of hardware unless it says otherwise', async () => {
  const gpu = openNull();
  for (const isFallbackAdapter of [undefined, true]) {
    const old = {
      requestAdapter: async () => {
        const adapter = (await gpu.requestAdapter())!;
        return new Proxy(adapter, {
          get: (own, name) => {
            if (name === 'info') {
              return undefined;
            }
            const value = name === 'isFallbackAdapter' ? isFallbackAdapter : Reflect.get(own, name);
            return typeof value === 'function' ? value.bind(own) : value;
          },
        });
      },
    } as unknown as GPU;
    const backend = await createWebGpuBackend({ gpu: old });
    const isSoftware = isFallbackAdapter === true;
    expect(backend.info).toMatchObject({ description: 'unknown adapter', isSoftware });
    await backend.dispose();
    const [described] = await listAdapters(old);
    expect(described).toMatchObject({ name: 'unknown adapter', vendor: '', isSoftware });
    const opening = createWebGpuBackend({ gpu: old, allowSoftware: false });
    if (isSoftware) {
      await expect(opening).rejects.toMatchObject({ reason: 'software-adapter' });
    } else {
      await (await opening).dispose();
    }
  }
});

test('an adapter whose names are all empty, as in Firefox, is an unknown one wherever it is told', async () => {
  const adapter = (await openNull().requestAdapter())!;
  const device = await adapter.requestDevice();
  const info = { ...UNNAMED, isFallbackAdapter: false } as GPUAdapterInfo;
  const backend = await createWebGpuBackend({ device, adapterInfo: info });
  expect(backend.info.description).toBe('unknown adapter');
  expect(backend.info.compiledFor).toBe('hardware (unknown adapter)');
  device.destroy();
  const lost = await backend.sync().catch((error: unknown) => error);
  expect(lost).toMatchObject({ message: expect.stringContaining('device of unknown adapter was') });
  await backend.dispose();
});

function openNull(): GPU {
  return openNodeGpu({ flags: ['backend=null'] });
}
