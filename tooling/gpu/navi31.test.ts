// Compiles a kernel of each family by a real GPU compiler, on machines that have the driver that
// the gates were checked with. The kernel must have no spills, enough waves, wide loads, and few
// instructions besides multiply-adds. bench/kernels/isa.mjs does this with all kernels.

import { kernelCases } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { expect, it } from 'vitest';
import { hardwareKernels } from '../../bench/kernels/hardware-kernels.mjs';
import { CHECKED_DRIVER, compileKernels, whyNoCompiler } from '../../bench/kernels/navi31.mjs';

/** Conformance cases that run the kernels below, and a few others. */
const CASES = [
  'matmul f32 of all shapes in aligned rows',
  'matmul f16 of all shapes in aligned rows',
  'softmax f32 of NaN and infinities, and backward',
  'layerNorm f32 of NaN and infinities, and backward',
  'crossEntropy f32 of NaN and infinities, and backward',
  'reduce f32 of NaN and infinities',
  'adam with f32 gradients',
  'attention f32 [1, 2/1, 70/70, 64] isCausal true, isAligned true',
];
/** Patterns of labels. The first kernel that fits each one is compiled. */
const FAMILIES = [
  /^matmul NN f32 f32 to f32 wide a b .*128x128/,
  /^matmul NT f32 f32 to f32 wide a b .*128x128/,
  /^matmul TN f32 f32 to f32 wide a b .*128x128/,
  /^matmul NN f16 f16 .* wide a b .*128x64/,
  /^matmul parts/,
  /^sums of parts/,
  /^softmax f32/,
  /^rowNorm centered f32/,
  /^rowNormBackward centered f32/,
  /^crossEntropyBackward/,
  /^reduce sum/,
  /^adam/,
  /^attention f32 wide/,
  /^attention queries f32 wide/,
  /^attention keys f32 wide/,
];

const missing = whyNoCompiler();

it.skipIf(missing !== undefined)(
  `gates hold for navi31${missing ? ` (${missing})` : ''}`,
  async (context) => {
    const cases = kernelCases().filter(({ name }) => CASES.includes(name));
    expect(cases.map(({ name }) => name).sort()).toEqual(CASES.toSorted());
    const packages = { createWebGpuBackend, openNodeGpu, kernelCases: () => cases };
    const texts = await hardwareKernels({ packages });
    const chosen = FAMILIES.map((family) => texts.find(({ label }) => family.test(label)));
    expect(FAMILIES.filter((_, i) => chosen[i] === undefined)).toEqual([]);
    const { driver, kernels } = compileKernels(chosen.map((one) => one!));
    if (kernels === undefined) {
      context.skip(`the gates were checked on ${CHECKED_DRIVER}, this is ${driver}`);
      return;
    }
    expect(kernels.filter(({ failures }) => failures.length > 0)).toEqual([]);
  },
);
