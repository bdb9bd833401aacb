// Several instances use the same parameters: siblings, an instance inside another, and one around
// it.

import { FsdpConfigError, FullyShardedDataParallel } from '@shardweave/fsdp';
import { AdamW, checkpoint, clipGradNorm, type Linear, Module, stateDict } from '@shardweave/nn';
import { add, type Device, linear, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  evaluate,
  layer,
  moduleOf,
  onRanks,
  Stack,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { instanceOf } from '../src/tree/instance.js';
import { expectEqualTraining, type Wrap, wrapIn } from './support/sharding.js';

/** This module multiplies by another layer's weight, and adds a bias of its own if it has one. */
class TiedTo extends Module<[x: Tensor], Tensor> {
  readonly weight: Tensor;
  readonly bias: Tensor | undefined;
  constructor(device: Device, owner: Linear, options: { readonly hasBias: boolean }) {
    super(device);
    this.weight = this.sharedParameter('tied', owner.weight);
    this.bias = options.hasBias ? this.parameter('bias', device.full([DIM], 0.1)) : undefined;
  }
  forward(x: Tensor): Tensor {
    return linear(x, { weight: this.weight, bias: this.bias });
  }
}

/** Uses a layer's weight before and after that layer. */
const around = (device: Device, bare: Linear, wrap: Wrap) =>
  moduleOf(
    device,
    { tied: bare.weight, own: device.full([DIM], 0.2), inner: wrap(bare) },
    async ({ tied, own, inner }, x: Tensor) => {
      const before = tanh(add(linear(x, { weight: tied }), own));
      return linear(tanh(await inner.call(before)), { weight: tied });
    },
  );

/** This module gets another layer's weight after it was wrapped. */
class Late extends Module<[x: Tensor], Tensor> {
  readonly bias = this.parameter('bias', this.device.full([DIM], 0.1));
  weight: Tensor | undefined;
  forward(x: Tensor): Tensor {
    return linear(x, { weight: this.weight!, bias: this.bias });
  }
}

/** Models in which a weight is used a second time, by what uses it. */
const SHARINGS: Record<string, (device: Device, wrap: Wrap) => Module> = {
  'by a sibling after it': (device, wrap) => {
    const bare = layer(device);
    const user = new TiedTo(device, bare, { hasBias: true });
    return wrap(new Stack(device, [wrap(bare), layer(device), wrap(user)]));
  },
  'by a sibling before it': (device, wrap) => {
    const bare = layer(device);
    const owner = wrap(bare);
    const user = wrap(new TiedTo(device, bare, { hasBias: true }));
    return wrap(new Stack(device, [user, wrap(layer(device)), owner]));
  },
  'by a sibling that has nothing else': (device, wrap) => {
    const bare = layer(device);
    const owner = wrap(bare);
    const user = wrap(new TiedTo(device, bare, { hasBias: false }));
    return wrap(new Stack(device, [owner, user, wrap(layer(device)), user]));
  },
  'by the root, around it': (device, wrap) => wrap(around(device, layer(device), wrap)),
  'by an inner instance around it': (device, wrap) =>
    wrap(new Stack(device, [layer(device), wrap(around(device, layer(device), wrap))])),
  'by three': (device, wrap) => {
    const bare = layer(device);
    const owner = wrap(bare);
    const users = [true, false].map((hasBias) => wrap(new TiedTo(device, bare, { hasBias })));
    return wrap(new Stack(device, [users[0]!, owner, users[1]!, owner]));
  },
};
const sharings = Object.keys(SHARINGS);

describe.each([
  { worldSize: 1, fsdp: {} },
  { worldSize: 2, fsdp: {} },
  { worldSize: 2, fsdp: { flattenParameters: false, bucketCapMb: 0 } },
  { worldSize: 3, fsdp: { reshardAfterForward: false } },
  { worldSize: 3, fsdp: { disableReshardOnRoot: false, gatherCapBytes: 0 } },
])('world size $worldSize, $fsdp, a weight used', ({ worldSize, fsdp }) => {
  it.each(sharings)('a weight used %s: training equals the plain model', async (sharing) => {
    await expectEqualTraining({ fsdp, build: SHARINGS[sharing]! }, worldSize);
  });

  it.each(sharings)('%s: and evaluation, before and after a step', async (sharing) => {
    const run = async (model: Module, rank: number, numRanks: number) => {
      const { device } = model;
      const optimizer = new AdamW(model.parameters(), { lr: 0.1 });
      const rows = { first: 0, count: 2 };
      const losses = [await evaluate(model, rows)];
      for (let step = 0; step < 2; step++) {
        const count = 6 / numRanks;
        await trainOnce(model, { first: rank * count, count }, step);
        await optimizer.step();
        optimizer.zeroGrad();
        losses.push(await evaluate(model, rows));
      }
      expect(device.memory().live).toMatchObject({ activation: 0, staging: 0 });
      return { losses, numStates: model.parameters().length };
    };
    const [plain] = await onRanks(1, ({ device }) =>
      run(
        SHARINGS[sharing]!(device, (module) => module),
        0,
        1,
      ),
    );
    const sharded = await onRanks(worldSize, ({ device, group, rank }) => {
      const wrap = wrapIn({ group }, fsdp);
      return run(SHARINGS[sharing]!(device, wrap), rank, worldSize);
    });
    for (const { losses, numStates } of sharded) {
      expect(numStates).toBe(plain!.numStates);
      losses.forEach((loss, i) => {
        expect(Math.abs(loss - plain!.losses[i]!)).toBeLessThan(2e-6);
      });
    }
  });
});

describe('shared parameters', () => {
  it.each(['inside', 'outside'])(
    'parameters with checkpoints %s equal the plain model',
    async (place) => {
      for (const sharing of sharings) {
        await expectEqualTraining(
          {
            build: (device, wrap) => {
              const both: Wrap = (module, options) =>
                place === 'inside'
                  ? wrap(checkpoint(module as Module<[Tensor], Tensor>), options)
                  : checkpoint(wrap(module, options) as Module<[Tensor], Tensor>);
              return wrap(SHARINGS[sharing]!(device, both));
            },
          },
          2,
        );
      }
    },
  );

  it('are saved once, belong to the first user, and count once in the norm', async () => {
    const norms = (worldSize: number) =>
      onRanks(worldSize, async ({ device, group, rank }) => {
        const wrap = wrapIn({ group });
        const build = SHARINGS['by a sibling after it']!;
        const model = build(device, wrap) as FullyShardedDataParallel;
        expect([...(await stateDict(model)).keys()]).toEqual([
          '0.weight',
          '0.bias',
          '1.weight',
          '1.bias',
          '2.bias',
        ]);
        const count = 6 / worldSize;
        await trainOnce(model, { first: rank * count, count });
        return (await clipGradNorm(model, 1e-3)).norm.item();
      });
    const [alone] = await norms(1);
    for (const norm of await norms(2)) {
      expect(norm).toBeCloseTo(alone!, 6);
    }
  });

  it('are gathered with their owner, for each instance that uses them, and freed after', () =>
    onRanks(2, async ({ device, group, rank }) => {
      const wrap = wrapIn({ group }, { processGroupReduceScatter: group, bucketCapMb: 0 });
      const model = SHARINGS['by a sibling after it']!(device, wrap) as FullyShardedDataParallel;
      await model.initialize();
      for (let step = 0; step < 3; step++) {
        const before = group.stats();
        await trainOnce(model, { first: rank, count: 1 }, step);
        const { allGathers, reduceScatters } = group.stats();
        // The root is gathered once, the user twice, and the owner for both in forward. In backward
        // the user's nodes come first, and the owner stays until its gradient is final.
        expect(allGathers - before.allGathers).toBe(1 + 2 + 2 + 1);
        expect(reduceScatters - before.reduceScatters).toBe(3);
        expect(device.memory().live).toMatchObject({ gathered: 0, activation: 0, staging: 0 });
      }
    }));

  it('let backward gather ahead past their use: what comes after it is under way', async () => {
    /** At the first of its nodes, this module notes what is gathered ahead. */
    class Watching extends TiedTo {
      atBackward: () => void = () => undefined;
      override forward(x: Tensor): Tensor {
        const hidden = linear(x, { weight: this.weight });
        this.device.beforeGradientOf(hidden, () => this.atBackward());
        return add(hidden, this.bias!);
      }
    }
    await onRanks(2, async ({ device, group, rank }) => {
      const wrap = wrapIn({ group });
      const bare = layer(device);
      const [owner, between] = [wrap(bare), wrap(layer(device))] as FullyShardedDataParallel[];
      const user = new Watching(device, bare, { hasBias: true });
      const model = wrap(new Stack(device, [owner!, between!, wrap(user)]));
      const ahead: number[] = [];
      user.atBackward = () => ahead.push(instanceOf(model).tree!.scheduler.inFlightBytes);
      await trainOnce(model, { first: rank, count: 1 });
      // The user's nodes come first and need the owner too; the instance between them comes next.
      expect(ahead).toEqual([between!.units[0]!.full.storage.byteLength]);
    });
  });

  it('appendSharedParam: a module that gets another one of its parameters later', async () => {
    await expectEqualTraining(
      {
        build: (device, wrap) => {
          const bare = layer(device);
          const late = new Late(device);
          const [owner, user] = [wrap(bare), wrap(late)];
          late.weight = bare.weight;
          if (user instanceof FullyShardedDataParallel) {
            user.appendSharedParam(bare.weight);
          }
          return wrap(new Stack(device, [owner, user]));
        },
      },
      2,
    );
    // The user is inside its owner, whose nodes run after those of a second run.
    const inside = (device: Device, wrap: Wrap) => {
      const [first, second, late] = [layer(device), layer(device), new Late(device)];
      const user = wrap(late);
      const checkpointed = checkpoint(user as Module<[Tensor], Tensor>);
      const owner = wrap(new Stack(device, [first, second, checkpointed]));
      late.weight = second.weight;
      if (user instanceof FullyShardedDataParallel) {
        user.appendSharedParam(second.weight);
      }
      return wrap(new Stack(device, [owner, layer(device)]));
    };
    await expectEqualTraining({ build: inside }, 2);
    await onRanks(2, async ({ device, group, rank }) => {
      const options = { processGroup: group, processGroupReduceScatter: group };
      const model = inside(device, (module) => new FullyShardedDataParallel(module, options));
      await trainOnce(model, { first: rank, count: 1 });
      const before = group.stats().allGathers;
      await trainOnce(model, { first: rank, count: 1 });
      // The root is gathered once, the owner once in each direction, and the user in forward, in
      // its second run and in its backward.
      expect(group.stats().allGathers - before).toBe(1 + 2 + 3);
    });
    await onRanks(1, async ({ device, group }) => {
      const wrap = wrapIn({ group });
      const user = wrap(layer(device));
      const append = (parameter: Tensor) => () => user.appendSharedParam(parameter);
      expect(append(layer(device).weight)).toThrow(FsdpConfigError);
      expect(append(user.parameters()[0]!)).toThrow(FsdpConfigError);
    });
  });

  it('need one root', () =>
    onRanks(2, async ({ device, group, rank }) => {
      const bare = layer(device);
      const wrap = wrapIn({ group });
      const owner = wrap(bare, 'owner');
      const user = wrap(new TiedTo(device, bare, { hasBias: true }), 'user');
      const model = new Stack(device, [owner, user]);
      const attempt = trainOnce(model, { first: rank, count: 1 });
      await expect(attempt).rejects.toThrow(FsdpConfigError);
      expect(device.memory().live).toMatchObject({ activation: 0, staging: 0 });
    }));
});
