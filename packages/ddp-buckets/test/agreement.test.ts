// Ranks must have in common the parameters at the start, their values, and which of them are
// trained.

import { DdpStructureError } from '@shardweave/ddp-buckets';
import { checkpoint, loadStateDict, Module, stateDict } from '@shardweave/nn';
import { type Device, Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { describe, expect, it } from 'vitest';
import { errorsOnRanks } from '../../../tooling/test-kit/index.ts';
import { Bag, type BagSpec, onBags, onRanks, pull, pulled, wrap } from './support/ranks.js';

/** This is a Bag with a running value beside it. */
class Counting extends Module<[factor: number], Tensor> {
  readonly bag: Bag;
  readonly count: Tensor;

  constructor(device: Device, start: number) {
    super(device);
    this.bag = this.child('bag', new Bag(device, { a: 3, b: [5, 'f16'] }));
    this.count = this.buffer('count', device.tensor([start, start]));
  }

  async forward(factor: number): Promise<Tensor> {
    return this.bag.call(factor);
  }
}

const fill = (tensor: Tensor, value: number) =>
  tensor.device.scope(() =>
    tensor.device.copyInto(tensor, tensor.device.full(tensor.shape, value)),
  );

describe('initialize', () => {
  it("gives every rank rank 0's parameters and buffers, of all dtypes, frozen ones too", async () => {
    await onRanks(3, async (rank) => {
      const counting = new Counting(rank.device, 10 + rank.rank);
      counting.bag.get('a').requiresGrad = false;
      for (const parameter of counting.parameters()) {
        fill(parameter, 1 + rank.rank);
      }
      const model = wrap(counting, rank);
      await model.initialize();
      for (const tensor of counting.parameters()) {
        expect([...(await tensor.toArray())]).toEqual(Array(tensor.size).fill(1));
      }
      expect([...(await counting.count.toArray())]).toEqual([10, 10]);
      const { broadcasts } = rank.group.stats();
      expect(broadcasts).toBe(2); // There is one for f32 and one for f16.
      await model.initialize();
      await model.call(1);
      expect(rank.group.stats().broadcasts).toBe(broadcasts); // There are no more.
    });
  });

  it.each<[string, BagSpec, RegExp]>([
    [
      'fewer',
      { a: 3 },
      /\(2 of them\).*got 1 on rank 1.*Number 1 is 'b f32 \[5\]' on rank 0 and missing/,
    ],
    [
      'more',
      { a: 3, b: 5, c: 1 },
      /got 3 on rank 1.*Number 2 is missing on rank 0 and 'c f32 \[1\]'/,
    ],
    [
      'another name',
      { a: 3, c: 5 },
      /Number 1 is 'b f32 \[5\]' on rank 0 and 'c f32 \[5\]' on rank 1/,
    ],
    ['another shape', { a: 5, b: 3 }, /Number 0 is 'a f32 \[3\]' on rank 0 and 'a f32 \[5\]'/],
    ['another dtype', { a: 3, b: [5, 'f16'] }, /Number 1 is 'b f32 \[5\]' on rank 0 and 'b f16/],
  ])('refuses %s parameters on a rank, on all ranks', async (_, other, message) => {
    const errors = await errorsOnRanks(3, async (rank) => {
      const spec = rank.rank === 1 ? other : { a: 3, b: 5 };
      const model = wrap(new Bag(rank.device, spec), rank);
      await model.initialize();
    });
    for (const error of errors) {
      expect(error).toBeInstanceOf(DdpStructureError);
      expect((error as Error).message).toMatch(message);
    }
  });
});

it('what differs ends nothing: the group is as it was', async () => {
  await onRanks(2, async (rank) => {
    const other = wrap(new Bag(rank.device, { a: 3 + rank.rank }), rank);
    await expect(other.initialize()).rejects.toBeInstanceOf(DdpStructureError);
    const model = wrap(new Bag(rank.device, { a: 3 }), rank);
    await pull(model, 1 + rank.rank);
    expect(await pulled(model)).toEqual({ a: 1.5 });
  });
});

it('what ranks have frozen differently ends nothing, with fewer buckets on one', async () => {
  await onBags(2, { a: 3, b: 3, c: 3 }, { messageSize: 1 }, async ({ rank, bag, model }) => {
    await pull(model, 1);
    const frozen = ['a', 'b'].slice(rank.rank).map((name) => bag.get(name));
    for (const parameter of frozen) {
      parameter.requiresGrad = false;
    }
    await expect(pull(model, 1)).rejects.toBeInstanceOf(DdpStructureError);
    for (const parameter of frozen) {
      parameter.requiresGrad = true;
    }
    model.zeroGrad();
    await pull(model, 1 + rank.rank);
    expect(await pulled(model)).toEqual({ a: 1.5, b: 3, c: 4.5 });
  });
});

it('the broadcast of a large model sends each byte once, in pieces', async () => {
  const backend = await createCpuBackend({ threads: 1 });
  // This counts elements. Two such parameters are more than one piece of 32 MiB.
  const large = 4.5e6;
  await onRanks(
    2,
    async (rank) => {
      const bag = new Bag(rank.device, { a: large, b: large, c: 10 });
      fill(bag.get('b'), 1 + rank.rank);
      await wrap(bag, rank).initialize();
      const { broadcasts, bytesSent } = rank.group.stats();
      expect(broadcasts).toBe(2);
      const parameterBytes = rank.rank === 0 ? 4 * (2 * large + 10) : 0;
      // These are the agreement's own messages.
      expect(bytesSent - parameterBytes).toBeLessThan(100);
      expect((await bag.get('b').toArray()).every((value) => value === 1)).toBe(true);
      bag.dispose();
    },
    { backend },
  );
  await backend.dispose();
});

/** This module has two buffers in one storage. */
class Halves extends Module<[], Tensor> {
  constructor(device: Device, value: number) {
    super(device);
    const whole = device.full([4], value).keep();
    for (const [i, name] of ['first', 'second'].entries()) {
      whole.storage.retain();
      this.buffer(name, new Tensor(whole.storage, [2], 2 * i).markKept());
    }
    this.parameter('weight', device.full([1], 1));
  }

  forward(): Tensor {
    return this.ownParameters().get('weight')!;
  }
}

it('tensors that look into one storage are sent to their places', async () => {
  await onRanks(2, async (rank) => {
    const halves = new Halves(rank.device, 7 * rank.rank);
    const [first, second] = [...halves.ownBuffers().values()];
    if (rank.rank === 0) {
      fill(second!, 3);
    }
    await wrap(halves, rank).initialize();
    expect([...(await first!.toArray()), ...(await second!.toArray())]).toEqual([0, 0, 3, 3]);
  });
});

describe('the trainable set', () => {
  it('must be the same on all ranks: an error on each before anything is sent', async () => {
    const errors = await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, { a: 3, b: 5, c: 5 });
      if (rank.rank === 1) {
        bag.get('b').requiresGrad = false; // a and c are two of the three parameters.
      }
      const model = wrap(bag, rank);
      const error = await pull(model, 1).catch((failure: unknown) => failure as Error);
      expect(rank.group.stats().allReduces).toBe(0);
      return error as Error;
    });
    for (const error of errors) {
      expect(error).toBeInstanceOf(DdpStructureError);
      expect(error.message).toMatch(
        /trainable parameters of rank 0 \(3 of them\).*got 2 on rank 1/,
      );
    }
  });

  it('is compared before any bucket leaves, on any of several streams', async () => {
    await onRanks(2, async (rank) => {
      const bag = new Bag(rank.device, { a: 5, b: 5, c: 5, d: 5 });
      const model = wrap(bag, rank, { messageSize: 1, numAllreduceStreams: 2 });
      await pull(model, 1);
      const counts = () => model.communicators.map((group) => group.stats().allReduces);
      const before = counts();
      bag.get(rank.rank === 0 ? 'b' : 'c').requiresGrad = false; // The buckets have equal sizes.
      // The comparison waits for its turn on the first stream, and nothing is before it on the
      // second.
      let release = () => {};
      const held = new Promise<void>((resolve) => {
        release = resolve;
      });
      const turn = rank.group.starts.enqueue(held, async () => {}, { isSerial: true });
      const pulled = pull(model, 1).catch((error: unknown) => error);
      for (let i = 0; i < 10; i++) {
        await rank.device.synchronize();
        await new Promise(setImmediate);
      }
      expect(counts()).toEqual(before);
      release();
      await turn;
      expect(await pulled).toBeInstanceOf(DdpStructureError);
      await rank.group.barrier();
      expect(counts()).toEqual(before);
    });
  });

  it('must change on all ranks at once: else an error, not a wrong sum', async () => {
    const errors = await onBags(2, { a: 3, b: 5, c: 5 }, {}, async ({ rank, bag, model }) => {
      await pull(model, 1);
      bag.get(rank.rank === 0 ? 'b' : 'c').requiresGrad = false; // Equally many elements are left.
      return pull(model, 1).catch((failure: unknown) => failure as Error);
    });
    for (const error of errors) {
      expect(error).toBeInstanceOf(DdpStructureError);
    }
    const late = await onBags(2, { a: 3, b: 5 }, {}, async ({ rank, bag, model }) => {
      await pull(model, 1);
      if (rank.rank === 0) {
        bag.get('b').requiresGrad = false;
      }
      return pull(model, 1).catch((failure: unknown) => failure as Error);
    });
    for (const error of late) {
      expect(error).toMatchObject({ code: 'MISMATCH' });
    }
  });
});

describe('values', () => {
  it('saved through the wrapper are those of the bare module, and back; one rank may load', async () => {
    await onRanks(2, async (rank) => {
      const bare = new Counting(rank.device, 5);
      for (const parameter of bare.parameters()) {
        fill(parameter, 7);
      }
      const model = wrap(new Counting(rank.device, 0), rank);
      await pull(model, 1);
      expect([...(await stateDict(model)).keys()]).toEqual(['bag.a', 'bag.b', 'count']);
      if (rank.rank === 1) {
        await loadStateDict(model, await stateDict(bare));
      }
      await model.syncParameters({ root: 1 });
      expect(await stateDict(model)).toEqual(await stateDict(bare));
      await loadStateDict(bare, await stateDict(model));
      model.zeroGrad();
      await pull(model, 1 + rank.rank); // The buckets are as they were.
      expect(await pulled(model)).toEqual({ 'bag.a': 1.5, 'bag.b': 3 });
    });
  });

  it('values of buffers are synchronized on request', async () => {
    await onRanks(2, async (rank) => {
      const counting = new Counting(rank.device, 0);
      const model = wrap(counting, rank);
      await model.initialize();
      fill(counting.count, 3 + rank.rank);
      await model.call(1);
      expect([...(await counting.count.toArray())]).toEqual(Array(2).fill(3 + rank.rank));
      await model.syncBuffers({ root: 1 });
      expect([...(await counting.count.toArray())]).toEqual([4, 4]);
    });
  });

  it('values of buffers do not follow again where a checkpoint runs the forward again', async () => {
    await onRanks(2, async (rank) => {
      const counting = new Counting(rank.device, 0);
      const model = wrap(counting, rank, { broadcastBuffers: true });
      await pull(model, 1);
      const tags: string[] = [];
      rank.group.onTrace = ({ tag }) => void tags.push(tag ?? '');
      await pull(checkpoint(model), 1);
      expect(tags).toEqual(['ddp buffers', 'bucket 0', 'bucket 1']);
    });
  });

  it('values of buffers follow rank 0 in each forward of training with broadcastBuffers', async () => {
    await onRanks(2, async (rank) => {
      const counting = new Counting(rank.device, 0);
      const model = wrap(counting, rank, { broadcastBuffers: true });
      await model.initialize();
      fill(counting.count, 3 + rank.rank);
      await model.eval().call(1);
      expect([...(await counting.count.toArray())]).toEqual(Array(2).fill(3 + rank.rank));
      await model.train().call(1);
      expect([...(await counting.count.toArray())]).toEqual([3, 3]);
    });
  });
});
