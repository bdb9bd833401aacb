// The tiles of GPUs' products are those of the save that a run goes on from, and else those of its
// first rank, on every rank with such a GPU. The driver here computes nothing.

import { createMemoryGroup } from '@shardweave/collectives';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createWebGpuBackend, type MatmulChoiceTable } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { expect, it } from 'vitest';
import { agreeOnTiles, type RunTiles, tileNotes } from '../src/saves/run-tiles.js';
import type { SavedRun } from '../src/saves/saved-run.js';

const CLASS = 'NN f32 f32 f32 huge';
const [FIRST, SECOND, SAVED] = ['direct 4x4x8', 'direct 8x8x8', 'broadcast 16x2x8'].map((tile) => ({
  [CLASS]: tile,
}));

/** Opens a device of some name, whose store holds a table. */
async function openNamed(name: string, stored: MatmulChoiceTable) {
  const gpu = openNodeGpu({ flags: ['backend=null'] });
  const device = await (await gpu.requestAdapter())!.requestDevice();
  const adapterInfo = {
    ...{ vendor: 'v', architecture: 'a', device: name, description: '' },
    isFallbackAdapter: false,
  } as GPUAdapterInfo;
  const tuningStore = { read: async () => stored, write: async () => {} };
  return createWebGpuBackend({ device, adapterInfo, tuningStore, kernelProfile: 'software' });
}

function recordOf(tiles: RunTiles | undefined): SavedRun {
  return { step: 1, updates: 1, numericClasses: [], config: {}, ...(tiles && { tiles }) };
}

/** Lets ranks agree, and returns what each has then, and what their saves will hold. */
async function agree(
  ranks: readonly (readonly [name: string, stored: MatmulChoiceTable] | 'cpu')[],
  savedOf: (keys: readonly string[]) => RunTiles | undefined,
) {
  const backends = await Promise.all(
    ranks.map((rank) => (rank === 'cpu' ? createCpuBackend({ threads: 0 }) : openNamed(...rank))),
  );
  const keys = backends.map((backend) => ('tuningKey' in backend ? backend.tuningKey : ''));
  const devices = ranks.map((rank) => (rank === 'cpu' ? 'cpu' : 'webgpu'));
  const config = { device: devices };
  const tiles = await Promise.all(
    createMemoryGroup(ranks.length).map(async (group, rank) => {
      const found = await agreeOnTiles(backends[rank]!, { config, group, saved: savedOf(keys) });
      await group.close();
      return found;
    }),
  );
  const taken = backends.map((backend) =>
    'tuningKey' in backend ? backend.exportMatmulChoices() : undefined,
  );
  await Promise.all(backends.map((backend) => backend.dispose()));
  return { keys, tiles, taken };
}

it('a run that goes on takes the tiles of its save, whatever is stored', async () => {
  const both = [
    ['one', FIRST!],
    ['one', SECOND!],
  ] as const;
  const saved = await agree(both, ([key]) => ({ [key!]: SAVED! }));
  expect(saved.taken).toEqual([SAVED, SAVED]);
  expect(saved.tiles[0]).toEqual({ [saved.keys[0]!]: SAVED });
  expect(saved.tiles[1]).toEqual(saved.tiles[0]);
  expect((await agree(both, ([key]) => ({ [key!]: {} }))).taken, 'not even one').toEqual([{}, {}]);
});

it('a new run takes those of the first rank with such a GPU', async () => {
  const { keys, tiles, taken } = await agree(
    ['cpu', ['one', FIRST!], ['two', SAVED!], ['one', SECOND!]],
    () => undefined,
  );
  expect(taken).toEqual([undefined, FIRST, SAVED, FIRST]);
  expect(tiles.every((each) => JSON.stringify(each) === JSON.stringify(tiles[0]))).toBe(true);
  expect(tiles[0]).toEqual({ [keys[1]!]: FIRST, [keys[2]!]: SAVED });
});

it('a run without a GPU has none', async () => {
  expect((await agree(['cpu', 'cpu'], () => undefined)).tiles).toEqual([undefined, undefined]);
});

it('a run keeps its own where the save has none for its GPU, and says so', async () => {
  const { tiles, taken } = await agree([['one', FIRST!]], () => ({ other: SAVED! }));
  expect(taken).toEqual([FIRST]);
  expect(tileNotes(recordOf({ other: SAVED! }), tiles[0]!)).toEqual([
    'The products before were tiled for other, which no rank has here: losses may differ in their last digits.',
  ]);
  expect(tileNotes(recordOf({ other: {} }), tiles[0]!), 'nothing was chosen').toEqual([]);
  expect(tileNotes(recordOf(tiles[0]), tiles[0]!), 'taken').toEqual([]);
});
