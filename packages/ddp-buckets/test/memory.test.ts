// A step's buffers on the device and on the host are bounded: none is made after the third step,
// and none is left.

import type { ProcessGroup } from '@shardweave/collectives';
import { Linear, Sgd } from '@shardweave/nn';
import { type KernelCalls, sum } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import {
  Bag,
  forwardBackward,
  makeOptimizer,
  onBags,
  onRanks,
  pull,
  SMALL_BUCKETS,
  tinyGpt2,
  wrap,
} from './support/ranks.js';

/** Returns the host buffers of all-reduces on `groups` from now on. */
function hostBuffersOf(groups: readonly ProcessGroup[]): ReadonlySet<ArrayBufferLike> {
  const seen = new Set<ArrayBufferLike>();
  for (const group of groups) {
    const allReduce = group.allReduce.bind(group);
    group.allReduce = (input, output, options) => {
      if (options.tag?.startsWith('bucket')) {
        seen.add(input.buffer);
      }
      return allReduce(input, output, options);
    };
  }
  return seen;
}

describe.each([
  {},
  { retainAllreduceBuffers: true },
  { delayAllreduce: true },
  { numAllreduceStreams: 2 },
  { staticGraph: true },
  { findUnusedParameters: true },
])('with %o', (options) => {
  it('steps make no buffer on device or host after the third', async () => {
    const backend = createReferenceBackend();
    let numMade = 0;
    const alloc = backend.alloc.bind(backend);
    backend.alloc = (byteLength, label) => {
      numMade += 1;
      return alloc(byteLength, label);
    };
    const after: unknown[] = [];
    await onRanks(
      2,
      async (rank) => {
        const sizes = options.delayAllreduce === true ? {} : SMALL_BUCKETS;
        const model = wrap(tinyGpt2(rank.device), rank, { ...sizes, ...options });
        const optimizer = makeOptimizer(model, 'adamw');
        await model.initialize();
        const hostBuffers = hostBuffersOf(model.communicators);
        for (let step = 0; step < 8; step++) {
          const rows = { batch: 2, first: rank.rank, count: 1 };
          await forwardBackward(rank.device, model, step, rows);
          await optimizer.step();
          optimizer.zeroGrad();
          await rank.group.barrier();
          if (rank.rank === 0) {
            after.push({ numMade, usage: backend.usage(), numHostBuffers: hostBuffers.size });
          }
          await rank.group.barrier();
        }
      },
      { backend },
    );
    await backend.dispose();
    expect(after.slice(3)).toEqual(Array(5).fill(after[2]));
  });
});

it('host buffers of sizes that no bucket has are freed', async () => {
  await onBags(2, { a: 300, b: 200 }, {}, async ({ rank, bag, model }) => {
    await model.initialize();
    /** Returns the host buffers that two backwards use with the current buckets. */
    const buffersNow = async () => {
      const seen = hostBuffersOf([rank.group]);
      for (let step = 0; step < 2; step++) {
        await pull(model, 1);
      }
      return [...seen];
    };
    await pull(model, 1);
    const before = await buffersNow();
    expect(before).toHaveLength(1);
    bag.get('b').requiresGrad = false;
    await buffersNow();
    bag.get('b').requiresGrad = true;
    // The sizes are those of before and the buffers are new, since nobody kept the old ones
    // meanwhile.
    for (const buffer of await buffersNow()) {
      expect(before).not.toContain(buffer);
    }
  });
});

it('memory is what gradients and buckets add up to', async () => {
  await onRanks(2, async (rank) => {
    const gpt2 = tinyGpt2(rank.device);
    const model = wrap(gpt2, rank, SMALL_BUCKETS);
    const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
    const rows = { batch: 2, first: rank.rank, count: 1 };
    const gradientBytes = gpt2.parameters().reduce((sum, { size }) => sum + 4 * size, 0);
    for (let step = 0; step < 3; step++) {
      await forwardBackward(rank.device, model, step, rows);
      const { live } = rank.device.memory();
      expect(live).toMatchObject({ gradient: gradientBytes, staging: 0, activation: 0 });
      await optimizer.step();
      optimizer.zeroGrad();
      expect(rank.device.memory().live.gradient).toBe(0);
    }
    model.dispose();
    expect(rank.device.memory().live.total).toBe(0);
  });
});

it('memory during backward is that of unfinished buckets, at its end all gradients and one bucket', async () => {
  await onRanks(2, async (rank) => {
    const names = Array.from({ length: 8 }, (_, i) => `p${i}`);
    const spec = Object.fromEntries(names.map((name) => [name, 1024]));
    // A bucket has two of them.
    const model = wrap(new Bag(rank.device, spec), rank, { messageSize: 1500 });
    const live: number[] = [];
    for (const parameter of model.parameters()) {
      rank.device.autograd.onGradientFinal(parameter, () => {
        live.push(rank.device.memory().live.gradient);
      });
    }
    for (let step = 0; step < 2; step++) {
      rank.device.ledger.resetPeak();
      live.length = 0;
      await pull(model, 1);
      expect(live).toEqual([8192, 0, 8192, 0, 8192, 0, 8192, 0]); // A full bucket has left.
      expect(rank.device.memory().peak.gradient).toBe(10 * 4096);
      model.zeroGrad();
    }
  });
});

it('has each gradient of a linear layer once: it is written into its bucket', async () => {
  const backend = createReferenceBackend();
  const copied: number[] = [];
  const run = backend.run.bind(backend);
  backend.run = (kernel, call) => {
    if (kernel === 'cast') {
      copied.push((call as KernelCalls['cast']).x.size);
    }
    run(kernel, call);
  };
  await onRanks(
    2,
    async (rank) => {
      const linear = new Linear(rank.device, { inFeatures: 4, outFeatures: 5 });
      const model = wrap(linear, rank);
      const step = () =>
        rank.device.scope(async () => {
          const x = rank.device.full([2, 4], 1 + rank.rank);
          await sum(await model.call(x)).backward();
        });
      await step();
      await rank.group.barrier();
      copied.length = 0;
      await rank.group.barrier();
      await step(); // The first one's gradients are kept beside it.
      expect([...(await linear.weight.grad!.toArray())]).toEqual(Array(20).fill(6));
    },
    { backend },
  );
  await backend.dispose();
  expect(copied).toEqual([]);
});

it('memory of the first backward has no buffer of all gradients: buckets are capped from the start', async () => {
  await onRanks(2, async (rank) => {
    const largest: number[] = [];
    const gpt2 = tinyGpt2(rank.device);
    rank.group.onTrace = ({ tag, bytes }) => {
      if (tag?.startsWith('bucket')) {
        largest.push(bytes);
      }
    };
    const model = wrap(gpt2, rank, SMALL_BUCKETS);
    await forwardBackward(rank.device, model, 0, { batch: 2, first: rank.rank, count: 1 });
    // A bucket's capacity is a minimum: the parameter that fills it may go beyond it.
    const largestParameter = Math.max(...gpt2.parameters().map(({ size }) => 4 * size));
    const gaps = 16 * 512;
    expect(Math.max(...largest)).toBeLessThan(4096 + largestParameter + gaps);
    expect(largest.length).toBeGreaterThan(3);
  });
});
