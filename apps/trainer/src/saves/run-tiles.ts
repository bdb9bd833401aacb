// The tiles of a run's matrix products on GPUs. Tiles may round differently, so a run keeps those
// that it began with, whatever is measured or stored meanwhile, and its ranks share them.

import { exchangeTexts, type ProcessGroup } from '@shardweave/collectives';
import type { Backend } from '@shardweave/tensor-core';
import type { MatmulChoiceTable, WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import type { PreparedRun } from '../run-config.js';
import type { SavedRun } from './saved-run.js';

/** The tables of a run, which SavedRun describes. */
export type RunTiles = NonNullable<SavedRun['tiles']>;

const CALL = { tag: 'tiles', identity: 'tiles' };

/**
 * Gives a rank's GPU the tiles of the save that the run goes on from, and without one those of the
 * first rank with such a GPU. Collective.
 * @returns the tables of all ranks' GPUs, for the saves of the run; undefined where it has no GPU
 */
export async function agreeOnTiles(
  backend: Backend,
  options: {
    readonly config: Pick<PreparedRun, 'device'>;
    readonly group: ProcessGroup;
    /** The tables of the save, which all ranks have read. */
    readonly saved: RunTiles | undefined;
  },
): Promise<RunTiles | undefined> {
  const { config, group, saved = {} } = options;
  if (config.device.every((device) => device === 'cpu')) {
    return undefined;
  }
  const gpu = backend.info.kind === 'webgpu' ? (backend as WebGpuBackend) : undefined;
  const own = gpu && { [gpu.tuningKey]: gpu.exportMatmulChoices() };
  const texts = await exchangeTexts(group, JSON.stringify(own ?? {}), CALL);
  const tiles: Record<string, MatmulChoiceTable> = {};
  for (const [key, table] of texts.flatMap((text) =>
    Object.entries(JSON.parse(text) as RunTiles),
  )) {
    tiles[key] ??= saved[key] ?? table;
  }
  gpu?.importMatmulChoices(tiles[gpu.tuningKey]!);
  return tiles;
}

/** A sentence about each table of a save that no GPU of this run can take, unless it is empty. */
export function tileNotes({ tiles = {} }: SavedRun, taken: RunTiles = {}): string[] {
  return Object.entries(tiles)
    .filter(([key, table]) => !(key in taken) && Object.keys(table).length > 0)
    .map(
      ([key]) =>
        `The products before were tiled for ${key}, which no rank has here: losses may differ in their last digits.`,
    );
}
