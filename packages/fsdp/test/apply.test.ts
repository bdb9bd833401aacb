// Custom initial values, and new values later, are set through wrappers.

import { FsdpStateError, FullyShardedDataParallel } from '@shardweave/fsdp';
import { apply, summonFullParams } from '@shardweave/fsdp/fairscale';
import { checkpoint, Linear, type Module, resetParameters, Sgd } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  expectClose,
  inputs,
  layer,
  onRanks,
  Stack,
  stepped,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { expectIdle, type Wrap, wrapIn } from './support/sharding.js';

/** Sets every weight and bias of each Linear to different values. */
function initialize(): (module: Module) => void {
  let numSeen = 0;
  return (module) => {
    if (!(module instanceof Linear)) {
      return;
    }
    numSeen += 1;
    for (const tensor of module.ownParameters().values()) {
      const values = Float32Array.from({ length: tensor.size }, (_, i) => Math.cos(i * numSeen));
      const { device } = module;
      device.scope(() => device.copyInto(tensor, device.tensor(values, tensor.shape)));
    }
  };
}

type Layout = 'alone' | 'nested' | 'checkpointed';

function build(layout: Layout, device: Device, wrap: Wrap): Module {
  const inner = new Stack(device, [layer(device), layer(device)]);
  if (layout === 'alone') {
    return wrap(new Stack(device, [layer(device), inner]));
  }
  const wrapped = wrap(inner);
  const second = layout === 'nested' ? wrapped : checkpoint(wrapped as typeof inner);
  return wrap(new Stack(device, [wrap(layer(device)), second]));
}

async function initializedAndTrained(model: Module, rows: { first: number; count: number }) {
  await apply(model, initialize());
  const made = await weightsOf(model);
  const optimizer = new Sgd(model.parameters(), { lr: 0.3, momentum: 0.9 });
  await stepped(optimizer, [0, 1], (step) => trainOnce(model, rows, step));
  return { made, trained: await weightsOf(model) };
}

describe.each<Layout>(['alone', 'nested', 'checkpointed'])('apply, %s', (layout) => {
  it.each([
    { worldSize: 1, flattenParameters: true },
    { worldSize: 2, flattenParameters: true },
    { worldSize: 2, flattenParameters: false },
    { worldSize: 3, flattenParameters: true, mixedPrecision: true, computeDType: 'bf16' },
  ] as const)('custom initial values train as in a plain model: %o', async (options) => {
    const { worldSize, ...fsdp } = options;
    const [plain] = await onRanks(1, ({ device }) =>
      initializedAndTrained(
        build(layout, device, (module) => module),
        { first: 0, count: 6 },
      ),
    );
    const sharded = await onRanks(worldSize, ({ device, group, rank }) => {
      const wrap = wrapIn({ group }, fsdp);
      const count = 6 / worldSize;
      return initializedAndTrained(build(layout, device, wrap), { first: rank * count, count });
    });
    // bf16 has eight bits of precision.
    const tolerance = 'mixedPrecision' in fsdp ? 2e-2 : 1e-6;
    for (const { made, trained } of sharded) {
      expect(made).toEqual(plain!.made);
      expectClose(trained, plain!.trained, tolerance);
    }
  });
});

it('visits children first, each module once, one at a time, and no wrapper', async () => {
  const order = async (model: Module) => {
    const seen: [string, number][] = [];
    let numRunning = 0;
    await apply(model, async (module) => {
      numRunning += 1;
      await new Promise((resolve) => setTimeout(resolve, 1));
      expect(numRunning).toBe(1);
      numRunning -= 1;
      seen.push([module.constructor.name, module.parameters().length]);
    });
    return seen;
  };
  await onRanks(1, async ({ device, group }) => {
    const twice = (wrap: Wrap) => {
      const shared = wrap(layer(device));
      return wrap(new Stack(device, [shared, build('checkpointed', device, wrap), shared]));
    };
    const plain = await order(twice((module) => module));
    const wrap = wrapIn({ group });
    expect(await order(twice(wrap))).toEqual(plain);
    expect(plain.map(([name]) => name)).toEqual([
      ...['Linear', 'Linear', 'Linear', 'Linear'],
      ...['Stack', 'Stack', 'Stack'],
    ]);
  });
});

it('gathers only the instances around a module, and restores them when a visit throws', () =>
  onRanks(2, async ({ device, group }) => {
    const wrap = wrapIn({ group });
    const units = [1, 2, 3].map(() => wrap(layer(device)));
    const model = wrap(new Stack(device, [...units, layer(device)]));
    const gathered: number[] = [];
    await apply(model, () => void gathered.push(device.memory().live.gathered));
    const unitBytes = model.units[0]!.full.storage.elementCount * 4;
    expect(gathered).toEqual([2, 2, 2, 1, 1].map((numUnits) => numUnits * unitBytes));
    const before = await weightsOf(model);
    const failing = apply(model, (module) => {
      if (module instanceof Linear) {
        throw new Error('stop');
      }
    });
    await expect(failing).rejects.toThrow('stop');
    expectIdle(model);
    expect(device.memory().live.gathered).toBe(0);
    expect(await weightsOf(model)).toEqual(before);
  }));

it('apply of a module inside makes it no root, and is refused inside summon and forward', () =>
  onRanks(2, async ({ device, group, rank }) => {
    const wrap = wrapIn({ group });
    const inner = wrap(layer(device));
    const model = wrap(new Stack(device, [inner, layer(device)]));
    await apply(inner, initialize());
    await trainOnce(model, { first: rank, count: 1 });
    expect([model.isRoot, inner.isRoot]).toEqual([true, false]);
    const attempt = () => apply(model, () => undefined);
    await summonFullParams(model, () => expect(attempt()).rejects.toThrow(FsdpStateError));
    inner.module.aroundForward({
      before: async () => {
        await expect(attempt()).rejects.toThrow(FsdpStateError);
      },
    });
    await device.noGrad(() => model.call(inputs(device, { first: rank, count: 1 })));
  }));

describe('resetParameters', () => {
  it('works inside summon where it is allowed, and what it makes lasts', async () => {
    const [expected] = await onRanks(1, async ({ device }) => {
      const plain = build('nested', device, (module) => module);
      resetParameters(plain, { seed: 9 });
      return weightsOf(plain);
    });
    await onRanks(2, async ({ device, group, rank }) => {
      const options = { processGroup: group, allowResetParameters: true };
      const wrap: Wrap = (module) => new FullyShardedDataParallel(module, options);
      const model = build('nested', device, wrap) as FullyShardedDataParallel;
      await trainOnce(model, { first: rank, count: 1 });
      expect(await weightsOf(model)).not.toEqual(expected);
      await summonFullParams(model, () => model.resetParameters({ seed: 9 }));
      expect(await weightsOf(model)).toEqual(expected);
    });
  });

  it('is refused where it is not allowed, outside of summon, and where only the outer is summoned', () =>
    onRanks(2, async ({ device, group }) => {
      const make = (allowResetParameters: boolean) => {
        const options = { processGroup: group, allowResetParameters };
        const wrap: Wrap = (module) => new FullyShardedDataParallel(module, options);
        return build('nested', device, wrap) as FullyShardedDataParallel;
      };
      const refused = make(false);
      const reset = (model: FullyShardedDataParallel) => () => model.resetParameters();
      await summonFullParams(refused, () => {
        expect(reset(refused)).toThrow(FsdpStateError);
        expect(reset(refused)).toThrow(/allowResetParameters/);
      });
      const allowed = make(true);
      const before = await weightsOf(allowed);
      expect(reset(allowed)).toThrow(FsdpStateError);
      await summonFullParams(allowed, () => expect(reset(allowed)).toThrow(FsdpStateError), {
        recurse: false,
      });
      expect(await weightsOf(allowed)).toEqual(before);
    }));
});
