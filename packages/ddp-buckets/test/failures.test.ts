// One rank fails while the others wait for it. The groups keep their time-out of ten minutes, so
// the others learn of the failure from that rank or the test fails.

import {
  allReduceHook,
  type CommunicationHook,
  type DistributedDataParallel,
} from '@shardweave/ddp-buckets';
import { Module, Sgd } from '@shardweave/nn';
import { mul, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { errorsOnRanks } from '../../../tooling/test-kit/index.ts';
import { Bag, onRanks, pull, pulled, type Rank, wrap } from './support/ranks.js';

/** Ends a test in which a rank would learn of a failure only by time, after 20 s. */
const IN_TIME = { timeout: 20_000 };

const PLACES = [
  'forward',
  'hook before forward',
  'hook after forward',
  'hook before the wrapper',
  'hook after the wrapper',
  'backward before any gradient',
  'backward between two gradients',
  'backward of the loss',
  'communication hook',
] as const;
/** Where a step fails that is not reduced. */
const LOCAL_PLACES = [
  ...PLACES.filter((place) => place !== 'communication hook'),
  'hook of a final gradient',
] as const;
type Place = (typeof PLACES | typeof LOCAL_PLACES)[number];

/** This module multiplies two parameters, and fails at the place it is told. */
class Fragile extends Module<[factor: number], Tensor> {
  readonly a: Tensor;
  readonly b: Tensor;
  readonly rank: number;
  fails: Place | undefined;
  /** Resolves when the backward may go on between the two gradients. */
  isHeld: () => Promise<void> = async () => undefined;

  constructor({ device, rank }: Rank) {
    super(device);
    this.rank = rank;
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
      throw new Error(ownText(place, this.rank));
    }
  }
}

/** Returns the text of a failure. With the digits removed it is the same on every rank. */
const ownText = (place: Place, rank: number) => `broken in ${place} of rank ${rank}`;

function fragile(rank: Rank, options: { readonly numStreams?: number } = {}) {
  const inner = new Fragile(rank);
  const communicationHook: CommunicationHook = {
    name: 'fragile',
    isSerial: false,
    reduce: async (bucket) => {
      inner.failAt('communication hook');
      return allReduceHook.reduce(bucket);
    },
  };
  const model = wrap(inner, rank, {
    messageSize: 1,
    communicationHook,
    numAllreduceStreams: options.numStreams ?? 1,
  });
  model.aroundForward({
    before: () => inner.failAt('hook before the wrapper'),
    after: () => inner.failAt('hook after the wrapper'),
  });
  rank.device.autograd.onGradientFinal(inner.b, () => inner.failAt('hook of a final gradient'));
  const step = () =>
    rank.device.scope(async () => {
      const out: Tensor = await model.call(1 + rank.rank);
      // This runs after the wrapper's own hook, with which its backward begins.
      rank.device.beforeGradientOf(out, () => inner.failAt('backward before any gradient'));
      const loss = mul(out, rank.device.full([1], 1));
      rank.device.beforeGradientOf(loss, () => inner.failAt('backward of the loss'));
      await loss.backward();
    });
  return { inner, model, step };
}

describe.each(PLACES)('a rank that fails in its %s', (place) => {
  it.each([1, 2])(
    'ends the others, on %i streams, with its number and its reason',
    IN_TIME,
    async (numStreams) => {
      const errors = await errorsOnRanks(3, async (rank) => {
        const { inner, step } = fragile(rank, { numStreams });
        await step();
        if (rank.rank === 1) {
          inner.fails = place;
        }
        await step();
      });
      expect((errors[1] as Error).message).toBe(ownText(place, 1));
      for (const rank of [0, 2]) {
        expect(errors[rank]).toMatchObject({ code: 'ABORTED', originRank: 1 });
        expect((errors[rank] as Error).message).toMatch(
          new RegExp(`failed on rank 1/3: broken in ${place}`),
        );
      }
    },
  );

  it('cannot leave the batch out and go on: gradients of different steps never meet', async () => {
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

describe.each(PLACES)('ranks that all fail in their %s', (place) => {
  it.each([
    { numStreams: 1, join: false },
    { numStreams: 2, join: false },
    { numStreams: 2, join: true },
  ])('have an error of their own each, and train on: %j', async ({ numStreams, join }) => {
    const gradients = await onRanks(3, async (rank) => {
      const { inner, model, step } = fragile(rank, { numStreams });
      const steps = async () => {
        await step();
        for (let i = 0; i < 2; i++) {
          inner.fails = place;
          await expect(step()).rejects.toThrow(ownText(place, rank.rank));
          inner.fails = undefined;
          model.zeroGrad();
          await step();
        }
      };
      await (join
        ? model.join(steps, { optimizers: [new Sgd(model.parameters(), { lr: 0 })] })
        : steps());
      return pulled(model);
    });
    expect(gradients).toEqual([
      { a: 2, b: 2 },
      { a: 2, b: 2 },
      { a: 2, b: 2 },
    ]);
  });
});

/** The places where a hook fails. */
const IN_HOOKS = [
  { isSerial: false, when: 'before its collective' },
  { isSerial: true, when: 'between its collectives' },
  { isSerial: true, when: 'after its collectives' },
  { isSerial: false, when: 'after its collective' },
] as const;

describe.each(IN_HOOKS)('a hook (%j) of the first of three buckets', ({ isSerial, when }) => {
  function late(rank: Rank, numStreams: number) {
    const state = { isFailing: false };
    const communicationHook: CommunicationHook = {
      name: 'late',
      isSerial,
      reduce: async (bucket) => {
        const isHere = state.isFailing && bucket.index === 0;
        if (isHere && when === 'before its collective') {
          throw new Error(`rank ${rank.rank} broke`);
        }
        await allReduceHook.reduce(bucket);
        if (isSerial && !(isHere && when === 'between its collectives')) {
          await bucket.group.barrier();
        }
        if (isHere) {
          throw new Error(`rank ${rank.rank} broke`);
        }
      },
    };
    const options = { communicationHook, messageSize: 1, numAllreduceStreams: numStreams };
    return { state, model: wrap(new Bag(rank.device, { a: 1, b: 1, c: 1 }), rank, options) };
  }

  it.each([1, 2])(
    'a hook that fails alike on all ranks ends nothing, %i streams',
    async (numStreams) => {
      await onRanks(2, async (rank) => {
        const { state, model } = late(rank, numStreams);
        await pull(model, 1);
        state.isFailing = true;
        await expect(pull(model, 1)).rejects.toThrow(`rank ${rank.rank} broke`);
        state.isFailing = false;
        model.zeroGrad();
        await pull(model, 1 + rank.rank);
        expect(await pulled(model)).toEqual({ a: 1.5, b: 3, c: 4.5 });
      });
    },
  );

  it.each([1, 2])(
    'a hook that fails on one rank ends the others, %i streams',
    IN_TIME,
    async (numStreams) => {
      const errors = await errorsOnRanks(2, async (rank) => {
        const { state, model } = late(rank, numStreams);
        await pull(model, 1);
        state.isFailing = rank.rank === 1;
        // A finished sum is no failure on rank 0, which learns of the other's failure in its next
        // step at the latest.
        const both = pull(model, 1).then(() => pull(model, 1));
        await both;
      });
      expect(errors[1]).toMatchObject({ message: 'rank 1 broke' });
      expect(errors[0]).toMatchObject({ code: 'ABORTED', originRank: 1 });
      expect((errors[0] as Error).message).toContain('failed on rank 1/2: rank 1 broke');
    },
  );
});

it('a hook that fails has its error also where ranks ask for more after it', async () => {
  const errors = await errorsOnRanks(2, async (rank) => {
    const communicationHook: CommunicationHook = {
      name: 'failing',
      isSerial: false,
      reduce: (bucket) =>
        rank.rank === 1 ? Promise.reject(new Error('no wire')) : allReduceHook.reduce(bucket),
    };
    const options = { communicationHook, findUnusedParameters: true };
    const model = wrap(new Bag(rank.device, { a: 3 }), rank, options);
    await pull(model, 1);
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
      // b's bucket has left and fails. a's gradient comes when rank 0 has heard of it.
      inner.isHeld = () => told;
    }
    const error = await step().catch((failure: unknown) => failure as Error);
    if (rank.rank === 0) {
      tell();
    }
    return error;
  });
  expect(errors[0]).toMatchObject({ code: 'ABORTED', originRank: 1 });
  expect(errors[1]).toMatchObject({ message: ownText('communication hook', 1) });
});

it(
  'a rank that fails after the last collective has its error when the others close',
  IN_TIME,
  async () => {
    const errors = await onRanks(2, async (rank) => {
      let isLast = false;
      const communicationHook: CommunicationHook = {
        name: 'late',
        isSerial: false,
        reduce: async (bucket) => {
          await allReduceHook.reduce(bucket);
          if (isLast && rank.rank === 1) {
            throw new Error('too late');
          }
        },
      };
      const model = wrap(new Bag(rank.device, { a: 3 }), rank, { communicationHook });
      await pull(model, 1); // The ranks exchange what they learn of it after its buckets.
      isLast = true;
      const error = await pull(model, 1).catch((failure: unknown) => failure as Error);
      await rank.group.close();
      return error;
    });
    expect(errors).toEqual([undefined, expect.objectContaining({ message: 'too late' })]);
  },
);

it('a rank that cannot read its parameters ends the job at the start', async () => {
  const errors = await errorsOnRanks(2, async (rank) => {
    const bag = new Bag(rank.device, { a: 3 });
    if (rank.rank === 0) {
      bag.get('a').toBytes = () => Promise.reject(new Error('device lost'));
    }
    await wrap(bag, rank).initialize();
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

/** Runs steps whose gradients stay on their rank. */
const UNREDUCED = {
  noSync: (model: DistributedDataParallel, step: () => Promise<void>) => model.noSync(step),
  disableAllreduce: async (model: DistributedDataParallel, step: () => Promise<void>) => {
    model.disableAllreduce();
    await step().finally(() => model.enableAllreduce());
  },
} as const;

describe.each(['noSync', 'disableAllreduce'] as const)('under %s', (mode) => {
  it.each(LOCAL_PLACES)('a rank that fails in its %s ends the others', IN_TIME, async (place) => {
    const errors = await errorsOnRanks(3, async (rank) => {
      const { inner, model, step } = fragile(rank);
      await step();
      inner.fails = rank.rank === 1 ? place : undefined;
      // The others fail in the first call that needs this rank.
      const both = UNREDUCED[mode](model, step).then(step);
      await both;
    });
    expect((errors[1] as Error).message).toBe(ownText(place, 1));
    for (const rank of [0, 2]) {
      expect(errors[rank]).toMatchObject({ code: 'ABORTED', originRank: 1 });
      expect((errors[rank] as Error).message).toContain(`failed on rank 1/3: broken in ${place}`);
    }
  });

  it.each(LOCAL_PLACES)('ranks that all fail in their %s train on', async (place) => {
    await onRanks(2, async (rank) => {
      const { inner, model, step } = fragile(rank);
      for (let i = 0; i < 2; i++) {
        inner.fails = place;
        await expect(UNREDUCED[mode](model, step)).rejects.toThrow(ownText(place, rank.rank));
        inner.fails = undefined;
        model.zeroGrad();
        await UNREDUCED[mode](model, step);
        await step();
        expect(await pulled(model)).toEqual({ a: 3, b: 3 });
      }
    });
  });
});

describe.each([1, 2])('where all fail alike in a backward, world size %i', (worldSize) => {
  /** Runs a micro-batch in noSync where `isLocal` is true, else one that is reduced. */
  const run = ({ model, step }: ReturnType<typeof fragile>, isLocal: boolean) =>
    isLocal ? model.noSync(step) : step();

  it.each([true, false])(
    'a backward that had added nothing leaves earlier sums of noSync, in noSync: %s',
    async (isLocal) => {
      await onRanks(worldSize, async (rank) => {
        const made = fragile(rank);
        await made.model.noSync(made.step);
        await made.model.noSync(made.step);
        made.inner.fails = 'backward before any gradient';
        await expect(run(made, isLocal)).rejects.toThrow('broken');
        made.inner.fails = undefined;
        await made.step();
        const mean = worldSize === 1 ? 1 : 1.5;
        expect(await pulled(made.model)).toEqual({ a: 3 * mean, b: 3 * mean });
      });
    },
  );

  it.each([true, false])(
    'a backward with nothing left before it is as if it had never run, in noSync: %s',
    async (isLocal) => {
      await onRanks(worldSize, async (rank) => {
        const made = fragile(rank);
        await made.step();
        made.inner.fails = 'backward between two gradients'; // b has its gradient, a has none.
        await expect(run(made, isLocal)).rejects.toThrow('broken');
        made.inner.fails = undefined;
        await made.step();
        const mean = worldSize === 1 ? 1 : 1.5;
        expect(await pulled(made.model)).toEqual({ a: 2 * mean, b: 2 * mean });
        made.model.zeroGrad();
        expect(rank.device.memory().live.gradient).toBe(0);
      });
    },
  );

  it.each([true, false])(
    'a backward that had added to earlier sums of noSync makes the next reduction ask for zeroGrad, in noSync: %s',
    async (isLocal) => {
      await onRanks(worldSize, async (rank) => {
        const made = fragile(rank);
        await made.model.noSync(made.step);
        made.inner.fails = 'backward between two gradients';
        await expect(run(made, isLocal)).rejects.toThrow('broken');
        made.inner.fails = undefined;
        await made.model.noSync(made.step);
        for (let i = 0; i < 2; i++) {
          const error = await made.step().catch((failure: unknown) => failure as Error);
          expect(error).toMatchObject({ code: 'DDP_STATE' });
          expect((error as Error).message).toMatch(/left to be whole.*Call zeroGrad/);
        }
        made.model.zeroGrad();
        await made.model.noSync(made.step);
        await made.step();
        const mean = worldSize === 1 ? 1 : 1.5;
        expect(await pulled(made.model)).toEqual({ a: 2 * mean, b: 2 * mean });
      });
    },
  );
});
