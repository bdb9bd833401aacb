// Measures candidate tiles on the device, on products of the sizes that training makes. Each
// product is repeated until the clock's error no longer matters. Tuning runs only when it is asked
// for, so that no start of a program pays for it.

import type { DType } from '@shardweave/dtypes';
import type { Backend } from '../../backend.js';
import { ShaderError } from '../../errors.js';
import type { View } from '../../view.js';
import { KernelContext, type KernelEncoder } from './context.js';
import {
  candidateTiles,
  defaultTile,
  type MatmulCall,
  matmulWithTile,
  shapeClass,
} from './kernels/matmul.js';
import { type Tile, tileName } from './kernels/matmul-tiles.js';
import type { CompiledKernel } from './pipelines.js';
import { median, type Stopwatch } from './stopwatch.js';

/**
 * Which products the tuning of matmul tiles measures. A tile is the block of the result that one
 * workgroup computes.
 */
export interface MatmulTuning {
  /** The operand and output dtypes to tune for. The default is f32. */
  readonly dtypes?: readonly DType[];
  /** The sizes [m, n, k] of products to tune for. The default is one of each size class. */
  readonly shapes?: readonly (readonly [m: number, n: number, k: number])[];
  /** Whether known choices are measured again. The default is false. */
  readonly isAnew?: boolean;
}

export interface TuningParts {
  readonly backend: Backend;
  readonly context: KernelContext;
  readonly stopwatch: Stopwatch;
  /**
   * Compiles the kernels of what `encode` would run. Rejects with ShaderError for one that does not
   * compile.
   */
  prepare(encode: (context: KernelContext) => void): Promise<void>;
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
/**
 * Rounds of a measurement. Each times every candidate in turn, so that what slows the device down
 * slows all of them, and the median counts.
 */
const ROUNDS = 7;
/** The gain below which a tile is not called faster: the next run would choose another. */
const MARGIN = 0.05;
/** The most repetitions of a product; those that are still too short take hardly any time. */
const MOST_REPETITIONS = 1024;

/** The three products of a linear layer: forward with either storage, and the weight's gradient. */
const TRANSPOSES = [
  { transposeA: false, transposeB: false },
  { transposeA: false, transposeB: true },
  { transposeA: true, transposeB: false },
] as const;

/** Measures, and sets the choices of the context. */
export async function tuneMatmul(parts: TuningParts, options: MatmulTuning): Promise<void> {
  const { backend, context } = parts;
  const { dtypes = ['f32'], isAnew = false } = options;
  const shapes = options.shapes ?? (context.profile.isSoftware ? SHAPES_SOFTWARE : SHAPES_HARDWARE);
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
          const call = callOf([a!, b!, out!], [m, n, k], transposes);
          if (isAnew || context.matmulChoices.get(shapeClass(call)) === undefined) {
            await tuneOne(parts, call);
          }
        }
      }
    }
  } finally {
    for (const buffer of buffers) {
      backend.free(buffer);
    }
  }
}

async function tuneOne(parts: TuningParts, call: MatmulCall): Promise<void> {
  const { context, stopwatch } = parts;
  const candidates = candidateTiles(context, call);
  const tiles: Tile[] = [];
  for (const tile of candidates) {
    if (await compiles(parts, call, tile)) {
      tiles.push(tile);
    }
  }
  if (tiles.length === 0) {
    return;
  }
  const time = (tile: Tile, repetitions: number) =>
    stopwatch.time(() => {
      for (let i = 0; i < repetitions; i++) {
        matmulWithTile(context, call, tile);
      }
    });
  const usual = defaultTile(context, call, tiles);
  await time(usual, 1); // warms up
  let repetitions = 1;
  while ((await time(usual, repetitions)) < stopwatch.leastMs && repetitions < MOST_REPETITIONS) {
    repetitions *= 2;
  }
  const times = new Map<Tile, number[]>(tiles.map((tile) => [tile, []]));
  for (let round = 0; round < ROUNDS; round++) {
    for (const [tile, all] of times) {
      all.push(await time(tile, repetitions));
    }
  }
  const medianOf = (tile: Tile) => median(times.get(tile)!);
  const fastest = tiles.reduce((best, tile) => (medianOf(tile) < medianOf(best) ? tile : best));
  const isFaster = medianOf(fastest) < (1 - MARGIN) * medianOf(usual);
  context.matmulChoices.set(shapeClass(call), tileName(isFaster ? fastest : usual));
}

/** A driver may refuse a kernel for a feature that it offers; its other tiles still serve. */
async function compiles(parts: TuningParts, call: MatmulCall, tile: Tile): Promise<boolean> {
  try {
    await parts.prepare((context) => matmulWithTile(context, call, tile));
    return true;
  } catch (error) {
    if (error instanceof ShaderError) {
      return false;
    }
    throw error;
  }
}

/**
 * What choices hold for besides the adapter: the candidates and their text, one hash of all. A
 * kernel that is written anew is measured anew.
 */
export function tuningKey(context: KernelContext): string {
  const view = (dtype: DType): View => ({
    buffer: { id: -1, byteLength: 0 },
    byteOffset: 0,
    dtype,
    size: 4096,
  });
  let hash = 0x811c9dc5; // FNV-1a
  const add = (text: string) => {
    for (let i = 0; i < text.length; i++) {
      hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193) >>> 0;
    }
  };
  const encoder: KernelEncoder = {
    kernel: (_, build) => {
      const kernel = build();
      add(kernel.wgsl);
      return { kernel } as CompiledKernel;
    },
    dispatch: () => {},
    upload: () => {},
  };
  const scratch = { take: (byteLength: number) => ({ id: -1, byteLength }), give: () => {} };
  const texts = new KernelContext(context.profile, {
    encoder,
    scratch: { current: scratch },
    tableMemory: scratch,
    matmulChoices: context.matmulChoices,
  });
  for (const dtype of ['f32', 'f16', 'bf16'] as const) {
    const call = callOf([view(dtype), view(dtype), view(dtype)], [64, 64, 64], TRANSPOSES[0]);
    for (const tile of candidateTiles(context, call)) {
      add(tileName(tile));
      matmulWithTile(texts, call, tile);
    }
  }
  return `kernels ${hash.toString(16)}`;
}

/** A dense product of three views. */
function callOf(
  [a, b, out]: readonly [View, View, View],
  [m, n, k]: readonly [number, number, number],
  transposes: (typeof TRANSPOSES)[number],
): MatmulCall {
  return {
    a,
    b,
    out,
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
  };
}
