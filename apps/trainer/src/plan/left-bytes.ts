// What a run leaves on the disk of --out: its model to the byte, its saves nearly so, and lines and
// pages about it, which are few beside both.

import { join } from 'node:path';
import { floorLog2 } from '@shardweave/dtypes/float64';
import { DiskFullError } from '../errors.js';
import { bytesBelow, bytesOnDisk, freeBytes } from '../files/disk-room.js';
import { resultOf } from '../files/run-files.js';
import { savesOf } from '../files/save-directory.js';
import { formatBytes } from '../format.js';
import { trainedFiles } from '../model/write-trained.js';
import { groupOf, MOST_TOLD } from '../rank/step/layer-norms.js';
import { makesSaves, type RunConfig } from '../run-config.js';
import { parameterShapes } from '../saves/saved-state.js';

/** A value and AdamW's two moments, in f32. */
const SAVED_BYTES = 12;
/** The lines of a save's index about one parameter and its moments. */
const INDEX_BYTES = 600;
/** The page of a run without its data, and the files that do not grow. */
const PAGE_BYTES = 130e3;
/** A step in metrics.jsonl. */
const STEP_BYTES = 450;
/** A group of layers in such a step, where groups are told, and in the page. */
const GROUP_BYTES = 150;
/** A step in the page and the chart, which have at most so many. */
const DRAWN_BYTES = 220;
const MOST_DRAWN = 20_000;
/** A step in TensorBoard's file. */
const EVENT_BYTES = 600;
/** A rank in events.jsonl and in the page, at steps that double. */
const RANK_BYTES = 800;

/** The bytes of files; blocks of the disk come on top. */
export interface LeftBytes {
  /** The files of model/ or adapter/, each by itself. */
  readonly modelFileBytes: readonly number[];
  readonly saveBytes: number;
  /** The most saves that there are at once, the one that is being written included. */
  readonly numSaves: number;
  /** Lines and pages. */
  readonly recordBytes: number;
}

/** What the run leaves by its end, whatever its strategy. */
export async function leftBytes(config: RunConfig): Promise<LeftBytes> {
  const { steps, ranks, tensorboard } = config;
  const shapes = await parameterShapes(config);
  const read = () => Promise.reject(new Error('only sizes are asked for'));
  const state = shapes.map(([name, shape]) => [name, { dtype: 'f32', shape, read }] as const);
  const files = await trainedFiles({ config, state: new Map(state) });
  const elements = shapes
    .map(([, shape]) => shape.reduce((product, dim) => product * dim, 1))
    .reduce((sum, size) => sum + size, 0);
  const groups = new Set(shapes.map(([name]) => groupOf(name))).size;
  const indexBytes = INDEX_BYTES * (shapes.length + ranks);
  return {
    modelFileBytes: files.map(({ byteLength }) => byteLength),
    saveBytes: SAVED_BYTES * elements + indexBytes,
    numSaves: numSaves(config),
    recordBytes:
      PAGE_BYTES +
      (STEP_BYTES + (tensorboard ? EVENT_BYTES : 0)) * steps +
      DRAWN_BYTES * Math.min(steps, MOST_DRAWN) +
      GROUP_BYTES * groups * Math.min(steps, MOST_TOLD) +
      RANK_BYTES * ranks * (floorLog2(steps) + 1),
  };
}

/** The newest ones, the best one where something is evaluated, and one that is being written. */
function numSaves(config: RunConfig): number {
  const { saveEvery, steps, keep, evalEvery, valid, validFraction } = config;
  if (!makesSaves(config)) {
    return 0;
  }
  const isEvaluated = valid !== undefined || validFraction !== undefined;
  const made = saveEvery === undefined ? 0 : Math.ceil(steps / (saveEvery.steps ?? 1));
  const best = isEvaluated ? Math.ceil(steps / evalEvery) : 0;
  const kept = saveEvery === undefined ? 0 : keep;
  return Math.min(kept + 1 + Number(isEvaluated), made + best, steps);
}

/**
 * Looks whether --out takes what the run leaves.
 * @returns a warning where it takes the model, but perhaps not the saves
 * @throws {DiskFullError} where it does not take the model
 */
export async function requireDisk(config: RunConfig): Promise<string | undefined> {
  const { out, keep } = config;
  if (out === undefined) {
    return undefined;
  }
  const left = await leftBytes(config);
  const modelBytes = bytesOnDisk(out, left.modelFileBytes);
  const leastBytes = modelBytes + left.recordBytes;
  const free = freeBytes(out);
  const path = join(out, resultOf(config));
  if (leastBytes > free) {
    throw new DiskFullError(
      { path, neededBytes: leastBytes, freeBytes: free },
      { hint: 'Make room there, or give an --out on another disk.' },
    );
  }
  const { saveBytes } = left;
  const mostBytes = left.recordBytes + savedBytes(left, modelBytes);
  const saves = savesOf(out);
  if (mostBytes <= free + bytesBelow(saves)) {
    return undefined;
  }
  const less = keep > 1 ? ', fewer saves by --keep' : '';
  return `${saves} takes ${formatBytes(left.numSaves * saveBytes)} in up to ${left.numSaves} saves, and ${formatBytes(free)} are free, of which ${path} takes ${formatBytes(modelBytes)}. Saves will fail, and the model may have to be written elsewhere. Make room${less}, or give an --out on another disk.`;
}

/**
 * The most that saves and the model take at once. The model is written when no save is: it is the
 * larger only where nothing but adapters is saved.
 */
function savedBytes({ saveBytes, numSaves }: LeftBytes, modelBytes: number): number {
  const kept = Math.max(0, numSaves - 1);
  return kept * saveBytes + Math.max(modelBytes, numSaves > 0 ? saveBytes : 0);
}

/** A line about it for people. */
export function leftText(left: LeftBytes, config: RunConfig): string {
  const { out } = config;
  const { modelFileBytes, saveBytes, numSaves } = left;
  const model = modelFileBytes.reduce((sum, bytes) => sum + bytes, 0);
  const saves = numSaves === 0 ? [] : [`${numSaves} saves of ${formatBytes(saveBytes)} at once`];
  const free = out === undefined ? [] : [`${formatBytes(freeBytes(out))} free in ${out}`];
  const parts = [
    `${resultOf(config)}/ ${formatBytes(model)}`,
    ...saves,
    `records ${formatBytes(left.recordBytes)}`,
    ...free,
  ];
  return parts.join(', ');
}
