// The text of every kernel for hardware: those that the conformance cases reach on Dawn's null driver,
// which computes nothing, and the products of every tile, whose choice depends on size. Needs the built
// packages.
import { kernelCases } from '../../packages/tensor-core/dist/testing.js';
import { createWebGpuBackend } from '../../packages/tensor-core/dist/webgpu.js';
import { openNodeGpu } from '../../packages/tensor-core/dist/webgpu-node.js';

export const TILES = [
  'shared 128x128x8/8',
  'shared 128x64x8/8',
  'shared 64x64x8/8',
  'shared 64x64x16/4',
  'shared 32x32x16/4',
];
const DTYPES = ['f32', 'f16', 'bf16'];
const LAYOUTS = [
  [false, false],
  [false, true],
  [true, false],
];
/** Rows that start at multiples of four elements, and rows that do not. */
const EXTENTS = [
  { m: 128, n: 128, k: 64 },
  { m: 126, n: 126, k: 62 },
];
const SIZES = ['flat', 'small', 'medium', 'large', 'huge'];

/** @returns {Promise<{label: string, wgsl: string}[]>} without repeats, in the order they are met */
export async function hardwareKernels() {
  const gpu = openNodeGpu({ flags: ['backend=null'] });
  const adapter = await gpu.requestAdapter();
  const device = await adapter.requestDevice({
    requiredFeatures: ['shader-f16'],
    requiredLimits: {
      maxBufferSize: adapter.limits.maxBufferSize,
      maxStorageBufferBindingSize: adapter.limits.maxStorageBufferBindingSize,
    },
  });
  const found = new Map();
  const create = device.createShaderModule.bind(device);
  device.createShaderModule = (descriptor) => {
    found.set(descriptor.code, descriptor.label);
    return create(descriptor);
  };
  const backend = await createWebGpuBackend({ device, kernelProfile: 'hardware' });
  products(backend);
  for (const { run } of kernelCases()) {
    await run(backend).catch(() => {}); // the values are wrong
  }
  await backend.sync();
  await backend.dispose();
  device.destroy();
  return [...found].map(([wgsl, label]) => ({ label, wgsl }));
}

function products(backend) {
  const buffers = ['a', 'b', 'out'].map((name) => backend.alloc(4 * 128 * 128, name));
  for (const tile of TILES) {
    for (const dtype of DTYPES) {
      for (const [transposeA, transposeB] of LAYOUTS) {
        const letters = `${transposeA ? 'T' : 'N'}${transposeB ? 'T' : 'N'}`;
        for (const size of SIZES) {
          backend.importMatmulChoices({ [`${letters} ${dtype} ${dtype} ${dtype} ${size}`]: tile });
        }
        for (const { m, n, k } of EXTENTS) {
          const view = (index, count) => ({
            buffer: buffers[index],
            byteOffset: 0,
            dtype,
            size: count,
          });
          backend.run('matmul', {
            ...{ a: view(0, m * k), b: view(1, k * n), out: view(2, m * n), bias: undefined },
            ...{ m, n, k, transposeA, transposeB },
            ...{ aRow: transposeA ? m : k, bRow: transposeB ? k : n, outRow: n },
            ...{ batch: [1, 1], aBatch: [0, 0], bBatch: [0, 0], outBatch: [0, 0] },
            ...{ alpha: 1, accumulate: false },
          });
        }
      }
    }
  }
  for (const buffer of buffers) {
    backend.free(buffer);
  }
}
