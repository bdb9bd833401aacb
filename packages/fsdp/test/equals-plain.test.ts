// Sharded training has the losses and weights of one process. Every two of FSDP's features run
// together in a cell, and each cell is compared with an unsharded run. equals-plain.long.test.ts
// runs far more combinations.

import { clipGradNorm, Gpt2, Sgd } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import {
  expectAsAlone,
  expectTrainedAsOneProcess,
  forwardBackward,
  optimizerGroups,
  type Program,
  stepped,
  TINY,
  type Trained,
  trainAlone,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import {
  AXES,
  type Cell,
  plainOutcome,
  shardedOutcomes,
  titleOf,
  toleranceOf,
} from './support/cells.js';
import { allPairs, pairsOf, pairwiseRows } from './support/pairwise.js';
import { wrapIn } from './support/sharding.js';

const isLong = process.env.SHARDWEAVE_LONG === '1';
const CELLS: readonly Cell[] = pairwiseRows(AXES, 4);

it('the cells have every pair of every two axes', () => {
  const covered = new Set(CELLS.flatMap((cell) => [...pairsOf(AXES, cell).keys()]));
  expect(covered).toEqual(new Set(allPairs(AXES).keys()));
  expect(CELLS.length).toBeLessThan(40);
});

it.each(CELLS.map((cell) => [titleOf(cell), cell] as const))('%s', async (_, cell) => {
  expectAsAlone(await shardedOutcomes(cell), await plainOutcome(cell), toleranceOf(cell));
});

describe.each(['checkpointing', 'resharding', 'residence', 'bucketCapMb'] as const)(
  '%s changes no bit',
  (axis) => {
    // Three cells have two ranks, three and replicas, and all accumulations. In the short run three
    // ranks stand for two.
    const all = (['f32', 'f16, reduced in f32', 'bf16'] as const).map((precision, i) => ({
      ...CELLS.find((cell) => cell.precision === precision)!,
      ranks: AXES.ranks[[0, 1, 4][i]!]!,
      accumulation: AXES.accumulation[i % 3]!,
      nesting: AXES.nesting[i % 2]!,
    }));
    const cells = all.slice(isLong ? 0 : 1);
    it.each(cells.map((cell) => [titleOf(cell), cell] as const))('%s', async (_, cell) => {
      const [first, ...others] = AXES[axis];
      const expected = await shardedOutcomes({ ...cell, [axis]: first });
      for (const value of others) {
        expect(await shardedOutcomes({ ...cell, [axis]: value }), String(value)).toEqual(expected);
      }
    });
  },
);

describe('GPT-2 with dropout, clipped', () => {
  const gpt2: Program<Trained> = async ({ device, wrap, rows }) => {
    const bare = new Gpt2(device, { ...TINY, embd_pdrop: 0.2, attn_pdrop: 0.2 }, { seed: 3 });
    for (const [name, block] of [...bare.children()].slice(1, -1)) {
      bare.replaceChild(name, wrap(block));
    }
    const model = wrap(bare);
    const optimizer = new Sgd(optimizerGroups(model), { lr: 0.1, momentum: 0.9 });
    const step = () =>
      device.scope(async () => {
        const { scale } = await clipGradNorm(model, 0.3);
        await optimizer.step({ gradScale: scale });
      });
    const clipping = { step, zeroGrad: () => optimizer.zeroGrad() };
    const losses = await stepped(clipping, [0, 1, 2, 3, 4, 5], (index) =>
      forwardBackward(device, model, index, { batch: 24, ...rows }),
    );
    return { losses, weights: [await weightsOf(model)] };
  };

  it('learns', async () => {
    const { losses } = await trainAlone(gpt2, { batch: 24 });
    expect(losses.at(-1)).toBeLessThan(losses[0]! - 0.05);
  });

  it.each([1, 3, 8])('trains over %i ranks', async (ranks) => {
    await expectTrainedAsOneProcess(gpt2, { ranks, batch: 24, wrap: (rank) => wrapIn(rank) });
  });
});
