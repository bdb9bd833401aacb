// After failures and disposal, and beside other wrappers, whatever is left still works.

import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import { Module, Sequential } from '@shardweave/nn';
import { add, type Device, mul, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { Bag, onBags, onRanks, pull, pulled, wrap } from './support/ranks.js';

/** This module passes its input on, and its backward throws when it is told to. */
class Trap extends Module<[x: Tensor], Tensor> {
  isSet = false;

  forward(x: Tensor): Tensor {
    const { device } = this;
    const out = add(x, device.zeros([1]));
    device.beforeGradientOf(out, () => {
      if (this.isSet) {
        throw new Error('trapped');
      }
    });
    return out;
  }
}

/** This module multiplies a and b so that the trap's backward comes between those of b and a. */
class Trapped extends Module<[factor: number], Tensor> {
  readonly a: Tensor;
  readonly b: Tensor;
  readonly trap: Trap;

  constructor(device: Device) {
    super(device);
    this.a = this.parameter('a', device.full([1], 1));
    this.b = this.parameter('b', device.full([1], 1));
    this.trap = this.child('trap', new Trap(device));
  }

  async forward(factor: number): Promise<Tensor> {
    const first = mul(this.a, this.device.full([1], factor));
    return mul(await this.trap.call(first), this.b);
  }
}

describe.each([
  { messageSize: 1 }, // The first bucket is on its way.
  { messageSize: 1000 }, // The only bucket is half full.
  { messageSize: 1, retainAllreduceBuffers: true },
])('a backward that fails, %o', (options) => {
  it('a failure on all ranks leaves nothing on the device, and the next backward is whole', async () => {
    for (const worldSize of [1, 2]) {
      await onRanks(worldSize, async (rank) => {
        const trapped = new Trapped(rank.device);
        const model = wrap(trapped, rank, options);
        for (const isSet of [false, true, false]) {
          trapped.trap.isSet = isSet;
          model.zeroGrad();
          const done = pull(model, 2);
          if (isSet) {
            await expect(done).rejects.toThrow('trapped');
            expect(rank.device.memory().live).toMatchObject({ gradient: 0, staging: 0 });
          } else {
            await done;
            expect(await pulled(model)).toEqual({ a: 2, b: 2 });
          }
        }
      });
    }
  });
});

it('dispose frees everything, also in the middle of an accumulation', async () => {
  await onBags(2, { a: 3, b: 200 }, {}, async ({ rank, model }) => {
    await pull(model, 1);
    await model.noSync(() => pull(model, 1));
    model.dispose();
    expect(rank.device.memory().live.total).toBe(0);
  });
});

it('two wrappers on one group take turns, named apart in traces', async () => {
  await onRanks(2, async (rank) => {
    const tags: string[] = [];
    rank.group.onTrace = ({ tag }) => void (tag?.includes('bucket ') && tags.push(tag));
    const models = ['generator', 'critic'].map((name) =>
      wrap(new Bag(rank.device, { a: 3 }), rank, { name }),
    );
    for (const model of models) {
      await pull(model, 1 + rank.rank);
    }
    for (const model of models) {
      expect(await pulled(model)).toEqual({ a: 1.5 });
    }
    expect(tags).toEqual(['generator bucket 0', 'critic bucket 0']);
    expect(rank.device.trace!.events).toEqual([]); // Ranges are traced only with prof.
  });
});

it('a wrapped module works inside others, and in evaluation', async () => {
  await onRanks(2, async (rank) => {
    const { device } = rank;
    const bag = new Bag(device, { a: 3 }).eval();
    const inner = new DistributedDataParallel(bag, { processGroup: rank.group });
    expect(inner.isTraining).toBe(false);
    const outer = new Sequential(device, [inner as unknown as Module<[Tensor], Tensor>]);
    expect(outer.namedParameters().map(([path]) => path)).toEqual(['0.a']);
    await inner.initialize();
    const { allGathers } = rank.group.stats();
    const total = await device.noGrad(() => inner.call(1));
    expect(total.origin).toBeUndefined();
    expect(rank.group.stats().allGathers).toBe(allGathers);
    expect(inner.activeParams).toEqual([]); // There is nothing to reduce yet.
  });
});
