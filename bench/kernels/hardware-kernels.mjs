// The text of every kernel for hardware. These are the kernels that the conformance cases reach on
// Dawn's null driver, which computes nothing, and the products with each tile, since the choice of
// a tile depends on sizes. By default it needs the built packages.

export const TILES = [
  'shared 128x128x8/8',
  'shared 128x64x8/8',
  'shared 64x64x8/8',
  'shared 64x64x16/4',
  'shared 32x32x16/4',
];
/** Tiles of matrix units. navi31 offers them for f16 only. */
const MATRIX_TILES = [
  'matrix 128x128x32/16x16x16',
  'matrix 128x64x32/16x16x16',
  'matrix 64x64x32/16x16x16',
];
const ADAPTER_INFO = {
  ...{ vendor: '', architecture: '', device: '', description: 'navi31', isFallbackAdapter: false },
  ...{ subgroupMinSize: 32, subgroupMaxSize: 64 },
  subgroupMatrixConfigs: [
    { componentType: 'f16', resultComponentType: 'f32', ...{ M: 16, N: 16, K: 16 } },
  ],
};
const FEATURES = [
  'shader-f16',
  'subgroups',
  'subgroup-size-control',
  'chromium-experimental-subgroup-matrix',
];
const LIMITS = { maxComputeWorkgroupStorageSize: 32768, maxComputeInvocationsPerWorkgroup: 1024 };
/**
 * Replaces the text that the null driver would compile. That driver offers less than the chip, and
 * nothing runs there.
 */
const NOTHING = '@compute @workgroup_size(1) fn main() {}';
const DTYPES = ['f32', 'f16', 'bf16'];
const LAYOUTS = [
  [false, false],
  [false, true],
  [true, false],
];
/**
 * Extents with rows that start at multiples of four elements, and extents with rows that do not.
 */
const EXTENTS = [
  { m: 128, n: 128, k: 64 },
  { m: 126, n: 126, k: 62 },
];
const SIZES = ['flat', 'small', 'medium', 'large', 'huge'];

async function builtPackages() {
  const names = ['testing', 'webgpu', 'webgpu-node'];
  const load = (name) => import(`../../packages/tensor-core/dist/${name}.js`);
  return Object.assign({}, ...(await Promise.all(names.map(load))));
}

/**
 * The texts without repeats, in the order in which they are met. By default they are those for a
 * chip with matrix units. Tests pass the packages' sources, and ask for the other kernels too.
 */
export async function hardwareKernels({
  packages,
  features = FEATURES,
  kernelProfile = 'hardware',
  tiles = [...TILES, ...MATRIX_TILES],
} = {}) {
  const { kernelCases, createWebGpuBackend, openNodeGpu } = packages ?? (await builtPackages());
  const gpu = openNodeGpu({ flags: ['backend=null'] });
  const adapter = await gpu.requestAdapter();
  const device = await adapter.requestDevice({
    requiredLimits: {
      maxBufferSize: adapter.limits.maxBufferSize,
      maxStorageBufferBindingSize: adapter.limits.maxStorageBufferBindingSize,
    },
  });
  const found = new Map();
  const create = device.createShaderModule.bind(device);
  device.createShaderModule = (descriptor) => {
    found.set(descriptor.code, descriptor.label);
    return create({ label: descriptor.label, code: NOTHING });
  };
  const { maxBufferSize, maxStorageBufferBindingSize } = device.limits;
  const limits = { ...{ maxBufferSize, maxStorageBufferBindingSize }, ...LIMITS };
  Object.defineProperty(device, 'limits', { value: limits });
  Object.defineProperty(device, 'features', { value: new Set(features) });
  const options = { device, adapterInfo: ADAPTER_INFO, kernelProfile };
  const backend = await createWebGpuBackend(options);
  products(backend, tiles);
  for (const { run } of kernelCases()) {
    await run(backend).catch(() => {}); // the computed values are wrong
  }
  await backend.sync();
  await backend.dispose();
  device.destroy();
  return [...found].map(([wgsl, label]) => ({ label, wgsl }));
}

function epiloguesOf({ like, rows }) {
  const activation = 'geluTanh';
  return [
    { kind: 'add', addend: like },
    { kind: 'activate', activation, activated: like },
    { kind: 'slope', activation, at: like },
    {
      kind: 'crossEntropyBackward',
      ...{ targets: { ...rows, dtype: 'u32' }, lse: rows, dLoss: rows, first: 0, classes: 128 },
    },
  ];
}

function products(backend, names) {
  const buffers = ['a', 'b', 'out', 'beside'].map((name) => backend.alloc(4 * 128 * 128, name));
  const tiles = names.flatMap((tile) =>
    (MATRIX_TILES.includes(tile) ? ['f16'] : DTYPES).map((dtype) => ({ tile, dtype })),
  );
  for (const { tile, dtype } of tiles) {
    for (const [transposeA, transposeB] of LAYOUTS) {
      const letters = `${transposeA ? 'T' : 'N'}${transposeB ? 'T' : 'N'}`;
      const classes = SIZES.flatMap((size) =>
        [...new Set([dtype, 'f32'])].map((out) => `${letters} ${dtype} ${dtype} ${out} ${size}`),
      );
      backend.importMatmulChoices(Object.fromEntries(classes.map((name) => [name, tile])));
      for (const { m, n, k } of EXTENTS) {
        const view = (index, count) => ({
          buffer: buffers[index],
          byteOffset: 0,
          dtype,
          size: count,
        });
        const f32 = (index, count) => ({ ...view(index, count), dtype: 'f32' });
        const run = (out, beside = {}) =>
          backend.run('matmul', {
            ...{ a: view(0, m * k), b: view(1, k * n), out, bias: undefined },
            ...{ m, n, k, transposeA, transposeB },
            ...{ aRow: transposeA ? m : k, bRow: transposeB ? k : n, outRow: n },
            ...{ batch: [1, 1], aBatch: [0, 0], bBatch: [0, 0], outBatch: [0, 0] },
            ...{ alpha: 1, accumulate: false },
            ...beside,
          });
        run(view(2, m * n));
        // These are the epilogues that the layers of models use.
        for (const own of transposeA ? [] : new Set([view, f32])) {
          for (const epilogue of epiloguesOf({ like: own(3, m * n), rows: f32(3, m) })) {
            run(own(2, m * n), { epilogue });
          }
        }
        const out = f32(2, m * n);
        if (transposeA) {
          run(out, { aSums: f32(3, m) });
          run(out, { bSums: f32(3, n) });
        }
      }
    }
  }
  for (const buffer of buffers) {
    backend.free(buffer);
  }
}
