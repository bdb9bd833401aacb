// On a GPU the gradient of the logits of an f16 head is f16, so that matrix units can take its
// products. The gradients of the operands must stay as near to float64 as other f16 ones.

import {
  cast,
  Device,
  div,
  type KernelCalls,
  linearCrossEntropy,
  mul,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { describe, expect, onTestFinished, test } from 'vitest';
import { isLong, openTilesDevice, tilesReason, title } from './support/webgpu-kit.js';

const [ROWS, CLASSES, DIM] = [24, 301, 20];
/** With this many bytes the classes go in chunks of 128, 128 and 45. */
const CHUNK_BYTES = 4 * ROWS * 140;
const LOSS_SCALE = 2 ** 12;
const GPU = { kind: 'webgpu', isSoftware: false } as const;

/** A float64 device that says that it is a GPU, unless `info` says otherwise. */
function exactDevice(info: object = GPU): { device: Device; operands: string[] } {
  const backend = createReferenceBackend();
  Object.defineProperty(backend, 'info', { value: { ...backend.info, ...info } });
  const operands: string[] = [];
  const run = backend.run.bind(backend);
  backend.run = (kernel, call) => {
    if (kernel === 'matmul') {
      const { a, b, out } = call as KernelCalls['matmul'];
      operands.push(`${a.dtype} ${b.dtype} to ${out.dtype}`);
    }
    run(kernel, call);
  };
  return { device: new Device(backend), operands };
}

/** Returns the gradients of x and of the weight, of a loss that was scaled. */
function gradients(
  device: Device,
  { dtype = 'f16', chunkBytes = CHUNK_BYTES }: { dtype?: 'f16' | 'bf16'; chunkBytes?: number } = {},
): Promise<Float32Array[]> {
  return device.scope(async () => {
    const leaf = (rows: number, scale: number) => {
      const values = Float32Array.from({ length: rows * DIM }, (_, i) => scale * Math.sin(i * i));
      return device.tensor(values, [rows, DIM], { dtype, requiresGrad: true });
    };
    const [x, weight] = [leaf(ROWS, 3), leaf(CLASSES, 1)];
    const targets = device.tensor(Int32Array.from({ length: ROWS }, (_, i) => (i * 37) % CLASSES));
    const loss = linearCrossEntropy(x, targets, { weight, chunkBytes });
    await mul(loss, LOSS_SCALE).backward();
    const found = [];
    for (const leaf of [x, weight]) {
      found.push(Float32Array.from(await div(cast(leaf.grad!, 'f32'), LOSS_SCALE).toArray()));
      leaf.grad!.dispose();
    }
    return found;
  });
}

/** The root of the mean square of the differences, as a share of that of `wanted`. */
function errorOf(found: Float32Array, wanted: Float32Array): number {
  const square = (values: Float32Array) => values.reduce((sum, value) => sum + value ** 2, 0);
  return Math.sqrt(square(found.map((value, i) => value - wanted[i]!)) / square(wanted));
}

test.each([
  ['many chunks', CHUNK_BYTES],
  ['one chunk', 4 * ROWS * CLASSES],
  ['logits that are kept', 2 ** 30],
])('costs less than the rounding of the gradients themselves, in %s', async (_, chunkBytes) => {
  const { device, operands } = exactDevice();
  const found = await gradients(device, { chunkBytes });
  const exact = exactDevice({ kind: 'cpu' });
  const wanted = await gradients(exact.device, { chunkBytes });
  expect(operands.some((types) => types.startsWith('f32'))).toBe(false);
  expect(exact.operands.some((types) => types.startsWith('f32'))).toBe(true);
  for (const [i, values] of found.entries()) {
    const error = errorOf(values, wanted[i]!);
    expect(error).toBeGreaterThan(0);
    expect(error).toBeLessThan(2 ** -11);
  }
});

test('bf16 keeps f32, which no matrix unit would take from it', async () => {
  const { device, operands } = exactDevice();
  await gradients(device, { dtype: 'bf16' });
  expect(operands.filter((types) => types.startsWith('bf16'))).not.toContain('bf16 bf16 to bf16');
  expect(operands.filter((types) => types.startsWith('f32 bf16'))).not.toEqual([]);
});

// SwiftShader compiles these products for seconds.
const why = tilesReason ?? (isLong ? undefined : 'a long test');
describe.skipIf(why !== undefined)(title('the kernels for hardware', why), () => {
  test('make the slopes in the product itself, also where rows are no whole vectors', async () => {
    const names = ['vendor', 'architecture', 'device', 'description'];
    const adapterInfo = Object.fromEntries(names.map((name) => [name, 'g'])) as never;
    const gpu = await openTilesDevice();
    const kernels: string[] = [];
    const create = gpu.createComputePipeline.bind(gpu);
    gpu.createComputePipeline = (descriptor) => {
      kernels.push(descriptor.label!);
      return create(descriptor);
    };
    const backend = await createWebGpuBackend({
      device: gpu,
      adapterInfo,
      kernelProfile: 'hardware',
    });
    onTestFinished(async () => {
      await backend.dispose();
      gpu.destroy();
    });
    for (const chunkBytes of [CHUNK_BYTES, 4 * ROWS * CLASSES]) {
      const found = await gradients(new Device(backend), { chunkBytes });
      const wanted = await gradients(exactDevice().device, { chunkBytes });
      for (const [i, values] of found.entries()) {
        expect(errorOf(values, wanted[i]!)).toBeLessThan(2 ** -11);
      }
    }
    const slopes = kernels.filter((name) => name.includes('crossEntropyBackward'));
    expect(slopes.length).toBeGreaterThan(0);
    for (const name of slopes) {
      expect(name).toMatch(/^matmul NT f16 f16 to f16 crossEntropyBackward wide a b out/);
    }
  });
});
