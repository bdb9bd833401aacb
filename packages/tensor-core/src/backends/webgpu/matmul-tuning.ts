// Measures candidate tiles on the device, on products of the sizes that training makes. Asked for
// explicitly: a cold start isn't spent on it.

import type { DType } from '@shardweave/dtypes';
import type { Backend } from '../../backend.js';
import type { KernelContext } from './context.js';
import {
  candidateTiles,
  defaultTile,
  type MatmulCall,
  matmulWithTile,
  shapeClass,
} from './kernels/matmul.js';
import { type Tile, tileName } from './kernels/matmul-tiles.js';

export interface MatmulTuning {
  /** Operand and output dtypes to tune for. Default f32. */
  readonly dtypes?: readonly DType[];
  /** [m, n, k] of products to tune for. Default one of each size class. */
  readonly shapes?: readonly (readonly [m: number, n: number, k: number])[];
}

const SHAPES_SOFTWARE = [
  [8, 512, 512],
  [128, 128, 32],
  [256, 256, 256],
  [512, 512, 512],
] as const;
const SHAPES_HARDWARE = [
  [8, 4096, 4096],
  [128, 128, 64],
  [320, 320, 320],
  [768, 768, 768],
  [2048, 2048, 2048],
] as const;
/** The best of so many, in turn: anything else on the machine makes runs slower, for a while. */
const ROUNDS = 5;
/** Below this a tile is not called faster: on a busy machine it is noise, and the default is known. */
const MARGIN = 0.1;

/** The three products of a linear layer: forward with either storage, and the weight's gradient. */
const TRANSPOSES = [
  { transposeA: false, transposeB: false },
  { transposeA: false, transposeB: true },
  { transposeA: true, transposeB: false },
] as const;

export async function tuneMatmul(
  backend: Backend,
  ctx: KernelContext,
  options: MatmulTuning,
): Promise<void> {
  const { dtypes = ['f32'] } = options;
  const shapes = options.shapes ?? (ctx.profile.isSoftware ? SHAPES_SOFTWARE : SHAPES_HARDWARE);
  const bytes = 4 * Math.max(...shapes.map(([m, n, k]) => Math.max(m * n, m * k, n * k)));
  const buffers = ['a', 'b', 'out'].map((name) => backend.alloc(bytes, `tuning ${name}`));
  try {
    for (const dtype of dtypes) {
      for (const [m, n, k] of shapes) {
        for (const transposes of TRANSPOSES) {
          const [a, b, out] = [m * k, k * n, m * n].map((size, i) => ({
            buffer: buffers[i]!,
            byteOffset: 0,
            dtype,
            size,
          }));
          await tuneOne(backend, ctx, {
            a: a!,
            b: b!,
            out: out!,
            bias: undefined,
            m,
            n,
            k,
            ...transposes,
            aRow: transposes.transposeA ? m : k,
            bRow: transposes.transposeB ? k : n,
            outRow: n,
            batch: [1, 1],
            aBatch: [0, 0],
            bBatch: [0, 0],
            outBatch: [0, 0],
            alpha: 1,
            accumulate: false,
          });
        }
      }
    }
  } finally {
    for (const buffer of buffers) {
      backend.free(buffer);
    }
  }
}

async function tuneOne(backend: Backend, ctx: KernelContext, call: MatmulCall): Promise<void> {
  const tiles = candidateTiles(ctx, call);
  for (const tile of tiles) {
    matmulWithTile(ctx, call, tile); // compiles
    await backend.sync();
  }
  const times = new Map<Tile, number>();
  for (let round = 0; round < ROUNDS; round++) {
    for (const tile of tiles) {
      const start = performance.now();
      matmulWithTile(ctx, call, tile);
      await backend.sync();
      const ms = performance.now() - start;
      times.set(tile, Math.min(ms, times.get(tile) ?? ms));
    }
  }
  let best = defaultTile(ctx, call, tiles);
  for (const [tile, ms] of times) {
    if (ms < (1 - MARGIN) * times.get(best)!) {
      best = tile;
    }
  }
  ctx.matmulChoices.set(shapeClass(call), tileName(best));
}
