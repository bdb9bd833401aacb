// These tests check which elements each rank drops, with and without beginStep.

import { Checkpoint, Dropout, Linear, Module, Sequential } from '@shardweave/nn';
import { type Device, mul, sum, type Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { onRanks, type Rank, wrap } from './support/ranks.js';

const ROWS = 4;
const WIDTH = 32;

/**
 * This module has a weight of ones with dropout behind it. The weight's gradient is the mask,
 * summed over rows.
 */
class Masked extends Module<[x: Tensor], Tensor> {
  readonly weight: Tensor;
  readonly drop: Dropout;

  constructor(device: Device) {
    super(device);
    this.weight = this.parameter('weight', device.full([WIDTH], 1));
    this.drop = this.child('drop', new Dropout(device, { p: 0.5 }));
  }

  async forward(x: Tensor): Promise<Tensor> {
    return this.drop.call(mul(x, this.weight));
  }
}

/** Returns the dropout mask for `rows` rows of ones. */
function maskOf(model: Module, rows: number): Promise<number[]> {
  const { device } = model;
  return device.scope(async () => {
    const x = device.full([rows, WIDTH], 1);
    return [...(await ((await model.call(x)) as Tensor).toArray())];
  });
}

const masksOf = (body: (rank: Rank, model: Module) => Promise<number[]>) =>
  onRanks(3, (rank) => body(rank, wrap(new Masked(rank.device), rank)));

it('ranks drop different elements where nobody begins steps, and other ones in each step', async () => {
  const masks = (
    await masksOf(async (_, model) => [
      ...(await maskOf(model, ROWS)),
      ...(await maskOf(model, ROWS)),
    ])
  ).flatMap((mask) => [mask.slice(0, ROWS * WIDTH), mask.slice(ROWS * WIDTH)]);
  expect(new Set(masks.map(String)).size).toBe(6);
  for (const a of masks) {
    for (const b of masks) {
      const equal = a.filter((value, i) => value === b[i]).length / a.length;
      // Two independent masks agree in half of 128 elements; five standard deviations are 0.22.
      if (a !== b) {
        expect(Math.abs(equal - 0.5)).toBeLessThan(0.22);
      }
    }
  }
});

it('ranks drop the elements of their rows in the global batch, bit for bit, where steps are begun', async () => {
  const masks = await masksOf(async ({ rank, device }, model) => {
    await maskOf(model, ROWS); // This draws from the rank's stream.
    device.random.begin({ step: 5, rowOffset: rank * ROWS });
    return maskOf(model, ROWS);
  });
  const [whole] = await onRanks(1, async ({ device }) => {
    device.random.begin({ step: 5, rowOffset: 0 });
    return maskOf(new Masked(device), 3 * ROWS);
  });
  expect(masks.flat()).toEqual(whole);
});

it('a checkpointed segment drops the same elements again', async () => {
  const gradients = async (isCheckpointing: boolean) =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const inner = new Masked(device);
      const body = isCheckpointing ? new Checkpoint(inner) : inner;
      const model = wrap(
        new Sequential(device, [
          new Linear(device, { inFeatures: WIDTH, outFeatures: WIDTH }),
          body,
        ]),
        rank,
      );
      for (let step = 0; step < 2; step++) {
        await device.scope(async () => {
          await sum(await model.call(device.full([ROWS, WIDTH], 1))).backward();
        });
      }
      return [...(await inner.weight.grad!.toArray())];
    });
  expect(await gradients(true)).toEqual(await gradients(false));
});

it('one rank drops what a model without a wrapper drops', async () => {
  const [wrapped] = await onRanks(1, (rank) => maskOf(wrap(new Masked(rank.device), rank), ROWS));
  const [bare] = await onRanks(1, ({ device }) => maskOf(new Masked(device), ROWS));
  expect(wrapped).toEqual(bare);
});
