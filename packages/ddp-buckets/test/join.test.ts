// Ranks have unequal numbers of steps here.

import { Sgd } from '@shardweave/nn';
import type { Device, Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  Bag,
  type BagSpec,
  onBags,
  onRanks,
  pull,
  pulled,
  weightsOf,
  wrap,
} from './support/ranks.js';

const AB = { a: 3, b: 200 };

/** This is a Bag with a value beside it. */
class Tallied extends Bag {
  readonly tally: Tensor;

  constructor(device: Device, spec: BagSpec) {
    super(device, spec);
    this.tally = this.buffer('tally', device.zeros([1]));
  }

  set(value: number): void {
    this.device.scope(() => this.device.copyInto(this.tally, this.device.full([1], value)));
  }
}

/**
 * Trains each rank for as many steps as it has inputs. Returns the gradients of each step, and the
 * weights at the end.
 */
async function joined(
  numSteps: readonly number[],
  options: {
    readonly divideByInitialWorldSize?: boolean;
    readonly findUnusedParameters?: boolean;
    readonly gradientPredivideFactor?: number;
    readonly gradientAverage?: boolean;
  } = {},
) {
  const { divideByInitialWorldSize, ...ddp } = options;
  return onRanks(numSteps.length, async (rank) => {
    const bag = new Bag(rank.device, AB);
    const model = wrap(bag, rank, { messageSize: 1, ...ddp });
    const optimizer = new Sgd(model.parameters(), { lr: 1 });
    const gradients: unknown[] = [];
    await model.join(
      async () => {
        for (let step = 0; step < numSteps[rank.rank]!; step++) {
          await pull(model, rank.rank + 1, ['b', 'a']); // The gradient of a comes first.
          gradients.push((await pulled(bag)).a);
          await optimizer.step();
          optimizer.zeroGrad();
        }
      },
      {
        optimizers: [optimizer],
        ...(divideByInitialWorldSize === undefined ? {} : { divideByInitialWorldSize }),
      },
    );
    expect(rank.device.memory().live.gradient).toBe(0);
    return { gradients, weight: (await weightsOf(bag)).get('a')![0], buckets: model.buckets };
  });
}

/** The factor of sums over three ranks. */
const THIRD = Math.fround(1 / 3);

describe('join', () => {
  it('lets a rank that has run out take part with zeros, divided by all', async () => {
    const perRank = await joined([1, 3, 2]);
    expect(perRank.map(({ gradients }) => gradients)).toEqual(
      [[2], [2, 5 * THIRD, 2 * THIRD], [2, 5 * THIRD]].map((list) => list.map(Math.fround)),
    );
    // All ranks have the weights of rank 1, which stepped last.
    const weight = -[2, 5 * THIRD, 2 * THIRD].map(Math.fround).reduce((a, b) => Math.fround(a + b));
    for (const one of perRank) {
      expect(one.weight).toBe(weight);
    }
  });

  it('lets it take part with zeros, divided by the ranks that have inputs', async () => {
    const perRank = await joined([1, 3, 2], { divideByInitialWorldSize: false });
    expect(perRank[1]!.gradients).toEqual([2, 2.5, 2]);
    expect(perRank[0]!.weight).toBe(-6.5);
  });

  it('gives the same means whatever was divided before the sum', async () => {
    const factors = { gradientPredivideFactor: 4 };
    const toActive = await joined([1, 3, 2], { divideByInitialWorldSize: false, ...factors });
    expect(toActive[1]!.gradients).toEqual([2, 2.5, 2]);
    const toAll = await joined([1, 3, 1], factors);
    expect(toAll[1]!.gradients).toEqual([2, 2 * THIRD, 2 * THIRD].map(Math.fround));
    // Sums are not divided afterwards, whichever ranks have inputs.
    const sums = await joined([1, 2, 2], {
      divideByInitialWorldSize: false,
      gradientAverage: false,
    });
    expect(sums[1]!.gradients).toEqual([6, 5]);
  });

  it('lets a rank take part that has no inputs at all, and learns its buckets from another', async () => {
    const perRank = await joined([0, 2]);
    expect(perRank[1]!.gradients).toEqual([1, 1]);
    for (const one of perRank) {
      expect(one).toMatchObject({ weight: -2, buckets: [['a'], ['b']] });
    }
  });

  it("keeps a rank's own sums out of the others' reductions", async () => {
    await onBags(2, AB, {}, async ({ rank, model }) => {
      await model.join(
        async () => {
          if (rank.rank === 0) {
            await model.noSync(() => pull(model, 100));
          } else {
            await pull(model, 2);
          }
        },
        { optimizers: [] },
      );
      expect((await pulled(model)).a).toBe(rank.rank === 0 ? 100 : 1);
    });
  });

  it('parameters may be left out of some steps', async () => {
    const perRank = await joined([1, 3, 2], { findUnusedParameters: true });
    expect(perRank.map(({ gradients }) => gradients.length)).toEqual([1, 3, 2]);
    expect(new Set(perRank.map(({ weight }) => weight)).size).toBe(1);
  });

  it('buffers follow the lowest rank with inputs', async () => {
    const numSteps = [1, 3, 2];
    const seen = await onRanks(3, async (rank) => {
      const tallied = new Tallied(rank.device, AB);
      const model = wrap(tallied, rank, { broadcastBuffers: true });
      const values: number[] = [];
      await model.join(
        async () => {
          for (let step = 0; step < numSteps[rank.rank]!; step++) {
            tallied.set(10 * rank.rank + step);
            await pull(model, 1);
            values.push(await tallied.tally.item());
          }
        },
        { optimizers: [] },
      );
      return { values, last: await tallied.tally.item() };
    });
    expect(seen.map(({ values }) => values)).toEqual([[0], [0, 11, 12], [0, 11]]);
    expect(seen.map(({ last }) => last)).toEqual([12, 12, 12]);
  });

  it('equal inputs, none, or one rank change nothing', async () => {
    expect((await joined([2, 2]))[0]!.gradients).toEqual([1.5, 1.5]);
    expect((await joined([0, 0]))[0]).toMatchObject({ gradients: [], weight: 0 });
    expect((await joined([2]))[0]!.gradients).toEqual([1, 1]);
  });

  it('an error in it reaches all ranks', async () => {
    const errors = await onBags(2, AB, {}, async ({ rank, model }) => {
      const body = async () => {
        await pull(model, 1);
        if (rank.rank === 1) {
          throw new Error('no more data');
        }
        await pull(model, 1);
      };
      return model.join(body, { optimizers: [] }).catch((error: unknown) => error as Error);
    });
    expect(errors[1]).toMatchObject({ message: 'no more data' });
    expect(errors[0]).toMatchObject({ code: 'ABORTED', originRank: 1 });
    expect((errors[0] as Error).message).toContain('no more data');
  });
});
