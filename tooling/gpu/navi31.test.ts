// Compiles a kernel of each family by a real GPU compiler, on machines that have the driver that
// the gates were checked with. The kernel must have no spills, enough waves, wide loads, and few
// instructions besides multiply-adds. bench/kernels/isa.mjs does this with all kernels.

import { kernelCases } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { expect, it } from 'vitest';
import { CHECKED_DRIVER, compileKernels, whyNoCompiler } from '../../bench/kernels/navi31.mjs';

/**
 * A tile for each dtype. In 16 bits a block that is twice as deep does not fit the specification's
 * workgroup memory at 128 x 128.
 */
const TILES = { f32: 'shared 128x128x8/8', f16: 'shared 128x64x8/8' };
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
  /^layerNorm f32/,
  /^layerNormBackward f32/,
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
    const gpu = openNodeGpu({ flags: ['backend=null'] });
    const device = await (await gpu.requestAdapter())!.requestDevice({
      requiredFeatures: ['shader-f16'],
    });
    const texts = new Map<string, string>();
    const create = device.createShaderModule.bind(device);
    device.createShaderModule = (descriptor) => {
      texts.set(descriptor.label!, descriptor.code);
      return create(descriptor);
    };
    const backend = await createWebGpuBackend({ device, kernelProfile: 'hardware' });
    const letters = ['NN', 'NT', 'TN'];
    const sizes = ['flat', 'small', 'medium'];
    const choices = Object.entries(TILES).flatMap(([dtype, tile]) =>
      letters.flatMap((of) =>
        sizes.map((size) => [`${of} ${dtype} ${dtype} ${dtype} ${size}`, tile]),
      ),
    );
    backend.importMatmulChoices(Object.fromEntries(choices));
    const cases = kernelCases().filter(({ name }) => CASES.includes(name));
    expect(cases.map(({ name }) => name).sort()).toEqual(CASES.toSorted());
    for (const { run } of cases) {
      await run(backend).catch(() => {}); // the computed values are wrong
    }
    await backend.dispose();
    device.destroy();
    const chosen = FAMILIES.map((family) => [...texts].find(([label]) => family.test(label)));
    expect(FAMILIES.filter((_, i) => chosen[i] === undefined)).toEqual([]);
    const { driver, kernels } = compileKernels(
      chosen.map((one) => ({ label: one![0], wgsl: one![1] })),
    );
    if (kernels === undefined) {
      context.skip(`the gates were checked on ${CHECKED_DRIVER}, this is ${driver}`);
      return;
    }
    expect(kernels.filter(({ failures }) => failures.length > 0)).toEqual([]);
  },
);
