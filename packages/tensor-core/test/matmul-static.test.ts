// The product for hardware is judged here without hardware. The text of every tile shows what the
// loads and stores of a warp touch. The choice of tiles shows which tile the products of models
// get, how much of it is wasted and how many workgroups run. bench/kernels/isa.mjs judges the code
// that a GPU's compiler makes of the tiles.

import { byteSize } from '@shardweave/dtypes';
import { expect, test } from 'vitest';
import {
  chooseHardwareTile,
  HARDWARE_TILES,
  numGroups,
  partsOf,
  wasteOf,
} from '../src/backends/webgpu/kernels/matmul/matmul-hardware.js';
import { matmulKernel, tileName } from '../src/backends/webgpu/kernels/matmul/matmul-tiles.js';
import { judgeOperand } from './support/warp-judge.js';

/**
 * The most turns of workgroup memory. 4 are the best, and a quarter more is allowed for accesses
 * that cross a border.
 */
const MOST_TURNS = 5;
/**
 * The most sectors of a load from rows at any offset. Such rows share sectors with their neighbors,
 * which the next block of k then finds in a cache.
 */
const MOST_SECTORS_NARROW = 8;
/**
 * The fewest workgroups: two for each of the 132 processors of the largest chips. Narrow layers of
 * other models have at least one for each.
 */
const LEAST_GROUPS = { 'GPT-2 124M': 264, others: 132 };
const MOST_WASTE = 1.25;
const TOKENS = 8 * 1024;

const LAYOUTS = [
  [false, false],
  [false, true],
  [true, false],
  [true, true],
] as const;

/** The [in, out] of the linear layers of models. The last one is the head. */
const MODELS = {
  'GPT-2 124M': [
    [768, 2304],
    [768, 768],
    [768, 3072],
    [3072, 768],
    [768, 50257],
  ],
  'SmolLM2 135M': [
    [576, 576],
    [576, 192],
    [576, 1536],
    [1536, 576],
    [576, 49152],
  ],
  'Llama 3.2 1B': [
    [2048, 2048],
    [2048, 512],
    [2048, 8192],
    [8192, 2048],
    [2048, 128256],
  ],
  'Qwen2.5 0.5B': [
    [896, 896],
    [896, 128],
    [896, 4864],
    [4864, 896],
    [896, 151936],
  ],
  'Qwen3 0.6B': [
    [1024, 2048],
    [1024, 1024],
    [2048, 1024],
    [1024, 3072],
    [3072, 1024],
    [1024, 151936],
  ],
} as const;

test.each(
  HARDWARE_TILES.flatMap((tile) =>
    (['f32', 'f16'] as const).flatMap((dtype) =>
      [true, false].map((isWide) => ({ tile, dtype, isWide })),
    ),
  ),
)(
  'a warp loads whole sectors and meets each bank once: $tile.m x $tile.n x $tile.k, $dtype, wide $isWide',
  ({ tile, dtype, isWide }) => {
    for (const [transposeA, transposeB] of LAYOUTS) {
      const { wgsl, workgroupSize } = matmulKernel(
        {
          ...{ a: dtype, b: dtype, out: dtype, bias: undefined, accumulate: false },
          ...{ transposeA, transposeB, hasShaderF16: true, sums: undefined },
          wide: { a: isWide, b: isWide, out: isWide },
          epilogue: undefined,
        },
        tile,
      );
      const extent = { threads: workgroupSize[0], row: isWide ? 768 : 50257 };
      const unit = { width: isWide ? 4 : 1, bytes: byteSize(dtype) };
      for (const name of ['a', 'b'] as const) {
        const counts = judgeOperand(wgsl, name, { ...extent, ...unit });
        const where = `${tileName(tile)} ${name} of ${transposeA} ${transposeB}`;
        expect(counts.loadSectors, where).toBeLessThanOrEqual(
          isWide ? MOST_TURNS : MOST_SECTORS_NARROW,
        );
        expect(counts.readTurns, where).toBeLessThanOrEqual(MOST_TURNS);
        if (isWide) {
          expect(counts.stageTurns, where).toBeLessThanOrEqual(MOST_TURNS);
        }
      }
    }
  },
);

test.each(Object.entries(MODELS))('products of %s waste little and fill a GPU', (model, layers) => {
  const least = model === 'GPT-2 124M' ? LEAST_GROUPS[model] : LEAST_GROUPS.others;
  for (const [inner, outer] of layers) {
    for (const [m, n, k] of [
      [TOKENS, outer, inner],
      [TOKENS, inner, outer],
      [inner, outer, TOKENS],
    ] as const) {
      const extent = { m, n, k, batches: 1 };
      const tile = chooseHardwareTile(extent, HARDWARE_TILES);
      const name = `${m} x ${n} x ${k}: ${tileName(tile)}`;
      expect(wasteOf(extent, tile), name).toBeLessThanOrEqual(MOST_WASTE);
      expect(numGroups(extent, tile), name).toBeGreaterThanOrEqual(least);
    }
  }
});

test('parts of a sum cover it, begin where blocks do, and are none of a short one', () => {
  for (const k of [1, 511, 1023, 1024, 1100, 8192, 50257]) {
    const { numParts, partK } = partsOf({ m: 768, n: 768, k, batches: 1 });
    expect(numParts * partK).toBeGreaterThanOrEqual(k);
    expect((numParts - 1) * partK).toBeLessThan(k);
    expect(numParts === 1 || partK % 16 === 0).toBe(true);
    expect(numParts > 1).toBe(k >= 1024);
  }
  expect(partsOf({ m: 768, n: 768, k: 8192, batches: 1 }).numParts).toBe(4);
  expect(partsOf({ m: 768, n: 3072, k: 8192, batches: 1 }).numParts).toBe(1);
  expect(partsOf({ m: 8192, n: 768, k: 768, batches: 1 }).numParts).toBe(1);
});
