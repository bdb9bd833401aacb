// These tests check the exact number of collectives and their payload, as fairscale's test of its
// communication does.

import type { CollectiveStats, ProcessGroup } from '@shardweave/collectives';
import { byteSize } from '@shardweave/dtypes';
import type { FullyShardedDataParallel } from '@shardweave/fsdp';
import { describe, expect, it } from 'vitest';
import { forwardBackward, onRanks, type Rank, TINY } from '../../../tooling/test-kit/index.ts';
import { shardedGpt2 } from './support/sharding.js';

const UNITS = TINY.n_layer! + 1; // There is one unit for each block, and the root.

/** Returns the increase of both sequences' counters during `body`. */
async function counted(groups: readonly ProcessGroup[], body: () => Promise<unknown>) {
  const sum = (key: keyof CollectiveStats) =>
    groups.reduce((n, group) => n + group.stats()[key], 0);
  const keys = [
    'allGathers',
    'reduceScatters',
    'allReduces',
    'bytesSent',
    'bytesReceived',
  ] as const;
  const before = keys.map(sum);
  await body();
  return Object.fromEntries(keys.map((key, i) => [key, sum(key) - before[i]!]));
}

async function sharded(rank: Rank, fsdp: Parameters<typeof shardedGpt2>[1] = {}) {
  const reduceGroup = await rank.group.split(0);
  const { model } = shardedGpt2(rank, {
    ...fsdp,
    fsdp: { processGroupReduceScatter: reduceGroup, bucketCapMb: 0, ...fsdp.fsdp },
  });
  await model.initialize();
  const step = (number: number) =>
    forwardBackward(rank.device, model, number, {
      batch: rank.worldSize,
      first: rank.rank,
      count: 1,
    });
  return { model, step, groups: [rank.group, reduceGroup] };
}

/** Returns the number of elements in all flat parameters from unit `from` on, padding included. */
function fullElements(model: FullyShardedDataParallel, from = 0): number {
  return model
    .instances()
    .slice(from)
    .reduce((sum, { units }) => sum + units[0]!.full.storage.elementCount, 0);
}

describe('with N units, not bucketed', () => {
  it('resharding gathers 2N - 1 in a noSync step, 2N - 2 and N reductions in the next', () =>
    onRanks(4, async (rank) => {
      const { model, step, groups } = await sharded(rank);
      const first = await counted(groups, () => model.noSync(() => step(0)));
      expect(first).toMatchObject({ allGathers: 2 * UNITS - 1, reduceScatters: 0 });
      const second = await counted(groups, () => step(1));
      expect(second).toMatchObject({ allGathers: 2 * UNITS - 2, reduceScatters: UNITS });
    }));

  it('buckets have the same bytes, and as many reductions as there are buckets', () =>
    onRanks(3, async (rank) => {
      const stepWith = async (bucketCapMb: number) => {
        const { step, groups } = await sharded(rank, { fsdp: { bucketCapMb } });
        return counted(groups, () => step(0));
      };
      const alone = await stepWith(0);
      // A block's gradient has 12 KiB. The root's has 4.5 KiB and comes last.
      for (const [capKib, reduceScatters] of [
        [25 * 1024, 1],
        [36, 2], // Three blocks fit exactly.
        [35.9, 2], // One bucket has two blocks, the other the third block and the root.
        [17, 3], // Only the root has room beside a block.
        [12, UNITS],
        [5, UNITS], // Blocks are larger than a bucket.
      ] as const) {
        expect(await stepWith(capKib / 1024), `${capKib} KiB`).toEqual({
          ...alone,
          reduceScatters,
        });
      }
    }));

  it('units that do not reshard gather N in a noSync step, none and N reductions in the next', () =>
    onRanks(4, async (rank) => {
      const options = { fsdp: { reshardAfterForward: false } };
      const { model, step, groups } = await sharded(rank, options);
      const first = await counted(groups, () => model.noSync(() => step(0)));
      expect(first).toMatchObject({ allGathers: UNITS, reduceScatters: 0 });
      const second = await counted(groups, () => step(1));
      expect(second).toMatchObject({ allGathers: 0, reduceScatters: UNITS });
    }));
});

describe.each([
  { computeDType: 'f32', fp32ReduceScatter: false },
  { computeDType: 'bf16', fp32ReduceScatter: false },
  { computeDType: 'bf16', fp32ReduceScatter: true },
] as const)('payload with $computeDType, fp32ReduceScatter $fp32ReduceScatter', (options) => {
  it.each([2, 3, 4])(
    'the payload of a step equals (W - 1) / W of the padded bytes moved, W = %i',
    (worldSize) =>
      onRanks(worldSize, async (rank) => {
        const { model, step, groups } = await sharded(rank, {
          fsdp: { ...options, mixedPrecision: options.computeDType !== 'f32' },
        });
        await step(0);
        const { bytesSent, bytesReceived } = await counted(groups, () => step(1));
        // Forward gathers all units; backward gathers all but the root.
        const gathered = fullElements(model) + fullElements(model, 1);
        const reduced = fullElements(model);
        const reduceDType = options.fp32ReduceScatter ? 'f32' : options.computeDType;
        const moved = gathered * byteSize(options.computeDType) + reduced * byteSize(reduceDType);
        expect(bytesSent).toBe((moved * (worldSize - 1)) / worldSize);
        expect(bytesReceived).toBe((moved * (worldSize - 1)) / worldSize);
      }),
  );
});

it('starts nothing for the units of one process', () =>
  onRanks(1, async (rank) => {
    const { step, groups } = await sharded(rank);
    const counts = await counted(groups, () => step(0));
    expect(counts).toEqual({
      allGathers: 0,
      reduceScatters: 0,
      allReduces: 0,
      bytesSent: 0,
      bytesReceived: 0,
    });
  }));
