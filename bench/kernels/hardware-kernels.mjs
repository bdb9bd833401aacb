// The text of every kernel. These are the kernels that the conformance cases reach in a dry run,
// which compiles and computes nothing, and the products with each tile, since the choice of a tile
// depends on sizes. By default it needs the built packages.

/** Tiles of matrix units. navi31 offers them for f16 only. */
const MATRIX_TILES = [
  'matrix 128x128x32/16x16x16',
  'matrix 128x64x32/16x16x16',
  'matrix 64x64x32/16x16x16',
];
const TILES = {
  hardware: [
    'shared 128x128x8/8',
    'shared 128x64x8/8',
    'shared 64x64x8/8',
    'shared 64x64x16/4',
    'shared 32x32x16/4',
    ...MATRIX_TILES,
  ],
  software: ['direct 8x8x8', 'direct 4x4x8', 'broadcast 16x2x8', 'broadcast 32x2x8'],
};
const ADAPTER = { vendor: '', architecture: '', device: '', isFallbackAdapter: false };
/** What the made-up devices offer: an RDNA 3 chip, and Mesa's driver that runs on the CPU. */
const OFFERS = {
  hardware: {
    info: {
      ...{ ...ADAPTER, description: 'navi31', subgroupMinSize: 32, subgroupMaxSize: 64 },
      subgroupMatrixConfigs: [
        { componentType: 'f16', resultComponentType: 'f32', ...{ M: 16, N: 16, K: 16 } },
      ],
    },
    features: [
      'shader-f16',
      'subgroups',
      'subgroup-size-control',
      'chromium-experimental-subgroup-matrix',
    ],
  },
  software: {
    info: { ...ADAPTER, description: 'llvmpipe', subgroupMinSize: 8, subgroupMaxSize: 8 },
    features: ['shader-f16', 'subgroups'],
  },
};
const LIMITS = { maxComputeWorkgroupStorageSize: 32768, maxComputeInvocationsPerWorkgroup: 1024 };
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
  kernelProfile = 'hardware',
  features = OFFERS[kernelProfile].features,
  tiles = TILES[kernelProfile],
} = {}) {
  const { kernelCases, createWebGpuBackend, openNodeGpu } = packages ?? (await builtPackages());
  const adapter = await openNodeGpu({ flags: ['backend=null'] }).requestAdapter();
  const device = await adapter.requestDevice();
  const found = new Map();
  device.createShaderModule = ({ code, label }) => {
    found.set(code, label);
    return {};
  };
  device.createComputePipelineAsync = async () => ({}); // nothing runs
  const { maxBufferSize, maxStorageBufferBindingSize } = adapter.limits;
  Object.defineProperty(device, 'limits', {
    value: { maxBufferSize, maxStorageBufferBindingSize, ...LIMITS },
  });
  Object.defineProperty(device, 'features', { value: new Set(features) });
  const options = { device, adapterInfo: OFFERS[kernelProfile].info, kernelProfile };
  const backend = await createWebGpuBackend(options);
  const planner = plannerOf(backend);
  products(accumulating(backend), planner, tiles);
  for (const { callOn } of kernelCases()) {
    callOn?.(planner);
  }
  await backend.preparePlanned();
  await backend.dispose();
  device.destroy();
  return [...found].map(([wgsl, label]) => ({ label, wgsl }));
}

/** Lets choices of tiles add up, so that the cases meet the last tile of each class. */
function accumulating(backend) {
  const table = {};
  return {
    importMatmulChoices: (more) => backend.importMatmulChoices(Object.assign(table, more)),
  };
}

/** A backend of buffers without bytes, whose calls are planned as in a dry run. */
function plannerOf(backend) {
  let nextId = 0;
  const alloc = (byteLength) => ({ id: nextId++, byteLength });
  const scratch = { take: alloc, give: () => {} };
  return {
    alloc,
    free: () => {},
    write: () => {},
    run: (kernel, call) => backend.planScratch(kernel, call, scratch),
  };
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

function products(backend, planner, names) {
  const buffers = ['a', 'b', 'out', 'beside'].map(() => planner.alloc(4 * 128 * 128));
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
          planner.run('matmul', {
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
}
