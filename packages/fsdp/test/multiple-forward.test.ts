// In these tests a module is used several times, is wrapped again, or its inner outputs are used
// beside its own.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { checkpoint, type Module, Module as NnModule } from '@shardweave/nn';
import { add, type Device, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks } from './support/ranks.js';
import {
  expectEqualTraining,
  inputs,
  layer,
  lossOf,
  type Rows,
  Stack,
  trainOnce,
  type Wrap,
} from './support/scenarios.js';

/**
 * Returns a step of several forwards of one module, and one backward of the sum of their losses.
 */
function forwards(count: number) {
  return (model: Module, rows: Rows, step: number): Promise<number> =>
    model.device.scope(async () => {
      const { device } = model;
      let total: Tensor | undefined;
      for (let i = 0; i < count; i++) {
        const part = lossOf((await model.call(inputs(device, rows, step + 9 * i))) as Tensor);
        total = total === undefined ? part : add(total, part);
      }
      await total!.backward();
      return total!.item();
    });
}

describe.each([1, 2, 3])('world size %i', (worldSize) => {
  it.each([
    { numForwards: 2, fsdp: {} },
    { numForwards: 3, fsdp: { flattenParameters: false, disableReshardOnRoot: false } },
    { numForwards: 2, fsdp: { reshardAfterForward: false, bucketCapMb: 0 } },
  ])('$numForwards forwards before a backward equal the plain model, $fsdp', async (options) => {
    const { numForwards, fsdp } = options;
    await expectEqualTraining(
      {
        fsdp,
        build: (device, wrap) => wrap(new Stack(device, [wrap(layer(device)), layer(device)])),
        run: forwards(numForwards),
      },
      worldSize,
    );
  });

  it('a unit called twice in a forward, as root and inside, equals the plain model', async () => {
    class Twice extends NnModule<[x: Tensor], Tensor> {
      constructor(device: Device, unit: Module) {
        super(device);
        this.child('unit', unit);
      }
      async forward(x: Tensor): Promise<Tensor> {
        const unit = this.children().get('unit')!;
        return tanh((await unit.call(tanh((await unit.call(x)) as Tensor))) as Tensor);
      }
    }
    for (const isRoot of [true, false]) {
      await expectEqualTraining(
        {
          build: (device, wrap) => {
            const twice = new Twice(device, wrap(layer(device)));
            return isRoot ? wrap(twice) : twice;
          },
        },
        worldSize,
      );
    }
  });
});

describe('a module with wrapped ones inside is wrapped again', () => {
  it.each([1, 2])(
    'world size %i: the same output, bit for bit, and training',
    async (worldSize) => {
      await onRanks(worldSize, async ({ device, group, rank }) => {
        const wrap: Wrap = (module) =>
          new FullyShardedDataParallel(module, { processGroup: group });
        const run = (module: Module) =>
          device.noGrad(() =>
            device.scope(async () => {
              const x = inputs(device, { first: rank, count: 2 });
              return ((await module.call(x)) as Tensor).toArray();
            }),
          );
        const bare = new Stack(device, [layer(device), layer(device)]);
        const plain = await run(bare);
        const inner = wrap(bare.children().get('0')!);
        bare.replaceChild('0', inner);
        const once = wrap(bare) as FullyShardedDataParallel;
        expect(await run(once)).toEqual(plain);
        await trainOnce(once, { first: rank, count: 2 });
        once.zeroGrad();
        expect(once.isRoot).toBe(true);
        const twice = wrap(new Stack(device, [once, layer(device)])) as FullyShardedDataParallel;
        const again = wrap(once) as FullyShardedDataParallel;
        expect(await run(again)).toEqual(plain);
        expect(again.isRoot).toBe(true);
        await trainOnce(twice, { first: rank, count: 2 });
        expect(
          [twice, once, inner as FullyShardedDataParallel].map(({ isRoot }) => isRoot),
        ).toEqual([true, false, false]);
        for (const instance of twice.instances()) {
          instance.assertState('idle');
        }
        expect(device.memory().live).toMatchObject({ gathered: 0, activation: 0, staging: 0 });
      });
    },
  );

  it.each([1, 2, 3])('world size %i: trains as the plain model does', async (worldSize) => {
    await expectEqualTraining(
      {
        build: (device, wrap) =>
          wrap(wrap(new Stack(device, [wrap(wrap(layer(device))), layer(device)]))),
      },
      worldSize,
    );
  });
});

/** This module returns its own output and that of a wrapped layer inside. */
class Branching extends NnModule<[x: Tensor], { outer: Tensor; inner: Tensor }> {
  constructor(device: Device, parts: { readonly inner: Module; readonly outer: Module }) {
    super(device);
    this.child('inner', parts.inner);
    this.child('outer', parts.outer);
  }
  async forward(x: Tensor): Promise<{ outer: Tensor; inner: Tensor }> {
    const inner = (await this.children().get('inner')!.call(x)) as Tensor;
    const outer = (await this.children().get('outer')!.call(tanh(inner))) as Tensor;
    return { outer, inner };
  }
}

describe.each([1, 2])('an inner output is returned too, world size %i', (worldSize) => {
  const used = {
    both: ({ outer, inner }: { outer: Tensor; inner: Tensor }) => add(lossOf(outer), lossOf(inner)),
    inner: ({ inner }: { inner: Tensor }) => lossOf(inner),
    outer: ({ outer }: { outer: Tensor }) => lossOf(outer),
  };
  it.each([
    { kind: 'both', fsdp: {} },
    { kind: 'both', fsdp: { reshardAfterForward: false } },
    { kind: 'both', fsdp: { flattenParameters: false }, isCheckpointed: true },
    { kind: 'inner', fsdp: {} },
    { kind: 'outer', fsdp: {} },
  ] as const)('$kind used, $fsdp: equals the plain model', async ({ kind, fsdp, ...options }) => {
    const seen: string[] = [];
    await expectEqualTraining(
      {
        fsdp,
        build: (device, wrap) => {
          const inner = wrap(layer(device));
          const branching = new Branching(device, { inner, outer: wrap(layer(device)) });
          return wrap('isCheckpointed' in options ? checkpoint(branching) : branching);
        },
        run: (model, rows, step) =>
          model.device.scope(async () => {
            const outputs = await model.call(inputs(model.device, rows, step));
            const loss = used[kind](outputs);
            await loss.backward();
            if (model instanceof FullyShardedDataParallel) {
              seen.push(...gradientsOf(model));
            }
            return loss.item();
          }),
        // The plain run doesn't step a parameter that gets no gradient at all either.
        optimized: (model) =>
          model
            .namedParameters()
            .filter(([name]) => kind !== 'inner' || name.startsWith('inner'))
            .map(([, tensor]) => tensor),
      },
      worldSize,
    );
    expect(seen).toHaveLength(worldSize * 3);
    const expected = kind === 'inner' ? 'inner' : 'inner outer';
    expect(new Set(seen)).toEqual(new Set([expected]));
  });
});

/**
 * Returns the layers with a gradient. Checks that gradients have their shards' shapes and that all
 * states are idle.
 */
function gradientsOf(model: FullyShardedDataParallel): string[] {
  const names = new Set<string>();
  for (const [name, tensor] of model.namedParameters()) {
    const { flat } = tensor.piece!;
    expect(tensor.grad).toBeUndefined();
    if (flat.grad === undefined) {
      continue;
    }
    expect(flat.grad.shape).toEqual(flat.shape);
    names.add(name.split('.')[0]!);
  }
  for (const instance of model.instances()) {
    instance.assertState('idle');
  }
  return [[...names].sort().join(' ')];
}
