// These tests use activation checkpointing inside a wrapped module and around one.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { checkpoint, Dropout, Linear, Module } from '@shardweave/nn';
import { add, type Device, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { forwardBackward, onRanks, shardedGpt2 } from './support/ranks.js';
import {
  DIM,
  expectClose,
  expectEqualTraining,
  inputs,
  layer,
  lossOf,
  type Rows,
  type Scenario,
  Stack,
  shardedOutcome,
  trainOnce,
  type Wrap,
} from './support/scenarios.js';

/** This module has two layers with dropout between them, and a residual connection. */
class Block extends Module<[x: Tensor], Tensor> {
  readonly up: Linear;
  readonly drop: Dropout;
  readonly down: Linear;
  constructor(device: Device) {
    super(device);
    this.up = this.child('up', new Linear(device, { inFeatures: DIM, outFeatures: 9 }));
    this.drop = this.child('drop', new Dropout(device, { p: 0.3 }));
    this.down = this.child('down', new Linear(device, { inFeatures: 9, outFeatures: DIM }));
  }
  async forward(x: Tensor): Promise<Tensor> {
    const hidden = await this.drop.call(tanh(await this.up.call(x)));
    return add(x, await this.down.call(hidden));
  }
}

type Place = 'none' | 'inside' | 'outside';

function build(place: Place, device: Device, wrap: Wrap): Module {
  const blocks = [new Block(device), new Block(device), new Block(device)].map((block) => {
    if (place === 'inside') {
      return wrap(checkpoint(block));
    }
    return place === 'outside' ? checkpoint(wrap(block) as Module<[Tensor], Tensor>) : wrap(block);
  });
  return wrap(new Stack(device, [layer(device), ...blocks]));
}

async function severalForwards(model: Module, rows: Rows, step: number): Promise<number> {
  const { device } = model;
  return device.scope(async () => {
    device.random.begin({ step, rowOffset: rows.first });
    const first = lossOf((await model.call(inputs(device, rows, step))) as Tensor);
    const second = lossOf((await model.call(inputs(device, rows, step + 50))) as Tensor);
    const loss = add(first, second);
    await loss.backward();
    return loss.item();
  });
}

describe.each([
  { worldSize: 1, fsdp: {} },
  { worldSize: 2, fsdp: {} },
  { worldSize: 2, fsdp: { reshardAfterForward: false } },
  { worldSize: 3, fsdp: { disableReshardOnRoot: false } },
])('world size $worldSize, $fsdp', ({ worldSize, fsdp }) => {
  it.each(['inside', 'outside'] as const)(
    'checkpoint %s: losses and weights equal the plain run, dropout included',
    async (place) => {
      const scenario = (run?: Scenario['run']): Scenario => ({
        fsdp,
        build: (device, wrap) => build(place, device, wrap),
        ...(run === undefined ? {} : { run }),
      });
      const checkpointed = await expectEqualTraining(scenario(), worldSize);
      await expectEqualTraining(scenario(severalForwards), worldSize);
      const without = await shardedOutcome(
        { fsdp, build: (device, wrap) => build('none', device, wrap) },
        worldSize,
      );
      expectClose(checkpointed, without, 0);
    },
  );
});

it.each([
  { place: 'none', gathers: 2 },
  { place: 'inside', gathers: 2 },
  { place: 'outside', gathers: 3 },
] as const)('checkpoint $place: $gathers gathers a step for each unit', async (options) => {
  await onRanks(2, async ({ device, group, rank }) => {
    const wrap: Wrap = (module) =>
      new FullyShardedDataParallel(module, {
        processGroup: group,
        processGroupReduceScatter: group,
        bucketCapMb: 0,
      });
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
  });
});

it('a checkpoint around the root runs the whole model again in backward', async () => {
  await expectEqualTraining(
    {
      build: (device, wrap) => {
        const inner = wrap(new Stack(device, [wrap(new Block(device)), layer(device)]));
        return checkpoint(inner as Module<[Tensor], Tensor>);
      },
    },
    2,
  );
});

it('a second run that fails leaves every instance idle and nothing gathered', async () => {
  await onRanks(2, async ({ device, group, rank }) => {
    class Failing extends Module<[x: Tensor], Tensor> {
      constructor(device: Device) {
        super(device);
        this.child('layer', layer(device));
      }
      forward(x: Tensor): Promise<Tensor> {
        if (device.isInBackward && isFailing) {
          throw new Error('second run');
        }
        return this.children().get('layer')!.call(x);
      }
    }
    let isFailing = true;
    const wrap = (module: Module) => new FullyShardedDataParallel(module, { processGroup: group });
    const wrapped = wrap(new Failing(device));
    const model = wrap(new Stack(device, [layer(device), checkpoint(wrapped), layer(device)]));
    await expect(trainOnce(model, { first: rank, count: 1 })).rejects.toThrow('second run');
    for (const instance of model.instances()) {
      instance.assertState('idle');
    }
    expect(device.memory().live).toMatchObject({ gathered: 0, gradient: 0, activation: 0 });
    isFailing = false;
    await trainOnce(model, { first: rank, count: 1 });
    model.assertState('idle');
  });
});

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
  async (findUnusedParameters) => {
    class Skipping extends Module<[x: Tensor], Tensor> {
      isSkipping = false;
      readonly own = this.child('own', layer(this.device));
      readonly inner: Module<[x: Tensor], Tensor>;
      constructor(device: Device, inner: Module<[x: Tensor], Tensor>) {
        super(device);
        this.inner = this.child('inner', inner);
      }
      async forward(x: Tensor): Promise<Tensor> {
        const hidden = await this.own.call(x);
        return this.isSkipping ? hidden : this.inner.call(hidden);
      }
    }
    await onRanks(2, async ({ device, group, rank }) => {
      const options = { processGroup: group, findUnusedParameters };
      const inner = new FullyShardedDataParallel(layer(device), options);
      const block = new Skipping(device, inner);
      const model = checkpoint(block);
      for (const isSkipping of [false, true, false]) {
        block.isSkipping = isSkipping;
        await trainOnce(model, { first: rank, count: 1 });
      }
      expect(block.own.weight.grad).toBeDefined();
    });
  },
);
