// Gradients of several micro-batches are reduced after each one or once at the end.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { summonFullParams } from '@shardweave/fsdp/fairscale';
import { gradNorm } from '@shardweave/nn';
import { expect, it } from 'vitest';
import { forwardBackward, onRanks, type Rank, shardedGpt2 } from './support/ranks.js';
import { layer, Stack, trainOnce } from './support/scenarios.js';

const WORLD_SIZE = 2;
const BATCH = 8;

/** Returns the shard gradients of a single unit after `micro` micro-batches over the same rows. */
async function gradientsOf(
  rank: Rank,
  options: {
    readonly micro: number;
    readonly noSync: boolean;
    readonly flattenParameters?: boolean;
  },
): Promise<Float32Array[]> {
  const { model } = shardedGpt2(rank, {
    fsdp: { flattenParameters: options.flattenParameters ?? true },
  });
  const perRank = BATCH / WORLD_SIZE;
  const count = perRank / options.micro;
  for (let k = 0; k < options.micro; k++) {
    const rows = { batch: BATCH, first: rank.rank * perRank + k * count, count };
    const pass = () => forwardBackward(rank.device, model, 0, rows);
    const isLast = k === options.micro - 1;
    if (options.noSync && !isLast) {
      await model.noSync(pass);
    } else {
      await pass();
    }
  }
  const flats = model.instances().flatMap(({ units }) => units.map(({ flat }) => flat.grad!));
  return Promise.all(flats.map(async (grad) => (await grad.toArray()) as Float32Array));
}

function largestDifference(
  a: readonly Float32Array[],
  b: readonly Float32Array[],
  scale: number,
): number {
  let largest = 0;
  a.forEach((values, unit) => {
    values.forEach((value, i) => {
      largest = Math.max(largest, Math.abs(value - b[unit]![i]! * scale));
    });
  });
  return largest;
}

it.each([
  { noSync: false, micro: 2 },
  { noSync: true, micro: 2 },
  { noSync: true, micro: 4 }, // This starts before the first forward outside noSync.
  { noSync: true, micro: 2, flattenParameters: false },
])(
  '$micro micro-batches, noSync $noSync: gradients are those of the whole batch',
  async (options) => {
    await onRanks(WORLD_SIZE, async (rank) => {
      const whole = await gradientsOf(rank, { ...options, micro: 1, noSync: false });
      const summed = await gradientsOf(rank, options);
      // Each micro-batch's loss is a mean over its own rows, so the sum is `micro` times the mean.
      expect(largestDifference(summed, whole, options.micro)).toBeLessThan(1e-6);
      expect(
        largestDifference(
          whole,
          whole.map((grad) => grad.map(() => 0)),
          1,
        ),
      ).toBeGreaterThan(1e-3);
    });
  },
);

it('noSync of sibling roots in a plain module adds up as their own backwards do', async () => {
  await onRanks(WORLD_SIZE, async ({ device, group, rank }) => {
    const wrap = () => new FullyShardedDataParallel(layer(device), { processGroup: group });
    const roots = [wrap(), wrap()] as const;
    const model = new Stack(device, roots);
    const norms = async (isSyncing: boolean) => {
      const first = () => trainOnce(model, { first: rank, count: 1 }, 0);
      if (isSyncing) {
        await first();
      } else {
        await roots[0].noSync(() => roots[1].noSync(first));
      }
      expect(roots.map(({ units }) => units[0]!.flat.grad !== undefined)).toEqual([
        isSyncing,
        isSyncing,
      ]);
      await trainOnce(model, { first: rank, count: 1 }, 1);
      const result = [await gradNorm(roots[0]), await gradNorm(roots[1])];
      model.zeroGrad();
      return result;
    };
    const [summed, separate] = [await norms(false), await norms(true)];
    summed.forEach((norm, i) => {
      expect(norm).toBeCloseTo(separate[i]!, 6);
      expect(norm).toBeGreaterThan(0);
    });
  });
});

it('two synchronized backwards without a step add up, as do their norms', async () => {
  await onRanks(WORLD_SIZE, async (rank) => {
    const { model } = shardedGpt2(rank);
    const rows = { batch: WORLD_SIZE, first: rank.rank, count: 1 };
    await forwardBackward(rank.device, model, 0, rows);
    const once = await gradNorm(model);
    await forwardBackward(rank.device, model, 0, rows);
    expect(await gradNorm(model)).toBeCloseTo(2 * once, 5);
  });
});

it('refuses noSync on an inner instance and a forward inside summon', async () => {
  await onRanks(WORLD_SIZE, async (rank) => {
    const { model } = shardedGpt2(rank);
    const rows = { batch: WORLD_SIZE, first: rank.rank, count: 1 };
    await forwardBackward(rank.device, model, 0, rows);
    const inner = model.instances()[1]!;
    await expect(inner.noSync(() => undefined)).rejects.toThrow(
      /noSync: expected the root instance/,
    );
    await expect(
      summonFullParams(model, () => forwardBackward(rank.device, model, 0, rows)),
    ).rejects.toThrow(/forward: expected state .*summonFullParams/);
    model.assertState('idle');
    await forwardBackward(rank.device, model, 1, rows); // The model still trains.
  });
});
