// These tests cover a model and its store: what is written when, stores that refuse, several models
// in one store, and disposal.

import { gradNorm, loadStateDict, type Module, Sequential, Sgd, stateDict } from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { mean, square, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { linears, newDevice, rows, squared } from './support/linear-layers.js';

/** Returns a store whose `method` rejects while `isFailing()`. */
function failingStore(method: 'read' | 'write', isFailing: () => boolean): ShardStore {
  const store = createHostStore();
  // biome-ignore lint/suspicious/noExplicitAny: either method
  const original = (store[method] as any).bind(store);
  return Object.assign(store, {
    [method]: (...args: unknown[]) =>
      isFailing() ? Promise.reject(new Error('no disk')) : original(...args),
  });
}

it('disposed while a slice is read: an error that says so, and host buffers are given back once', async () => {
  const device = newDevice();
  const store = createHostStore();
  const read = store.read.bind(store);
  let release = (): void => {};
  store.read = async (...args) => {
    await new Promise<void>((resolve) => {
      release = resolve;
    });
    await read(...args);
  };
  const model = new OffloadModel(linears(device, 2), { store, numSlices: 1 });
  await model.moveToStore();
  const calling = device.scope(() => model.call(rows(device)));
  const outcome = expect(calling).rejects.toThrow(/disposed or failed meanwhile/);
  for (let i = 0; i < 3; i++) {
    await new Promise((resolve) => setImmediate(resolve));
  }
  model.dispose();
  for (let i = 0; i < 3; i++) {
    release();
    await new Promise((resolve) => setImmediate(resolve));
  }
  await outcome;
  expect(model.hostMemory().stagingBytes).toBe(0);
  expect(device.memory().live.total).toBe(0);
});

it('the move into the store is a generation: a process that ends before a step leaves a model', async () => {
  const store = createHostStore();
  const model = new OffloadModel(linears(newDevice(), 2), { store });
  expect(store.generation).toBe(0);
  await model.moveToStore();
  await model.moveToStore();
  expect(store.generation).toBe(1);
});

it('disposed before its first call, twice', async () => {
  const device = newDevice();
  const model = new OffloadModel(linears(device, 2));
  model.dispose();
  model.dispose();
  expect(device.memory().live.total).toBe(0);
  await expect(model.call(rows(device))).rejects.toThrow();
});

it('a first move that fails can be tried again', async () => {
  const device = newDevice();
  let numWrites = 0;
  const store = failingStore('write', () => ++numWrites === 3);
  const model = new OffloadModel(linears(device, 4), { store });
  await expect(model.call(rows(device))).rejects.toThrow('no disk');
  const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
  const before = await stateDict(model);
  await device.scope(() => squared(model, rows(device).detach()));
  await optimizer.step();
  expect(device.memory().live.parameter).toBe(0);
  const after = await stateDict(model);
  for (const name of before.keys()) {
    expect(after.get(name), name).not.toEqual(before.get(name));
  }
});

it('a resume of what is not there says so each time', async () => {
  const model = new OffloadModel(linears(newDevice(), 2), { resume: true });
  for (let i = 0; i < 2; i++) {
    await expect(model.moveToStore()).rejects.toThrow(/^resume: expected/);
  }
});

it('a read ahead that fails is forgotten: later steps see what the optimizer wrote', async () => {
  const run = async (isFailingOnce: boolean) => {
    const device = newDevice();
    let left = Number.POSITIVE_INFINITY;
    const store = failingStore('read', () => --left === 0);
    const model = new OffloadModel(linears(device, 4), { store, numSlices: 4 });
    const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
    const losses: number[] = [];
    for (let step = 0; step < 4; step++) {
      if (isFailingOnce && step === 2) {
        left = 3; // The store then fails in the middle of a forward whose order is known.
        await expect(device.scope(() => model.call(rows(device)))).rejects.toThrow('no disk');
        left = Number.POSITIVE_INFINITY;
      }
      await device.scope(async () => {
        const loss = mean(square(await model.call(rows(device).detach())));
        await loss.backward();
        losses.push(await loss.item());
      });
      await optimizer.step();
      optimizer.zeroGrad();
    }
    expect(model.hostMemory().stagingBytes).toBe(0);
    return losses;
  };
  expect(await run(true)).toEqual(await run(false));
});

it('a gradient that the store refuses fails this backward, not the next one', async () => {
  const device = newDevice();
  let isFull = false;
  const store = failingStore('write', () => isFull);
  const model = new OffloadModel(linears(device, 4), { store, numSlices: 4 });
  const step = () => device.scope(() => squared(model, rows(device).detach()));
  await step();
  isFull = true;
  await expect(step()).rejects.toThrow('no disk');
  isFull = false;
  model.zeroGrad();
  await step();
  expect(model.hostMemory().stagingBytes).toBe(0);
});

it('a refused gradient is given up by zeroGrad: commits, loads and steps of other layers go on', async () => {
  const device = newDevice();
  const layerBytes = 4 * 256; // These are a weight and a bias, padded.
  // The store has room for the parameters, one gradient, and the records of whose model and state
  // it holds.
  const store = createHostStore({ maxBytes: 5 * layerBytes + 768 });
  const model = new OffloadModel(linears(device, 4), { store, numSlices: 4 });
  const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
  const step = () => device.scope(() => squared(model, rows(device).detach()));
  await expect(step()).rejects.toMatchObject({ code: 'FULL' });
  await expect(model.commit()).rejects.toMatchObject({ code: 'INCOMPLETE' });
  model.zeroGrad();
  await model.commit();
  const state = await stateDict(model);
  await loadStateDict(model, state);
  for (const parameter of model.parameters().slice(0, 6)) {
    parameter.requiresGrad = false;
  }
  for (let i = 0; i < 2; i++) {
    await step();
    await optimizer.step();
    optimizer.zeroGrad();
  }
  const after = await stateDict(model);
  expect(after.get('2.weight')).toEqual(state.get('2.weight'));
  expect(after.get('3.weight')).not.toEqual(state.get('3.weight'));
});

describe('two optimizers over one flat in a store', () => {
  /** Runs a backward of one layer, whose weight and bias are one flat with an optimizer each. */
  async function begun(isFailing: () => boolean) {
    const device = newDevice();
    const store = failingStore('read', isFailing);
    const model = new OffloadModel(linears(device, 1), { store });
    const [weight, bias] = model.parameters();
    const optimizers = [weight!, bias!].map((parameter) => new Sgd([parameter], { lr: 0.1 }));
    await device.scope(() => squared(model, rows(device).detach()));
    const norms = async () => [await gradNorm([weight!]), await gradNorm([bias!])] as const;
    return { optimizers, norms };
  }

  it('zeroGrad of one leaves the gradients of the other, and none of its own', async () => {
    const { optimizers, norms } = await begun(() => false);
    const [ofWeight, ofBias] = await norms();
    expect(Math.min(ofWeight, ofBias)).toBeGreaterThan(0);
    optimizers[1]!.zeroGrad();
    expect(await norms()).toEqual([ofWeight, 0]);
  });

  it('zeroGrad of one while a failed step of the other is owed leaves that one its gradients', async () => {
    let isFailing = false;
    const { optimizers, norms } = await begun(() => isFailing);
    const [ofWeight] = await norms();
    isFailing = true;
    await expect(optimizers[0]!.step()).rejects.toThrow('no disk');
    optimizers[1]!.zeroGrad();
    isFailing = false;
    await optimizers[0]!.step();
    expect(await norms()).toEqual([ofWeight, 0]);
  });
});

it('two models in one store, stepped by one optimizer', async () => {
  const run = async (isOffloaded: boolean) => {
    const device = newDevice();
    const store = createHostStore();
    const wrap = (name: string, layers: Module[]): Module =>
      isOffloaded ? new OffloadModel(layers, { store, name }) : new Sequential(device, layers);
    const [a, b] = [wrap('a', linears(device, 2)), wrap('b', linears(device, 3))];
    const optimizer = new Sgd([...a.parameters(), ...b.parameters()], { lr: 0.5 });
    const losses: number[] = [];
    for (let step = 0; step < 3; step++) {
      await device.scope(async () => {
        const loss = mean(square((await b.call(await a.call(rows(device).detach()))) as Tensor));
        await loss.backward();
        losses.push(await loss.item());
      });
      await optimizer.step();
      optimizer.zeroGrad();
    }
    return losses;
  };
  expect(await run(true)).toEqual(await run(false));
});

it('a state that is loaded while gradients rest is stepped by them', async () => {
  const device = newDevice();
  const model = new OffloadModel(linears(device, 3));
  const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
  const state = await stateDict(model);
  await device.scope(() => squared(model, rows(device).detach()));
  await loadStateDict(model, state);
  expect(await stateDict(model)).toEqual(state);
  await optimizer.step();
  expect(await stateDict(model)).not.toEqual(state);
});

it('a model that is disposed leaves its name to the next one', async () => {
  const device = newDevice();
  const store = createHostStore();
  for (let i = 0; i < 2; i++) {
    const model = new OffloadModel(linears(device, 2), { store });
    await model.moveToStore();
    const keys = ['offload.0/parameter', 'offload.1/parameter', 'offload/head'];
    expect([...store.keys()].sort()).toEqual(keys);
    model.dispose();
  }
});

it('a state is loaded layer by layer: each is written once, and none comes to the device', async () => {
  const source = await stateDict(new OffloadModel(linears(newDevice(), 2)));
  const store = createHostStore();
  const device = newDevice();
  const model = new OffloadModel(linears(device, 2), { store });
  await model.moveToStore();
  const before = device.ledger.live().total;
  device.ledger.resetPeak();
  const written: string[] = [];
  const write = store.write.bind(store);
  store.write = (key, ...rest) => {
    written.push(key);
    return write(key, ...rest);
  };
  await loadStateDict(model, source);
  const parameters = written.filter((key) => key.endsWith('/parameter'));
  expect(parameters).toEqual(['offload.0/parameter', 'offload.1/parameter']);
  expect(device.ledger.peak().total).toBe(before);
});

it('a state that was loaded is what a next process finds', async () => {
  const store = createHostStore();
  const model = new OffloadModel(linears(newDevice(), 2), { store });
  const state = await stateDict(model);
  const before = store.generation;
  await loadStateDict(model, state);
  expect(store.generation).toBe(before + 1);
});
