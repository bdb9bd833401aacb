// Kernels give the right values where their compiler assumes that there are no NaNs and no
// infinities. webgpu-backend.test.ts holds some cases of attention to that.

import { hiddenKeyKernelCases, kernelCases } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend, type WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { foldTexts } from './support/fast-math.js';
import { openTilesDevice, tilesReason, title } from './support/webgpu-kit.js';

const CHOSEN = [
  /^attention f32 \S+ \S+ \S+ \S+ (?!.*p 0\.3).*(documents|window|mask|scores? of -inf)/,
  /^(reduce|softmax|crossEntropy|unary|extremumBackward) f32 of NaN/,
];

describe.skipIf(tilesReason !== undefined)(title('kernels by fast math', tilesReason), () => {
  let gpu: GPUDevice;
  let backend: WebGpuBackend;
  beforeAll(async () => {
    gpu = await openTilesDevice();
    foldTexts(gpu);
    backend = await createWebGpuBackend({ device: gpu, kernelProfile: 'hardware' });
  });
  afterAll(async () => {
    await backend.dispose();
    gpu.destroy();
  });

  const cases = [...kernelCases(), ...hiddenKeyKernelCases()];
  for (const pattern of CHOSEN) {
    const chosen = cases.filter(({ name }) => pattern.test(name));
    test(`there are cases of ${pattern}`, () => {
      expect(chosen.length).toBeGreaterThan(0);
    });
    for (const { name, run } of chosen) {
      test(name, () => run(backend));
    }
  }
});
