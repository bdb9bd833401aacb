// These tests use activation checkpointing inside a wrapped module and around one.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { checkpoint, type Module } from '@shardweave/nn';
import type { Device, Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import {
  forwardBackward,
  layer,
  moduleOf,
  onRanks,
  Stack,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import {
  expectEqualTraining,
  expectIdle,
  shardedGpt2,
  type Wrap,
  wrapIn,
} from './support/sharding.js';

type Place = 'none' | 'inside' | 'outside';

function build(place: Place, device: Device, wrap: Wrap): Module {
  const blocks = [layer(device), layer(device), layer(device)].map((block) => {
    if (place === 'inside') {
      return wrap(checkpoint(block));
    }
    return place === 'outside' ? checkpoint(wrap(block) as Module<[Tensor], Tensor>) : wrap(block);
  });
  return wrap(new Stack(device, [layer(device), ...blocks]));
}

it.each([
  { place: 'none', gathers: 2 },
  { place: 'inside', gathers: 2 },
  { place: 'outside', gathers: 3 },
] as const)('checkpoint $place: $gathers gathers a step for each unit', (options) =>
  onRanks(2, async ({ device, group, rank }) => {
    const wrap = wrapIn({ group }, { processGroupReduceScatter: group, bucketCapMb: 0 });
    const model = build(options.place, device, wrap) as FullyShardedDataParallel;
    await model.initialize();
    for (let step = 0; step < 3; step++) {
      const before = group.stats();
      await trainOnce(model, { first: rank, count: 1 }, step);
      // The root needs one gather, since it keeps its parameters until backward.
      expect(group.stats().allGathers - before.allGathers).toBe(1 + 3 * options.gathers);
      expect(group.stats().reduceScatters - before.reduceScatters).toBe(4);
      expect(device.memory().live).toMatchObject({ gathered: 0, activation: 0, staging: 0 });
    }
  }),
);

it('a checkpoint around the root runs the whole model again in backward', async () => {
  await expectEqualTraining(
    {
      build: (device, wrap) => {
        const inner = wrap(new Stack(device, [wrap(layer(device)), layer(device)]));
        return checkpoint(inner as Module<[Tensor], Tensor>);
      },
    },
    2,
  );
});

it('a second run that fails leaves every instance idle and nothing gathered', () =>
  onRanks(2, async ({ device, group, rank }) => {
    let isFailing = true;
    const failing = moduleOf(device, { layer: layer(device) }, ({ layer }, x: Tensor) => {
      if (device.isInBackward && isFailing) {
        throw new Error('second run');
      }
      return layer.call(x);
    });
    const wrap = wrapIn({ group });
    const wrapped = wrap(failing);
    const model = wrap(new Stack(device, [layer(device), checkpoint(wrapped), layer(device)]));
    await expect(trainOnce(model, { first: rank, count: 1 })).rejects.toThrow('second run');
    expectIdle(model);
    expect(device.memory().live).toMatchObject({ gathered: 0, gradient: 0, activation: 0 });
    isFailing = false;
    await trainOnce(model, { first: rank, count: 1 });
    model.assertState('idle');
  }));

it('works with GPT-2 whose blocks are checkpointed around their sharding', async () => {
  const losses = await onRanks(2, async (rank) => {
    const { model, gpt2 } = shardedGpt2(rank);
    const rows = { batch: 2, first: rank.rank, count: 1 };
    const without = await forwardBackward(rank.device, model, 0, rows);
    for (const [name, block] of [...gpt2.children()].slice(1, -1)) {
      gpt2.replaceChild(name, checkpoint(block as Module<[Tensor], Tensor>));
    }
    return [without, await forwardBackward(rank.device, model, 0, rows)];
  });
  for (const [without, checkpointed] of losses) {
    expect(checkpointed).toBe(without);
  }
});

it.each([false, true])(
  'a checkpoint may skip the only instance inside it, findUnusedParameters %s',
  (findUnusedParameters) =>
    onRanks(2, async ({ device, group, rank }) => {
      const options = { processGroup: group, findUnusedParameters };
      const inner = new FullyShardedDataParallel(layer(device), options);
      const own = layer(device);
      let isSkipping = false;
      const block = moduleOf(device, { own, inner }, async (parts, x: Tensor) => {
        const hidden: Tensor = await parts.own.call(x);
        return isSkipping ? hidden : parts.inner.call(hidden);
      });
      const model = checkpoint(block);
      for (const skips of [false, true, false]) {
        isSkipping = skips;
        await trainOnce(model, { first: rank, count: 1 });
      }
      expect(own.weight.grad).toBeDefined();
    }),
);
