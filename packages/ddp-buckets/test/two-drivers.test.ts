// Two drivers of one name, as a browser gives a family of GPUs one, have kernels that round
// differently. Their replicas stay equal, because the numeric classes tell them apart.

import { createMemoryGroup } from '@shardweave/collectives';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { clipCoefficient, gradNorm, Linear, Sgd, scaleGradients } from '@shardweave/nn';
import { crossEntropy, Device, tanh } from '@shardweave/tensor-core';
import { createWebGpuBackend, type WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { expect, it } from 'vitest';
import { noSwiftShader, openSwiftShader } from '../../../tooling/test-kit/swift-shader.ts';
import { noWebGpu } from '../../../tooling/test-kit/webgpu-device.ts';

const WIDTH = 32;
const NUM_STEPS = 6;
/** The norm by which each rank clips, whose power is the driver's; a square is not. */
const NORM_TYPE = 3;

/** What Chrome and Safari tell of an adapter of any Mac. */
const NAMES = {
  ...{ vendor: 'apple', architecture: 'metal-3', device: '', description: '' },
  isFallbackAdapter: false,
} as GPUAdapterInfo;

/** Opens a driver under these names, with the kernels that compile fast on both. */
async function openNamed(gpu: GPU) {
  const device = await (await gpu.requestAdapter())!.requestDevice();
  const options = { device, adapterInfo: NAMES, kernelProfile: 'software', isPaced: true } as const;
  return { device, backend: await createWebGpuBackend(options) };
}

async function trainOn(backends: readonly WebGpuBackend[]) {
  const groups = createMemoryGroup(backends.length);
  return Promise.all(
    groups.map(async (group, rank) => {
      const device = new Device(backends[rank]!, { seed: 3 });
      const layer = new Linear(device, { inFeatures: WIDTH, outFeatures: WIDTH });
      const ddp = new DistributedDataParallel(layer, { processGroup: group });
      const optimizer = new Sgd(layer.parameters(), { lr: 1 });
      for (let step = 0; step < NUM_STEPS; step++) {
        const values = Float32Array.from({ length: 4 * WIDTH }, (_, i) =>
          Math.sin(i + rank + step),
        );
        const targets = Uint32Array.from({ length: 4 }, (_, i) => (i * 7 + step) % WIDTH);
        const y = tanh(await ddp.call(device.tensor(values, [4, WIDTH])));
        await device.backward(crossEntropy(y, device.tensor(targets, [4])));
        const norm = await gradNorm(layer, { normType: NORM_TYPE });
        const factor = device.full([1], clipCoefficient(norm, 0.1));
        await scaleGradients(layer.parameters(), factor);
        await optimizer.step();
        optimizer.zeroGrad();
        if (ddp.numericClasses.length > 1) {
          await ddp.syncParameters({ onlyTrained: true });
        }
      }
      const weight = [...(await layer.weight.toArray())];
      const { numericClasses: classes } = ddp;
      optimizer.dispose();
      ddp.dispose();
      device.dispose();
      await group.close();
      return { classes, weight };
    }),
  );
}

const reason = noWebGpu ?? noSwiftShader;

it.skipIf(reason !== undefined)(
  `ranks on two drivers of one name are of two classes, and keep equal weights${reason ? ` (${reason})` : ''}`,
  async () => {
    const own = await openNamed(openNodeGpu());
    const other = await openNamed(await openSwiftShader());
    const backends = [own.backend, other.backend];
    expect(new Set(backends.map(({ info }) => info.compiledFor)).size).toBe(1);
    const [first, second] = await trainOn(backends);
    expect(first!.weight.every(Number.isFinite)).toBe(true);
    expect(second!.weight).toEqual(first!.weight);
    expect(first!.classes).toHaveLength(2);
    expect(second!.classes).toEqual(first!.classes);
    await Promise.all(backends.map((backend) => backend.dispose()));
    own.device.destroy();
    other.device.destroy();
  },
);
