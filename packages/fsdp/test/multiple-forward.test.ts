// In these tests a module is used several times, is wrapped again, or its inner outputs are used
// beside its own.

import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { checkpoint, type Module, Sgd } from '@shardweave/nn';
import { add, type Device, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  inputs,
  layer,
  lossOf,
  moduleOf,
  onRanks,
  outputOf,
  Stack,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { expectEqualTraining, expectIdle, wrapIn } from './support/sharding.js';

describe.each([1, 2, 3])('world size %i', (worldSize) => {
  it('a unit called twice in a forward, as root and inside, equals the plain model', async () => {
    const twiceOf = (device: Device, unit: Module) =>
      moduleOf(device, { unit }, async ({ unit }, x: Tensor) =>
        tanh(await unit.call(tanh(await unit.call(x)))),
      );
    for (const isRoot of [true, false]) {
      await expectEqualTraining(
        {
          build: (device, wrap) => {
            const twice = twiceOf(device, wrap(layer(device)));
            return isRoot ? wrap(twice) : twice;
          },
        },
        worldSize,
      );
    }
  });
});

describe('a module with wrapped ones inside is wrapped again', () => {
  it.each([1, 2])('world size %i: the same output, bit for bit, and training', (worldSize) =>
    onRanks(worldSize, async ({ device, group, rank }) => {
      const wrap = wrapIn({ group });
      const run = (module: Module) => outputOf(module, { first: rank, count: 2 });
      const bare = new Stack(device, [layer(device), layer(device)]);
      const plain = await run(bare);
      const inner = wrap(bare.children().get('0')!);
      bare.replaceChild('0', inner);
      const once = wrap(bare);
      expect(await run(once)).toEqual(plain);
      await trainOnce(once, { first: rank, count: 2 });
      once.zeroGrad();
      expect(once.isRoot).toBe(true);
      const twice = wrap(new Stack(device, [once, layer(device)]));
      const again = wrap(once);
      expect(await run(again)).toEqual(plain);
      expect(again.isRoot).toBe(true);
      await trainOnce(twice, { first: rank, count: 2 });
      expect([twice, once, inner].map(({ isRoot }) => isRoot)).toEqual([true, false, false]);
      expectIdle(twice);
      expect(device.memory().live).toMatchObject({ gathered: 0, activation: 0, staging: 0 });
    }),
  );
});

/** Returns its own output and that of a wrapped layer inside. */
const branching = (device: Device, inner: Module, outer: Module) =>
  moduleOf(device, { inner, outer }, async (parts, x: Tensor) => {
    const inner: Tensor = await parts.inner.call(x);
    return { outer: (await parts.outer.call(tanh(inner))) as Tensor, inner };
  });

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
          const both = branching(device, wrap(layer(device)), wrap(layer(device)));
          return wrap('isCheckpointed' in options ? checkpoint(both) : both);
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
        optimizer: (model) => {
          const named = model.namedParameters();
          const used = named.filter(([name]) => kind !== 'inner' || name.startsWith('inner'));
          return new Sgd(
            used.map(([, tensor]) => tensor),
            { lr: 0.5 },
          );
        },
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
  expectIdle(model);
  return [[...names].sort().join(' ')];
}
