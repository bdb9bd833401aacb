// Some parameters get no gradients: frozen ones, and trainable ones that a step does not use.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, type Module } from '@shardweave/nn';
import { add, Device, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  freeze,
  inputs,
  layer,
  lossOf,
  moduleOf,
  onRanks,
  Stack,
  trainOnce,
  type Weights,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { withoutHostMemory } from './support/late-backend.js';
import { expectEqualTraining, expectIdle, wrapIn } from './support/sharding.js';

/** Returns the weights from which the scenarios start: three layers in a row. */
async function initial(): Promise<Map<string, Float32Array>> {
  const [weights] = await onRanks(1, ({ device }) =>
    weightsOf(new Stack(device, [layer(device), layer(device), layer(device)])),
  );
  return weights!;
}

async function expectFrozen(weights: Weights, names: readonly string[]): Promise<void> {
  for (const [name, values] of await initial()) {
    if (names.includes(name)) {
      expect(weights.get(name), name).toEqual(values);
    } else {
      expect(weights.get(name), name).not.toEqual(values);
    }
  }
}

/** Adds what an adapter gives to what its base gives. */
const adapted = (device: Device, base: Module, adapter: Module) =>
  moduleOf(device, { base, adapter }, async ({ base, adapter }, x: Tensor) =>
    add(await base.call(x), await adapter.call(x)),
  );

/** Runs one block three times, with nothing between, as ALBERT does. */
const again = (device: Device, block: Module) =>
  moduleOf(device, { block }, async ({ block }, x: Tensor) =>
    block.call(await block.call(await block.call(x))),
  );

const layers = (device: Device) => [layer(device), layer(device), layer(device)] as const;

describe.each([
  { worldSize: 1, reshardAfterForward: true },
  { worldSize: 2, reshardAfterForward: true },
  { worldSize: 3, reshardAfterForward: false },
])('world size $worldSize, resharding $reshardAfterForward', ({ worldSize, ...fsdp }) => {
  it('a frozen weight inside a trainable unit stays, and gives its input a gradient', async () => {
    const weights = await expectEqualTraining(
      {
        fsdp,
        build: (device, wrap) => {
          const [a, b, c] = layers(device);
          freeze(b, (name) => name === 'weight');
          return wrap(new Stack(device, [wrap(a), wrap(b), wrap(c)]));
        },
      },
      worldSize,
    );
    await expectFrozen(weights, ['1.weight']);
  });

  it('a frozen layer below a trainable one in the same unit', async () => {
    const weights = await expectEqualTraining(
      {
        fsdp,
        build: (device, wrap) => {
          const [a, b, c] = layers(device);
          // All gradients of the unit have come before its frozen weight is read for the last time.
          return wrap(new Stack(device, [wrap(a), wrap(new Stack(device, [freeze(b), c]))]));
        },
      },
      worldSize,
    );
    const start = await initial();
    expect(weights.get('1.0.weight')).toEqual(start.get('1.weight'));
    expect(weights.get('0.weight')).not.toEqual(start.get('0.weight'));
  });

  it('an all-frozen unit between trainable ones', async () => {
    const weights = await expectEqualTraining(
      {
        fsdp,
        build: (device, wrap) => {
          const [a, b, c] = layers(device);
          return wrap(new Stack(device, [wrap(a), wrap(freeze(b)), wrap(c)]));
        },
      },
      worldSize,
    );
    await expectFrozen(weights, ['1.weight', '1.bias']);
  });

  it('a frozen root over trainable units, and a frozen first unit', async () => {
    const weights = await expectEqualTraining(
      {
        fsdp,
        build: (device, wrap) => {
          const [a, b, c] = layers(device);
          return wrap(new Stack(device, [wrap(freeze(a)), wrap(b), freeze(c)]));
        },
      },
      worldSize,
    );
    await expectFrozen(weights, ['0.weight', '0.bias', '2.weight', '2.bias']);
  });

  it.each(['all of it', 'all but adapters'])(
    'a unit that is its own input, %s frozen',
    async (frozen) => {
      const weights = await expectEqualTraining(
        {
          fsdp,
          build: (device, wrap) => {
            const [a, b, c] = layers(device);
            freeze(b);
            const block = frozen === 'all of it' ? b : adapted(device, b, layer(device));
            return wrap(new Stack(device, [wrap(a), again(device, wrap(block)), wrap(c)]));
          },
        },
        worldSize,
      );
      const name = frozen === 'all of it' ? '1.block' : '1.block.base';
      const start = await initial();
      expect(weights.get(`${name}.weight`)).toEqual(start.get('1.weight'));
      expect(weights.get('0.weight')).not.toEqual(start.get('0.weight'));
    },
  );

  it('parameters frozen after wrapping', async () => {
    const weights = await expectEqualTraining(
      {
        fsdp,
        build: (device, wrap) => {
          const [a, b, c] = layers(device);
          const model = wrap(new Stack(device, [wrap(a), wrap(b), wrap(c)]));
          freeze(b);
          freeze(a, (name) => name === 'bias');
          return model;
        },
      },
      worldSize,
    );
    await expectFrozen(weights, ['0.bias', '1.weight', '1.bias']);
  });

  it.each(['trunk', 'head'])('gradients of the %s dropped before each step', async (dropped) => {
    const parts = new Map<Module, Module>();
    const weights = await expectEqualTraining(
      {
        fsdp,
        build: (device, wrap) => {
          const [a, b, c] = layers(device);
          const trunk = wrap(new Stack(device, [wrap(a), b]));
          const head = wrap(c);
          const model = wrap(new Stack(device, [trunk, head]));
          parts.set(model, dropped === 'trunk' ? trunk : head);
          return model;
        },
        run: async (model, rows, step) => {
          const loss = await trainOnce(model, rows, step);
          parts.get(model)!.zeroGrad();
          return loss;
        },
      },
      worldSize,
    );
    const start = await initial();
    for (const [bare, name] of [
      ['0.weight', '0.0.weight'],
      ['1.weight', '0.1.weight'],
      ['2.weight', '1.weight'],
    ] as const) {
      const isSame = String(weights.get(name)) === String(start.get(bare));
      expect(isSame, name).toBe((dropped === 'trunk') === name.startsWith('0'));
    }
  });

  it('a frozen root that owns parameters, over a trainable child, trains only that', async () => {
    const weights = await expectEqualTraining(
      {
        fsdp,
        build: (device, wrap) => {
          const [a, b, c] = layers(device);
          return freeze(wrap(new Stack(device, [a, wrap(b), c])), (name) => !name.startsWith('1.'));
        },
      },
      worldSize,
    );
    await expectFrozen(weights, ['0.weight', '0.bias', '2.weight', '2.bias']);
  });
});

it('reduces nothing for frozen units, and leaves every instance idle and nothing gathered', () =>
  onRanks(2, async ({ device, group, rank }) => {
    const wrap = wrapIn({ group }, { processGroupReduceScatter: group });
    const [a, b, c] = layers(device);
    const model = wrap(
      new Stack(device, [wrap(a), wrap(freeze(b)), freeze(c)]),
    ) as FullyShardedDataParallel;
    await trainOnce(model, { first: rank, count: 1 });
    expect(group.stats().reduceScatters).toBe(1);
    expectIdle(model);
    expect(device.memory().live).toMatchObject({ gathered: 0, staging: 0, activation: 0 });
    expect(model.instances().map(({ units }) => units[0]!.flat.grad !== undefined)).toEqual([
      false,
      true,
      false,
    ]);
  }));

it('gathers a frozen unit that no gradient reaches once a step, others twice', () =>
  onRanks(2, async ({ device, group, rank }) => {
    const wrap = wrapIn({ group });
    const [a, b, c] = layers(device);
    const model = wrap(new Stack(device, [wrap(freeze(a)), wrap(b), c]));
    await model.initialize();
    for (let step = 0; step < 3; step++) {
      const before = group.stats().allGathers;
      await trainOnce(model, { first: rank, count: 1 }, step);
      expect(group.stats().allGathers - before).toBe(4);
    }
  }));

it('an unused parameter is not stepped, in a unit with used ones or without', async () => {
  const start = await initial();
  await onRanks(2, async ({ device, group, rank }) => {
    const [a, b, c] = layers(device);
    const wrap = wrapIn({ group });
    const inner = new Stack(device, [a, b, wrap(c)]);
    const model = wrap(inner);
    const optimizer = new AdamW(model.parameters(), { lr: 0.1, weightDecay: 0.5 });
    inner.order = ['0']; // Layer 1 shares the root's unit, and layer 2 is a unit of its own.
    await trainOnce(model, { first: rank, count: 1 });
    await optimizer.step();
    const weights = await weightsOf(model);
    expect(weights.get('2.weight')).toEqual(start.get('2.weight'));
    expect(weights.get('1.weight')).toEqual(start.get('1.weight'));
    expect(weights.get('0.weight')).not.toEqual(start.get('0.weight'));
  });
});

it('a parameter that one rank uses is stepped on all, one that none uses is not', async () => {
  const start = await initial();
  const trained = async (worldSize: number) => {
    const [weights] = await onRanks(worldSize, async ({ device: { backend }, group, rank }) => {
      // Blocks of host memory are others than those that are filled below.
      const device = new Device(withoutHostMemory(backend), { seed: 7 });
      const inner = new Stack(device, layers(device));
      const options = { processGroup: group, findUnusedParameters: true };
      const model = new FullyShardedDataParallel(inner, options);
      const optimizer = new AdamW(model.parameters(), { lr: 0.1, weightDecay: 0.5 });
      inner.order = rank === 0 ? ['0', '1'] : ['0'];
      await model.initialize();
      // This fills memory for the gathered parameter and its gradient with other values.
      const shape = [model.units[0]!.full.storage.elementCount];
      const others = [device.full(shape, Number.NaN), device.full(shape, Number.NaN)];
      for (const other of others) {
        other.dispose();
      }
      await trainOnce(model, { first: rank, count: 1 });
      await optimizer.step();
      return weightsOf(model);
    });
    return weights!;
  };
  const weights = await trained(2);
  expect(weights.get('2.weight')).toEqual(start.get('2.weight'));
  for (const name of ['0.weight', '0.bias', '1.weight', '1.bias']) {
    const before = start.get(name)!;
    const moved = weights.get(name)!.filter((value, i) => Math.abs(value - before[i]!) > 0);
    expect([name, moved.length]).toEqual([name, before.length]);
  }
});

it('AdamW leaves a frozen parameter of a trained unit alone, decay included', async () => {
  const start = await initial();
  await onRanks(2, async ({ device, group, rank }) => {
    const [a, b, c] = layers(device);
    const bare = new Stack(device, [a, b, c]);
    const model = new FullyShardedDataParallel(bare, { processGroup: group });
    const optimizer = new AdamW(model.parameters(), { lr: 0.1, weightDecay: 0.5 });
    const step = async () => {
      await trainOnce(model, { first: rank, count: 1 });
      await optimizer.step();
      optimizer.zeroGrad();
    };
    freeze(b);
    await step();
    expect((await weightsOf(model)).get('1.weight')).toEqual(start.get('1.weight'));
    for (const tensor of b.parameters()) {
      tensor.requiresGrad = true;
    }
    await step();
    expect((await weightsOf(model)).get('1.weight')).not.toEqual(start.get('1.weight'));
  });
});

it('a unit used in forward but unused in backward', async () => {
  const detached = (device: Device, unit: Module) =>
    moduleOf(device, { unit }, async ({ unit }, x: Tensor) => (await unit.call(x)).detach());
  await expectEqualTraining(
    {
      build: (device, wrap) => {
        const [a, b, c] = layers(device);
        return wrap(new Stack(device, [wrap(a), detached(device, wrap(b)), wrap(c)]));
      },
    },
    2,
  );
});

it('backward to the input alone, through an all-frozen model', () =>
  onRanks(2, async ({ device, group, rank }) => {
    const model = new FullyShardedDataParallel(freeze(layer(device)), { processGroup: group });
    const x = inputs(device, { first: rank, count: 1 }).keep();
    x.requiresGrad = true;
    await device.scope(async () => lossOf((await model.call(x)) as Tensor).backward());
    expect(((await x.grad!.toArray()) as Float32Array).some((value) => value !== 0)).toBe(true);
    model.assertState('idle');
    expect(device.memory().live).toMatchObject({ gathered: 0, staging: 0 });
  }));
