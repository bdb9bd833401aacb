// Measures candidate tiles on the device, on products of the sizes that training makes. Each
// product is repeated until the clock's error no longer matters. Tuning runs only when it is asked
// for, so that no start of a program pays for it.

import type { DType } from '@shardweave/dtypes';
import type { Backend } from '../../../backend.js';
import { ShaderError } from '../../../errors.js';
import type { BackendBuffer, View } from '../../../view.js';
import {
  candidateTiles,
  defaultTile,
  type MatmulCall,
  matmulWithTile,
  shapeClass,
} from '../kernels/matmul/matmul.js';
import { type Tile, tileName } from '../kernels/matmul/matmul-tiles.js';
import { KernelContext, type KernelEncoder } from '../queue/context.js';
import type { CompiledKernel } from '../queue/pipelines.js';
import { median, type Stopwatch } from './stopwatch.js';

/**
 * Which products the tuning of matmul tiles measures. A tile is the block of the result that one
 * workgroup computes.
 */
export interface MatmulTuning {
  /**
   * The dtypes of operands to tune for. Outputs have the same dtype, or f32. The default is f32.
   */
  readonly dtypes?: readonly DType[];
  /** The sizes [m, n, k] of products to tune for. The default is one of each size class. */
  readonly shapes?: readonly (readonly [m: number, n: number, k: number])[];
  /** Whether known choices are measured again. The default is false. */
  readonly isAnew?: boolean;
  /**
   * The milliseconds after which no further class is measured, and one that is being measured is
   * dropped. The large products come first. The default is no limit.
   */
  readonly mostMs?: number;
}

export interface TuningParts {
  readonly backend: Pick<Backend, 'alloc' | 'free'>;
  readonly context: KernelContext;
  readonly stopwatch: Stopwatch;
  /**
   * Compiles the kernels of what `encode` would run. Rejects with ShaderError for one that does not
   * compile.
   */
  prepare(encode: (context: KernelContext) => void): Promise<void>;
}

/** Training spends most of its time in the first ones. */
const SHAPES_SOFTWARE = [
  [512, 512, 512],
  [256, 256, 256],
  [128, 128, 32],
  [8, 512, 512],
] as const;
const SHAPES_HARDWARE = [
  [2048, 2048, 2048],
  [768, 768, 768],
  [320, 320, 320],
  [128, 128, 64],
  [8, 4096, 4096],
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
  const { dtypes = ['f32'], isAnew = false, mostMs = Number.POSITIVE_INFINITY } = options;
  const shapes = options.shapes ?? (context.profile.isSoftware ? SHAPES_SOFTWARE : SHAPES_HARDWARE);
  const bytes = 4 * Math.max(...shapes.map(([m, n, k]) => Math.max(m * n, m * k, n * k)));
  const buffers = ['a', 'b', 'out'].map((name) => backend.alloc(bytes, `tuning ${name}`));
  const end = performance.now() + mostMs;
  const isOver = () => performance.now() > end;
  try {
    for (const call of callsOf(shapes, dtypes, buffers)) {
      const isKnown = !isAnew && context.matmulChoices.get(shapeClass(call)) !== undefined;
      const tile = isKnown || isOver() ? undefined : await fastestTile(parts, call, isOver);
      if (tile !== undefined) {
        context.matmulChoices.set(shapeClass(call), tileName(tile));
      }
    }
  } finally {
    for (const buffer of buffers) {
      backend.free(buffer);
    }
  }
}

/** Returns a product of each class, those of one shape next to each other. */
function callsOf(
  shapes: readonly (readonly [number, number, number])[],
  dtypes: readonly DType[],
  buffers: readonly BackendBuffer[],
): MatmulCall[] {
  const pairs = dtypes.flatMap((dtype) =>
    [...new Set<DType>([dtype, 'f32'])].map((out) => [dtype, dtype, out] as const),
  );
  return shapes.flatMap(([m, n, k]) =>
    pairs.flatMap((types) =>
      TRANSPOSES.map((transposes) => {
        const [a, b, out] = [m * k, k * n, m * n].map((size, i) => {
          return { buffer: buffers[i]!, byteOffset: 0, dtype: types[i]!, size };
        });
        return callOf([a!, b!, out!], [m, n, k], transposes);
      }),
    ),
  );
}

/** Returns undefined where no tile compiles, or where the measurement is over before its end. */
async function fastestTile(
  parts: TuningParts,
  call: MatmulCall,
  isOver: () => boolean,
): Promise<Tile | undefined> {
  const { context, stopwatch } = parts;
  const tiles = await compiling(parts, call, candidateTiles(context, call));
  if (tiles.length === 0) {
    return undefined;
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
      if (isOver()) {
        return undefined;
      }
      all.push(await time(tile, repetitions));
    }
  }
  const medianOf = (tile: Tile) => median(times.get(tile)!);
  const fastest = tiles.reduce((best, tile) => (medianOf(tile) < medianOf(best) ? tile : best));
  return medianOf(fastest) < (1 - MARGIN) * medianOf(usual) ? fastest : usual;
}

/**
 * Compiles the tiles beside each other and returns those that compile: a driver may refuse a kernel
 * for a feature that it offers, and its other tiles still serve.
 */
async function compiling(
  { prepare }: Pick<TuningParts, 'prepare'>,
  call: MatmulCall,
  tiles: readonly Tile[],
): Promise<readonly Tile[]> {
  try {
    await prepare((context) => {
      for (const tile of tiles) {
        matmulWithTile(context, call, tile);
      }
    });
    return tiles;
  } catch (error) {
    if (!(error instanceof ShaderError)) {
      throw error;
    }
  }
  if (tiles.length === 1) {
    return [];
  }
  const half = tiles.length >> 1;
  const first = await compiling({ prepare }, call, tiles.slice(0, half));
  return [...first, ...(await compiling({ prepare }, call, tiles.slice(half)))];
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
