// noSync leaves gradients for a later backward. None is lost, and none is rounded to the wire's
// dtype on the way.

import { type FsdpOptions, FsdpStateError, FullyShardedDataParallel } from '@shardweave/fsdp';
import type { Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';
import { backwardOf, Dot, Dots, firstGradients } from './support/dots.js';
import { wrapIn } from './support/sharding.js';

const LENGTH = 200; // This is more than a block of 128, so that both ranks hold some of it.

/** Returns a root without parameters of its own around two instances. */
function pair({ device, group }: Rank, options: Partial<FsdpOptions> = {}) {
  const wrap = wrapIn({ group }, options);
  const parts = [0, 1].map((i) => wrap(new Dot(device, LENGTH), `part ${i}`));
  const inner = new Dots(device, parts);
  return { inner, model: wrap(inner, 'root') };
}

describe.each(['bf16', 'f16'] as const)('noSync while gradients travel in %s', (computeDType) => {
  // Above this value the format's numbers are 2 apart, so a sum in 16 bits would lose a single 1.
  const large = computeDType === 'bf16' ? 256 : 2048;

  it.each([false, true])('adds up in f32, resharding after forward: %s', (reshards) =>
    onRanks(2, async (rank) => {
      const { model } = pair(rank, {
        mixedPrecision: true,
        computeDType,
        reshardAfterForward: reshards,
      });
      await model.noSync(async () => {
        for (const value of [large, 1]) {
          await backwardOf(model, LENGTH, value);
        }
      });
      await backwardOf(model, LENGTH, 1);
      expect(await firstGradients(model)).toEqual([large + 2, large + 2]);
    }),
  );
});

describe.each([
  { findUnusedParameters: false },
  { findUnusedParameters: true },
  { findUnusedParameters: false, bucketCapMb: 0 },
])('what noSync left in a part that the last backward misses, %j', (options) => {
  it.each(['is skipped in forward', 'is detached'])('is reduced where it %s', (how) =>
    onRanks(2, async (rank) => {
      const { inner, model } = pair(rank, options);
      await model.noSync(() => backwardOf(model, LENGTH, 2 + 4 * rank.rank));
      expect(await firstGradients(model)).toEqual([undefined, undefined]);
      if (how === 'is detached') {
        inner.detached = [0];
      } else {
        inner.chosen = [1];
      }
      await backwardOf(model, LENGTH, 16);
      // The means over ranks: of 2 and 6, which noSync left, and of 16 and 16, which came after it.
      expect(await firstGradients(model)).toEqual([4, 20]);
    }),
  );
});

describe('noSync whose body throws', () => {
  it.each(['before a forward', 'after a backward'])('a throw %s is over ends noSync', (when) =>
    onRanks(2, async (rank) => {
      const { model } = pair(rank);
      const thrown = model.noSync(async () => {
        if (when === 'after a backward') {
          await backwardOf(model, LENGTH, 2 + 4 * rank.rank);
        }
        throw new Error('a bad batch');
      });
      await expect(thrown).rejects.toThrow('a bad batch');
      await backwardOf(model, LENGTH, 1 + 2 * rank.rank);
      const left = when === 'after a backward' ? 4 : 0;
      expect(await firstGradients(model)).toEqual([2 + left, 2 + left]);
    }),
  );

  it('a noSync inside another leaves that one on', () =>
    onRanks(2, async (rank) => {
      const { model } = pair(rank);
      await model.noSync(async () => {
        await expect(
          model.noSync(() => {
            throw new Error('a bad batch');
          }),
        ).rejects.toThrow('a bad batch');
        await backwardOf(model, LENGTH, 1);
      });
      expect(await firstGradients(model)).toEqual([undefined, undefined]);
    }));
});

describe.each([
  { worldSize: 1, options: {} },
  { worldSize: 2, options: {} },
  { worldSize: 2, options: { reshardAfterForward: false, bucketCapMb: 0 } },
  { worldSize: 2, options: { findUnusedParameters: true } },
])('a backward that fails on all ranks alike, %j', ({ worldSize, options }) => {
  /** Returns a model, and a micro-batch of 16 that fails before part 1 or after it. */
  function failing(rank: Rank) {
    const { inner, model } = pair(rank, options);
    const { device } = rank;
    const fail = async (where: 'before' | 'after') => {
      const stop = device.autograd.onGradientFinal(inner.parameters()[1]!, () => {
        throw new Error('a bad batch');
      });
      const failed = device.scope(async () => {
        const total = (await model.call(device.full([1, LENGTH], 16))) as Tensor;
        device.beforeGradientOf(total, () => {
          if (where === 'before') {
            throw new Error('a bad batch');
          }
        });
        await total.backward();
      });
      await expect(failed).rejects.toThrow('a bad batch');
      stop();
    };
    return { inner, model, fail };
  }

  it.each([true, false])('leaves what it has not changed of noSync, in noSync: %s', (isLocal) =>
    onRanks(worldSize, async (rank) => {
      const { inner, model, fail } = failing(rank);
      await model.noSync(() => backwardOf(model, LENGTH, 2));
      await (isLocal ? model.noSync(() => fail('before')) : fail('before'));
      await backwardOf(model, LENGTH, 1);
      expect(await firstGradients(model)).toEqual([3, 3]);
      // Where part 1 has been changed and is begun again, part 0 still has what was left.
      model.zeroGrad();
      await model.noSync(() => backwardOf(model, LENGTH, 2));
      await (isLocal ? model.noSync(() => fail('after')) : fail('after'));
      inner.children().get('1')!.zeroGrad();
      await backwardOf(model, LENGTH, 1);
      expect(await firstGradients(model)).toEqual([3, 1]);
    }),
  );

  it.each([true, false])('is as if it had never run, in noSync: %s', (isLocal) =>
    onRanks(worldSize, async (rank) => {
      const { model, fail } = failing(rank);
      await backwardOf(model, LENGTH, 4);
      if (worldSize === 1) {
        model.zeroGrad(); // A single rank adds to earlier gradients before its backward ends.
      }
      const before = worldSize === 1 ? 0 : 4;
      await (isLocal ? model.noSync(() => fail('after')) : fail('after'));
      await backwardOf(model, LENGTH, 1);
      expect(await firstGradients(model)).toEqual([before + 1, before + 1]);
      model.zeroGrad();
      expect(rank.device.memory().live.gradient).toBe(0);
    }),
  );

  it.each([true, false])(
    'a backward that has added to what noSync left makes the next reduction ask for zeroGrad, in noSync: %s',
    (isLocal) =>
      onRanks(worldSize, async (rank) => {
        const { inner, model, fail } = failing(rank);
        await model.noSync(() => backwardOf(model, LENGTH, 2));
        await (isLocal ? model.noSync(() => fail('after')) : fail('after'));
        await model.noSync(() => backwardOf(model, LENGTH, 1));
        for (let i = 0; i < 2; i++) {
          const error = await backwardOf(model, LENGTH, 1).catch((reason: unknown) => reason);
          expect(error).toBeInstanceOf(FsdpStateError);
          expect((error as Error).message).toMatch(/those of 'part 1'.*Call zeroGrad/);
        }
        inner.children().get('0')!.zeroGrad();
        await expect(backwardOf(model, LENGTH, 1)).rejects.toThrow('Call zeroGrad');
        model.zeroGrad();
        await model.noSync(() => backwardOf(model, LENGTH, 2));
        await backwardOf(model, LENGTH, 1);
        expect(await firstGradients(model)).toEqual([3, 3]);
      }),
  );
});

it('a failed backward of a single rank that has added to an earlier gradient asks for zeroGrad', () =>
  onRanks(1, async (rank) => {
    const { inner, model } = pair(rank);
    await backwardOf(model, LENGTH, 4);
    const stop = rank.device.autograd.onGradientFinal(inner.parameters()[0]!, () => {
      throw new Error('a bad batch');
    });
    await expect(backwardOf(model, LENGTH, 1)).rejects.toThrow('a bad batch');
    stop();
    await expect(backwardOf(model, LENGTH, 1)).rejects.toThrow('Call zeroGrad');
    model.zeroGrad();
    await backwardOf(model, LENGTH, 1);
    expect(await firstGradients(model)).toEqual([1, 1]);
  }));

it('zeroGrad of a part forgets what noSync left of that part, and of no other', () =>
  onRanks(2, async ({ device, group, rank }) => {
    // There is one flat parameter; each part lies in a shard of its own, followed by padding.
    const parts = [0, 1].map(() => new Dot(device, LENGTH));
    const inner = new Dots(device, parts);
    const model = new FullyShardedDataParallel(inner, { processGroup: group });
    await model.noSync(() => backwardOf(model, LENGTH, 3));
    parts[0]!.zeroGrad();
    inner.chosen = [1];
    await backwardOf(model, LENGTH, 1);
    expect(await firstGradients(model)).toEqual([rank === 0 ? 0 : 4]);
    // The next backward doesn't skip the part that was left out before.
    inner.chosen = [0, 1];
    await backwardOf(model, LENGTH, 2);
    expect(await firstGradients(model)).toEqual([rank === 0 ? 2 : 6]);
  }));
