// One rank fails while the others wait for it. Groups have their time-out of ten minutes: the others
// learn of it from that rank, or the test fails.

import { allReduceHook, type CommunicationHook } from '@shardweave/ddp-buckets';
import { Module } from '@shardweave/nn';
import { type Device, mul, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { Bag, onRanks, pull, pulled, type Rank, wrap } from './ranks.js';

const PLACES = [
  'forward',
  'hook before forward',
  'hook after forward',
  'backward before any gradient',
  'backward between two gradients',
  'backward of the loss',
  'communication hook',
] as const;
type Place = (typeof PLACES)[number];

/** A product of two parameters that fails where it is told to. */
class Fragile extends Module<[factor: number], Tensor> {
  readonly a: Tensor;
  readonly b: Tensor;
  fails: Place | undefined;
  /** What the backward between the gradients waits for. */
  isHeld: () => Promise<void> = async () => undefined;

  constructor(device: Device) {
    super(device);
    this.a = this.parameter('a', device.full([1], 1));
    this.b = this.parameter('b', device.full([1], 1));
    this.aroundForward({
      before: () => this.failAt('hook before forward'),
      after: () => this.failAt('hook after forward'),
    });
  }

  forward(factor: number): Tensor {
    this.failAt('forward');
    const first = mul(this.a, this.device.full([1], factor));
    this.device.beforeGradientOf(first, async () => {
      this.failAt('backward between two gradients');
      await this.isHeld();
    });
    return mul(first, this.b);
  }

  failAt(place: Place): void {
    if (this.fails === place) {
      throw new Error(`broken in ${place}`);
    }
  }
}

function fragile(rank: Rank) {
  const inner = new Fragile(rank.device);
  const communicationHook: CommunicationHook = {
    name: 'fragile',
    isSerial: false,
    reduce: async (bucket) => {
      inner.failAt('communication hook');
      return allReduceHook.reduce(bucket);
    },
  };
  const model = wrap(inner, rank, { messageSize: 1, communicationHook });
  const step = () =>
    rank.device.scope(async () => {
      const out: Tensor = await model.call(1 + rank.rank);
      // After the wrapper's own hook, with which its backward begins.
      rank.device.beforeGradientOf(out, () => inner.failAt('backward before any gradient'));
      const loss = mul(out, rank.device.full([1], 1));
      rank.device.beforeGradientOf(loss, () => inner.failAt('backward of the loss'));
      await loss.backward();
    });
  return { inner, model, step };
}

describe.each(PLACES)('a rank that fails in its %s', (place) => {
  it('has its own error; the others learn the rank and the cause, and end', async () => {
    const errors = await onRanks(3, async (rank) => {
      const { inner, step } = fragile(rank);
      await step();
      if (rank.rank === 1) {
        inner.fails = place;
      }
      return step().catch((error: unknown) => error as Error);
    });
    expect((errors[1] as Error).message).toBe(`broken in ${place}`);
    for (const rank of [0, 2]) {
      expect(errors[rank]).toMatchObject({ code: 'ABORTED', originRank: 1 });
      expect((errors[rank] as Error).message).toMatch(
        new RegExp(`failed on rank 1/3: broken in ${place}`),
      );
    }
  });

  it('cannot leave the batch out and go on: no gradients of different steps meet', async () => {
    const perRank = await onRanks(2, async (rank) => {
      const { inner, model, step } = fragile(rank);
      const gradients: unknown[] = [];
      const errors: Error[] = [];
      for (let batch = 0; batch < 4; batch++) {
        inner.fails = rank.rank === 1 && batch === 1 ? place : undefined;
        model.zeroGrad();
        const error = await step().catch((failure: unknown) => failure as Error);
        if (error === undefined) {
          gradients.push(await pulled(model));
        } else {
          errors.push(error);
        }
      }
      return { gradients, errors };
    });
    for (const { gradients, errors } of perRank) {
      expect(gradients).toEqual([{ a: 1.5, b: 1.5 }]);
      expect(errors).toHaveLength(3);
      for (const error of errors) {
        expect(error.message).toContain(`broken in ${place}`);
      }
    }
  });
});

it('a hook that fails has its error also where ranks ask for more after it', async () => {
  const errors = await onRanks(2, async (rank) => {
    const communicationHook: CommunicationHook = {
      name: 'failing',
      isSerial: false,
      reduce: (bucket) =>
        rank.rank === 1 ? Promise.reject(new Error('no wire')) : allReduceHook.reduce(bucket),
    };
    const options = { communicationHook, findUnusedParameters: true };
    const model = wrap(new Bag(rank.device, { a: 3 }), rank, options);
    return pull(model, 1).catch((error: unknown) => error as Error);
  });
  expect(errors[1]).toMatchObject({ message: 'no wire' });
  expect(errors[0]).toMatchObject({ code: 'ABORTED', originRank: 1 });
});

it('the others learn of a hook that failed while backward still goes on', async () => {
  let tell: () => void = () => undefined;
  const told = new Promise<void>((resolve) => {
    tell = resolve;
  });
  const errors = await onRanks(2, async (rank) => {
    const { inner, step } = fragile(rank);
    if (rank.rank === 1) {
      inner.fails = 'communication hook';
      // b's bucket has left, and fails; a's gradient comes when rank 0 has heard of it.
      inner.isHeld = () => told;
    }
    const error = await step().catch((failure: unknown) => failure as Error);
    if (rank.rank === 0) {
      tell();
    }
    return error;
  });
  expect(errors[0]).toMatchObject({ code: 'ABORTED', originRank: 1 });
  expect(errors[1]).toMatchObject({ message: 'broken in communication hook' });
});

it('a rank that cannot read its parameters ends the job at the start', async () => {
  const errors = await onRanks(2, async (rank) => {
    const bag = new Bag(rank.device, { a: 3 });
    if (rank.rank === 0) {
      bag.get('a').toBytes = () => Promise.reject(new Error('device lost'));
    }
    return wrap(bag, rank)
      .initialize()
      .catch((error: unknown) => error as Error);
  });
  expect(errors[0]).toMatchObject({ message: 'device lost' });
  expect(errors[1]).toMatchObject({ code: 'ABORTED', originRank: 0 });
  expect((errors[1] as Error).message).toContain('device lost');
});

it('an evaluation that fails on one rank ends nothing', async () => {
  await onRanks(2, async (rank) => {
    const { inner, model, step } = fragile(rank);
    await step();
    model.zeroGrad();
    if (rank.rank === 1) {
      inner.fails = 'forward';
      await expect(rank.device.noGrad(() => model.call(1))).rejects.toThrow('broken in forward');
      inner.fails = undefined;
    }
    await step();
    expect(await pulled(model)).toEqual({ a: 1.5, b: 1.5 });
  });
});

describe('a backward that fails in noSync', () => {
  it('ends nothing, but what it has added is not reduced before zeroGrad', async () => {
    await onRanks(2, async (rank) => {
      const { inner, model, step } = fragile(rank);
      await step();
      model.zeroGrad();
      inner.fails = 'backward between two gradients'; // b has its gradient, a has none
      await expect(model.noSync(step)).rejects.toThrow('broken');
      inner.fails = undefined;
      model.zeroGrad();
      await model.noSync(step);
      await step();
      expect(await pulled(model)).toEqual({ a: 3, b: 3 });
    });
    const errors = await onRanks(2, async (rank) => {
      const { inner, model, step } = fragile(rank);
      await step();
      model.zeroGrad();
      inner.fails = rank.rank === 1 ? 'backward between two gradients' : undefined;
      await model.noSync(step).catch(() => undefined);
      inner.fails = undefined;
      return step().catch((failure: unknown) => failure as Error);
    });
    expect(errors[1]).toMatchObject({ code: 'DDP_STATE' });
    expect((errors[1] as Error).message).toMatch(/of whole backwards.*call zeroGrad/);
    expect(errors[0]).toMatchObject({ code: 'ABORTED', originRank: 1 });
  });

  it('before it has added anything may be repeated', async () => {
    await onRanks(2, async (rank) => {
      const { inner, model, step } = fragile(rank);
      await model.noSync(step);
      inner.fails = 'backward before any gradient';
      await expect(model.noSync(step)).rejects.toThrow('broken');
      inner.fails = undefined;
      await step();
      expect(await pulled(model)).toEqual({ a: 3, b: 3 });
    });
  });
});
