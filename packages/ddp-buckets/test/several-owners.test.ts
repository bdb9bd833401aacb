// The parameters in one bucket have several owners: optimizers and modules that each step and zero
// a part. A bucket is only the gradients' way to the other ranks, so each parameter has a gradient
// of its own afterwards.

import { AdamW, type Module, type Optimizer, Sgd } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import {
  forwardBackward,
  onRanks,
  type Rank,
  SMALL_BUCKETS,
  tinyGpt2,
  weightsOf,
  wrap,
} from './support/ranks.js';

const STEPS = 2;
const BATCH = 2;

type Program = (owners: {
  /** The bare module. */
  readonly net: Module;
  /** Runs forward and backward of one step. */
  backward(step: number): Promise<void>;
}) => Promise<void>;

async function weightsAfter(program: Program, worldSize: number, options?: object) {
  const perRank = await onRanks(worldSize, async (rank: Rank) => {
    const net = tinyGpt2(rank.device);
    const model = options === undefined ? net : wrap(net, rank, options);
    const count = BATCH / worldSize;
    const rows = { batch: BATCH, first: rank.rank * count, count };
    const backward = async (step: number) =>
      void (await forwardBackward(rank.device, model, step, rows));
    await program({ net, backward });
    return weightsOf(net);
  });
  return perRank;
}

async function expectAsBare(program: Program, options: object): Promise<void> {
  const [bare] = await weightsAfter(program, 1);
  for (const weights of await weightsAfter(program, 2, options)) {
    for (const [name, values] of bare!) {
      values.forEach((value, i) => {
        const difference = Math.abs(weights.get(name)![i]! - value);
        if (!(difference <= 1e-5)) {
          expect.fail(`${name}[${i}] is off by ${difference}`);
        }
      });
    }
  }
}

function optimizersOf(net: Module): Optimizer<object>[] {
  const [matrices, vectors] = [true, false].map((isMatrix) =>
    net.parameters().filter((tensor) => tensor.rank >= 2 === isMatrix),
  );
  return [new Sgd(matrices!, { lr: 0.5 }), new AdamW(vectors!, { lr: 1e-2 })];
}

describe.each([SMALL_BUCKETS, { ...SMALL_BUCKETS, retainAllreduceBuffers: true }])(
  '%j',
  (options) => {
    it('each optimizer steps and zeroes its own gradients in turn', async () => {
      await expectAsBare(async ({ net, backward }) => {
        const optimizers = optimizersOf(net);
        for (let step = 0; step < STEPS; step++) {
          await backward(step);
          for (const optimizer of optimizers) {
            await optimizer.step();
            optimizer.zeroGrad();
          }
        }
      }, options);
    });

    it("a submodule's zeroGrad leaves the other gradients", async () => {
      await expectAsBare(async ({ net, backward }) => {
        const optimizer = new Sgd(net.parameters(), { lr: 0.5 });
        for (let step = 0; step < STEPS; step++) {
          await backward(step);
          [...net.children().values()][1]!.zeroGrad();
          await optimizer.step();
          optimizer.zeroGrad();
        }
      }, options);
    });

    it('a gradient set to undefined is dropped', async () => {
      await expectAsBare(async ({ net, backward }) => {
        const optimizer = new Sgd(net.parameters(), { lr: 0.5 });
        for (let step = 0; step < STEPS; step++) {
          await backward(step);
          const [first] = net.parameters();
          first!.grad?.dispose();
          first!.grad = undefined;
          await optimizer.step();
          optimizer.zeroGrad();
        }
      }, options);
    });

    it('parameters of one bucket are zeroed apart, and the rest adds up', async () => {
      await expectAsBare(async ({ net, backward }) => {
        const optimizer = new Sgd(net.parameters(), { lr: 0.5 });
        await backward(0);
        [...net.children().values()][1]!.zeroGrad();
        await backward(1);
        await optimizer.step();
      }, options);
    });
  },
);
