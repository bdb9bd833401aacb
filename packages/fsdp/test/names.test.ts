// A wrapped model shows names, the modules inside, and a line for people.

import { inspect } from 'node:util';
import { FullyShardedDataParallel, innerModule } from '@shardweave/fsdp';
import { localStateDict, summonFullParams } from '@shardweave/fsdp/fairscale';
import { checkpoint, Linear, type Module, ModuleList, Sequential } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { DIM, layer, onRanks, Stack, trainOnce } from '../../../tooling/test-kit/index.ts';
import { type Wrap, wrapIn } from './support/sharding.js';

function build(device: Device, wrap: Wrap): Module {
  const inner = new Stack(device, [layer(device), checkpoint(wrap(layer(device)) as Linear)]);
  return new Sequential(device, [
    wrap(checkpoint(inner)),
    wrap(wrap(layer(device))),
    layer(device),
  ]);
}

const NAMES = ['0.0', '0.1', '1', '2'].flatMap((path) => [`${path}.weight`, `${path}.bias`]);

describe.each([1, 2, 3])('named parameters, world size %i', (worldSize) => {
  it.each([true, false])(
    'have the names and shapes of the plain model, flattened %s, also when summoned',
    (flattenParameters) =>
      onRanks(worldSize, async ({ device, group, rank }) => {
        const plain = build(device, (module) => module);
        const listing = (module: Module) =>
          module.namedParameters().map(([name, { shape }]) => [name, shape]);
        expect(listing(plain).map(([name]) => name)).toEqual(NAMES);
        const wrap = wrapIn({ group }, { flattenParameters });
        // One plain module lies around wrapped ones, and a wrapped one around that.
        const parent = build(device, wrap);
        expect(listing(parent)).toEqual(listing(plain));
        const model = wrap(parent);
        const tensors = model.parameters();
        expect(listing(model)).toEqual(listing(plain));
        await trainOnce(model, { first: rank, count: 1 });
        await summonFullParams(model, async () => {
          expect(listing(model)).toEqual(listing(plain));
          expect(model.parameters()).toEqual(tensors);
          for (const tensor of tensors) {
            expect((await tensor.toArray()).length).toBe(tensor.size);
          }
        });
        expect(listing(model)).toEqual(listing(plain));
      }),
  );

  it('flat parameters have names of their own in local state', () =>
    onRanks(worldSize, async ({ device, group }) => {
      const model = new FullyShardedDataParallel(layer(device), { processGroup: group });
      const keys = [...(await localStateDict(model)).keys()];
      expect(keys).toEqual(['flat_param_0']);
    }));
});

describe('the module inside', () => {
  it('is found through wrappers, and its children by place and name', () =>
    onRanks(1, async ({ device, group }) => {
      const wrap = wrapIn({ group });
      const [a, b] = [layer(device), layer(device)];
      const list = new ModuleList(device, [a, b]);
      const model = wrap(checkpoint(wrap(list) as Module<[], never>));
      expect(innerModule(model)).toBe(list);
      expect(innerModule(a)).toBe(a);
      expect([model.at(0), model.at(-1), model.at(2)]).toEqual([a, b, undefined]);
      expect([model.get('1'), model.get('x')]).toEqual([b, undefined]);
    }));

  it('keeps its type', () =>
    onRanks(1, async ({ device, group }) => {
      const linear = new Linear(device, { inFeatures: DIM, outFeatures: 2 });
      const model = new FullyShardedDataParallel(linear, { processGroup: group });
      // TypeScript rejects this line if the module's type is lost.
      expect(model.module.weight.shape).toEqual([2, DIM]);
      const output = await model.call(device.zeros([1, DIM]));
      expect(output.shape).toEqual([1, 2]);
    }));
});

describe('toString', () => {
  const text = (options: object) =>
    onRanks(2, async ({ device, group }) => {
      const model = wrapIn({ group }, options)(layer(device));
      expect(inspect(model)).toBe(String(model));
      expect(`${inspect({ model })}`).toContain('FullyShardedDataParallel');
      return String(model);
    });

  it('is a line of what the instance is', async () => {
    expect(await text({ name: 'head' })).toEqual(
      [0, 1].map(
        (rank) =>
          `FullyShardedDataParallel 'head' (rank ${rank}/2, f32, reshards after forward, 2 parameters in 1 flat)`,
      ),
    );
    const mixed = { mixedPrecision: true, computeDType: 'bf16', reshardAfterForward: false };
    expect((await text(mixed))[0]).toBe(
      "FullyShardedDataParallel 'fsdp' (rank 0/2, bf16 of f32, keeps parameters until backward, 2 parameters in 1 flat)",
    );
  });

  it('tells options and flat parameters where verbose', async () => {
    const [verbose] = await text({ verbose: true, flattenParameters: false, bucketCapMb: 1 });
    const lines = verbose!.split('\n');
    expect(lines).toHaveLength(6);
    expect(lines[1]).toMatch(/state idle, no root, group 'world'/);
    expect(lines[2]).toMatch(/gradients in f32, divided by 2 and 1, buckets of 1048576 bytes/);
    expect(lines[4]).toBe("  'fsdp.weight': 1 parameters, 128 elements a rank, absent");
    expect(lines[5]).toBe("  'fsdp.bias': 1 parameters, 128 elements a rank, absent");
  });
});
