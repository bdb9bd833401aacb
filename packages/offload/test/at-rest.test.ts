// A next process resumes from what the store holds of a model. These tests check what that is.

import { BatchNorm1d, Dropout, Linear, type Module, Sequential, Sgd } from '@shardweave/nn';
import { OffloadModel, type OffloadOptions, stateDict } from '@shardweave/offload';
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
  const step = (width?: number) =>
    device.scope(async () => {
      const loss = mean(square(await output(width)));
      await loss.backward();
      const value = await loss.item();
      await optimizer.step();
      optimizer.zeroGrad();
      return value;
    });
  const evaluate = () =>
    device.noGrad(() =>
      device.scope(async () => {
        model.eval();
        const values = await (await output()).toArray();
        model.train();
        return [...values];
      }),
    );
  return { device, model, optimizer, step, evaluate };
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
    const second = open(dropped, { store, resume: true });
    first.model.dispose();
    const whole = open(dropped, {});
    const expected = [];
    for (let i = 0; i < 3; i++) {
      expected.push(await whole.step());
    }
    expect(await second.step()).toBe(expected[2]);
  });

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
    const third = open(plain, { store, resume: true });
    expect(await stateDict(third.model)).toEqual(state);
  });
});
