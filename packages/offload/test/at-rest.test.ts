// A next process resumes from what the store holds of a model. These tests check what that is.

import {
  BatchNorm1d,
  Dropout,
  Linear,
  type Module,
  Sequential,
  Sgd,
  stateDict,
} from '@shardweave/nn';
import { OffloadModel, type OffloadOptions } from '@shardweave/offload';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';

const linear = (device: Device, inFeatures = 4, outFeatures = 4) =>
  new Linear(device, { inFeatures, outFeatures });

type Build = (device: Device) => Module[];

/** Opens a model in `store`, as one process does. */
function open(build: Build, options: OffloadOptions & { readonly seed?: number }) {
  const { seed = 1, ...offload } = options;
  const device = new Device(createReferenceBackend(), { seed });
  const model = new OffloadModel(new Sequential(device, build(device)), offload);
  const optimizer = new Sgd(model.parameters(), { lr: 0.1, momentum: 0.9 });
  const output = async (width = 4) => {
    const data = Float32Array.from({ length: 8 * width }, (_, i) => Math.sin(i));
    return (await model.call(device.tensor(data, [8, width]))) as Tensor;
  };
  const backward = (width?: number) =>
    device.scope(async () => {
      const loss = mean(square(await output(width)));
      await loss.backward();
      return loss.item();
    });
  const step = async (width?: number) => {
    const loss = await backward(width);
    await optimizer.step();
    optimizer.zeroGrad();
    return loss;
  };
  const evaluate = () =>
    device.noGrad(() =>
      device.scope(async () => {
        model.eval();
        const values = await (await output()).toArray();
        model.train();
        return [...values];
      }),
    );
  return { device, model, optimizer, backward, step, evaluate };
}

/** Trains two steps and ends. The store then has what a next process finds. */
async function leave(build: Build, store: ShardStore) {
  const run = open(build, { store });
  for (let i = 0; i < 2; i++) {
    await run.step();
  }
  return run;
}

const normed: Build = (device) => [
  linear(device),
  new BatchNorm1d(device, { numFeatures: 4 }),
  linear(device),
];
const dropped: Build = (device) => [
  linear(device),
  new Dropout(device, { p: 0.5 }),
  linear(device),
];
const plain: Build = (device) => [linear(device), linear(device)];

describe('a resumed run', () => {
  it('has the parameters and the optimizer state of the run before', async () => {
    const store = createHostStore();
    const first = await leave(plain, store);
    const state = await stateDict(first.model);
    first.model.dispose();
    const second = open(plain, { store, resume: true, seed: 2 });
    expect(await stateDict(second.model)).toEqual(state);
    const whole = open(plain, {});
    const expected = [];
    for (let i = 0; i < 4; i++) {
      expected.push(await whole.step());
    }
    expect([await second.step(), await second.step()]).toEqual(expected.slice(2));
  });

  it('has the buffers too: an evaluation is that of the run before', async () => {
    const store = createHostStore();
    const first = await leave(normed, store);
    const expected = await first.evaluate();
    first.model.dispose();
    const second = open(normed, { store, resume: true, seed: 2 });
    await second.model.moveToStore();
    expect(await second.evaluate()).toEqual(expected);
  });

  it('has the random state too: dropout goes on where it was', async () => {
    const store = createHostStore();
    const first = await leave(dropped, store);
    first.model.dispose();
    const second = open(dropped, { store, resume: true });
    const whole = open(dropped, {});
    const expected = [];
    for (let i = 0; i < 3; i++) {
      expected.push(await whole.step());
    }
    expect(await second.step()).toBe(expected[2]);
  });

  it('opens in any dtype of computation, whatever the one before it computed in', async () => {
    const store = createHostStore();
    let before: unknown;
    for (const computeDType of ['f32', 'bf16', 'f16', 'bf16', 'f32'] as const) {
      const isFirst = before === undefined;
      const run = open(normed, { store, computeDType, ...(isFirst ? {} : { resume: true }) });
      const state = await stateDict(run.model);
      expect(state).toEqual(isFirst ? state : before);
      await run.step();
      before = await stateDict(run.model);
      expect(before).not.toEqual(state);
      run.model.dispose();
    }
  });

  it('counts the steps that its parameters took before an optimizer was made anew', async () => {
    const store = createHostStore();
    const first = await leave(plain, store);
    for (const numSteps of [3, 4, 5]) {
      first.optimizer.dispose();
      const optimizer = new Sgd(first.model.parameters(), { lr: 0.1, momentum: 0.9 });
      await first.backward();
      await optimizer.step();
      optimizer.zeroGrad();
      optimizer.dispose();
      expect(first.model.numSteps).toBe(numSteps);
    }
    first.model.dispose();
    const next = open(plain, { store, resume: true });
    await next.step();
    expect(next.model.numSteps).toBe(6);
  });

  it.each<['weights' | 'biases']>([['weights'], ['biases']])(
    'has the state of either of two optimizers where the other, of all %s, never had a gradient',
    async (frozen) => {
      const through = async (store: ShardStore, resume: boolean | undefined, numSteps: number) => {
        const device = new Device(createReferenceBackend(), { seed: 1 });
        const module = new Sequential(device, plain(device));
        const model = new OffloadModel(module, {
          store,
          ...(resume === undefined ? {} : { resume }),
        });
        const [weights, biases] = [2, 1].map((rank) =>
          model.parameters().filter((parameter) => parameter.rank === rank),
        );
        for (const parameter of frozen === 'weights' ? weights! : biases!) {
          parameter.requiresGrad = false;
        }
        const optimizers = [weights!, biases!].map(
          (params) => new Sgd(params, { lr: 0.1, momentum: 0.9 }),
        );
        for (let step = 0; step < numSteps; step++) {
          await device.scope(async () => {
            const data = Float32Array.from({ length: 32 }, (_, i) => Math.sin(i));
            const output = (await model.call(device.tensor(data, [8, 4]))) as Tensor;
            await mean(square(output)).backward();
          });
          for (const optimizer of optimizers) {
            await optimizer.step();
            optimizer.zeroGrad();
          }
        }
        const state = await stateDict(model);
        model.dispose();
        return state;
      };
      const expected = await through(createHostStore(), undefined, 4);
      const store = createHostStore();
      await through(store, undefined, 2);
      expect(await through(store, true, 2)).toEqual(expected);
    },
  );

  it('knows how many steps it has taken, over any number of restarts', async () => {
    const store = createHostStore();
    for (let restart = 0; restart < 3; restart++) {
      const run = open(plain, { store, resume: restart > 0 });
      await run.model.moveToStore();
      expect(run.model.numSteps).toBe(2 * restart);
      for (let i = 0; i < 2; i++) {
        await run.step();
      }
      run.model.dispose();
    }
  });
});

describe('two models in one store', () => {
  it('are told apart by their names, whichever is called first', async () => {
    const store = createHostStore();
    const models = (resume?: boolean) =>
      ['actor', 'critic'].map((name, i) =>
        open(plain, { store, name, seed: i + 1, ...(resume === undefined ? {} : { resume }) }),
      );
    const [actor, critic] = models();
    await actor!.step();
    await critic!.step();
    const states = [await stateDict(actor!.model), await stateDict(critic!.model)];
    expect(states[0]).not.toEqual(states[1]);
    actor!.model.dispose();
    critic!.model.dispose();
    const again = models(true);
    expect(await stateDict(again[1]!.model)).toEqual(states[1]);
    expect(await stateDict(again[0]!.model)).toEqual(states[0]);
  });

  it('need two names: a second one of the same is refused when it is made', async () => {
    const store = createHostStore();
    const first = open(plain, { store });
    expect(() => open(plain, { store })).toThrow(
      /^store: expected a name that no other .* got 'offload' beside 'offload'\. Give each model/,
    );
    expect(() => open(plain, { store, name: 'offload.0' })).toThrow(/got 'offload\.0' beside/);
    first.model.dispose();
    await open(plain, { store }).step();
  });
});

describe('a store of another model', () => {
  it.each<[string, Build]>([
    ['transposed layers', (device) => [linear(device, 2, 8), linear(device, 8, 4)]],
    ['a wider layer whose pads hide it', (device) => [linear(device, 4, 5), linear(device, 5, 4)]],
    ['one layer less', (device) => [linear(device, 4, 4)]],
  ])('is refused: %s', async (_, build) => {
    const store = createHostStore();
    const first = await leave(plain, store);
    first.model.dispose();
    const second = open(build, { store, resume: true });
    await expect(second.model.moveToStore()).rejects.toThrow(/resume/);
  });

  it('a fresh start over a trained state is refused unless it is told to', async () => {
    const store = createHostStore();
    const first = await leave(plain, store);
    const state = await stateDict(first.model);
    first.model.dispose();
    const second = open(plain, { store, seed: 2 });
    await expect(second.model.moveToStore()).rejects.toThrow(/resume/);
    second.model.dispose();
    const third = open(plain, { store, resume: true });
    expect(await stateDict(third.model)).toEqual(state);
  });
});
