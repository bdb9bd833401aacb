// A save of a plain module is loaded again, whatever its parameters are. What does not fit is
// refused before anything is written.

import { openSave, type PieceStore, piecesIn } from '@shardweave/checkpoint';
import {
  Adam,
  AdamW,
  BatchNorm1d,
  Embedding,
  Linear,
  loadCheckpoint,
  type Module,
  type Optimizer,
  ParameterInit,
  packParameters,
  Sequential,
  Sgd,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import { add, type Device, square, sum } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { textOf as textOfState } from '../../../tooling/test-kit/index.ts';
import { makeDevice } from './support/support.js';

const place = (): PieceStore => piecesIn(createHostStore());

function net(device: Device, seed = 1): Sequential {
  const init = new ParameterInit(device, { seed });
  return new Sequential(device, [
    new Linear(device, { inFeatures: 3, outFeatures: 5, init }),
    new BatchNorm1d(device, { numFeatures: 5 }),
  ]);
}

async function stepOnce(module: Module, optimizer: Optimizer<object>, value = 0.25): Promise<void> {
  const { device } = module;
  for (const parameter of module.parameters()) {
    const { flat, start } = parameter.piece ?? { flat: parameter, start: 0 };
    flat.grad ??= device.full([flat.size], 0).keep();
    const values = new Float32Array(parameter.size).fill(value);
    flat.grad.storage.write(new Uint8Array(values.buffer), start * 4);
  }
  await optimizer.step();
  optimizer.zeroGrad();
}

const textOf = async (module: Module) => textOfState(await stateDict(module));

it('parameters, buffers, state and options come back, from plain to packed', async () => {
  const device = makeDevice();
  const store = place();
  const source = net(device);
  const optimizer = new AdamW(source.parameters(), { lr: 0.125 });
  await stepOnce(source, optimizer);
  await stepOnce(source, optimizer, -3);
  source.namedBuffers()[0]![1].storage.write(new Uint8Array(new Float32Array(5).fill(7).buffer));
  await saveCheckpoint(source, store, { optimizer, extra: { step: 2, of: ['this', null] } });

  const target = net(device, 9);
  const own = new AdamW(target.parameters(), { lr: 1 });
  using packed = packParameters(target);
  const extra = await loadCheckpoint(target, store, { optimizer: own });
  expect(extra).toEqual({ step: 2, of: ['this', null] });
  expect(await textOf(target)).toEqual(await textOf(source));
  expect(own.groups[0]!.lr).toBe(0.125);
  expect(own.stateOf(packed.flats[0]!)?.runs[0]?.step).toBe(2);
  expect(await own.stateDict(target.namedParameters())).toEqual(
    await optimizer.stateDict(source.namedParameters()),
  );
  await stepOnce(source, optimizer, 2);
  await stepOnce(target, own, 2);
  expect(await textOf(target)).toEqual(await textOf(source));
});

it('parameters of one flat go on from their own numbers of steps', async () => {
  const device = makeDevice();
  const store = place();
  const source = net(device);
  const [first, second] = source.parameters();
  const optimizer = new AdamW(source.parameters());
  for (const stepped of [[first], [first, second]]) {
    for (const each of stepped) {
      each!.grad = device.full(each!.shape, 1).keep();
    }
    await optimizer.step();
    optimizer.zeroGrad();
  }
  await saveCheckpoint(source, store, { optimizer });
  const target = net(device, 2);
  using packed = packParameters(target);
  const own = new AdamW(target.parameters());
  await loadCheckpoint(target, store, { optimizer: own });
  expect(own.stateOf(packed.flats[0]!)!.runs.map(({ step }) => step)).toEqual([2, 1]);
  const again = place();
  await saveCheckpoint(target, again, { optimizer: own });
  const last = net(device, 3);
  const plain = new AdamW(last.parameters());
  await loadCheckpoint(last, again, { optimizer: plain });
  expect(plain.stateOf(last.parameters()[2]!)).toBeUndefined();
  for (const [module, each] of [
    [source, optimizer],
    [target, own],
    [last, plain],
  ] as const) {
    await stepOnce(module, each, -3);
  }
  expect(await textOf(target)).toEqual(await textOf(source));
  expect(await textOf(last)).toEqual(await textOf(source));
});

it('a parameter that was never stepped between two that were has no state', async () => {
  const device = makeDevice();
  const store = place();
  const source = net(device);
  const [first, , third] = source.parameters();
  using _packed = packParameters(source);
  const optimizer = new AdamW(source.parameters());
  await device.scope(() => add(sum(square(first!)), sum(square(third!))).backward());
  await optimizer.step();
  await saveCheckpoint(source, store, { optimizer });
  const save = await openSave(store);
  expect(Object.keys(save.optimizer!.steps)).toEqual(['0.weight', '1.weight']);
});

it.each(['f16', 'bf16'] as const)('%s of odd length, and from f32', async (dtype) => {
  const device = makeDevice();
  const store = place();
  const make = (seed: number) => {
    const init = new ParameterInit(device, { seed });
    return new Linear(device, { inFeatures: 7, outFeatures: 3, init });
  };
  const source = make(1).to(dtype);
  await saveCheckpoint(source, store);
  const target = make(2).to(dtype);
  await loadCheckpoint(target, store);
  expect(await textOf(target)).toEqual(await textOf(source));
  const wide = make(3);
  await loadCheckpoint(wide, store);
  expect(await textOf(wide.to(dtype))).toEqual(await textOf(source));
});

it('values that were not made yet are loaded, and a tensor of several pieces', async () => {
  const device = makeDevice();
  const store = place();
  const make = (seed: number, isDeferred: boolean) => {
    const init = new ParameterInit(device, { seed, isDeferred });
    return new Embedding(device, { numEmbeddings: 3001, embeddingDim: 128, init });
  };
  const source = make(1, false);
  await saveCheckpoint(source, store);
  const { peak } = device.memory();
  const target = make(2, true);
  await loadCheckpoint(target, store);
  expect(await textOf(target)).toEqual(await textOf(source));
  expect(device.memory().peak.total).toBeLessThanOrEqual(peak.total * 2);
});

it('a step beside a save ends it, and the save before stays', async () => {
  const device = makeDevice();
  const store = place();
  const module = net(device);
  const optimizer = new Sgd(module.parameters(), { lr: 1 });
  await saveCheckpoint(module, store, { extra: { count: 1 } });
  const before = await textOf(module);
  const create: PieceStore['create'] = async (file) => {
    await stepOnce(module, optimizer); // The save sees a step between two pieces.
    return store.create(file);
  };
  const saving = saveCheckpoint(module, { ...store, create }, { extra: { count: 2 } });
  await expect(saving).rejects.toThrow(/a step or a load of .* beside it/);
  expect(await loadCheckpoint(module, store)).toEqual({ count: 1 });
  expect(await textOf(module)).toEqual(before);
});

it('a group that was not saved keeps its options where names need not fit', async () => {
  const device = makeDevice();
  const store = place();
  const source = net(device);
  const optimizer = new Sgd(source.parameters(), { lr: 0.5, momentum: 0.9 });
  await stepOnce(source, optimizer);
  await saveCheckpoint(source, store, { optimizer });
  const head = new Linear(device, { inFeatures: 5, outFeatures: 2 });
  const bare = net(device, 2);
  const target = new Sequential(device, [...bare.children().values(), head]);
  const groups = [{ params: head.parameters() }, { params: bare.parameters() }];
  const own = new Sgd(groups, { lr: 7 });
  const loading = (strict: boolean) => loadCheckpoint(target, store, { optimizer: own, strict });
  await expect(loading(true)).rejects.toMatchObject({ missing: ['2.weight', '2.bias'] });
  await loading(false);
  expect(own.groups.map(({ lr, momentum }) => [lr, momentum])).toEqual([
    [7, 0],
    [0.5, 0.9],
  ]);
});

it('state that no option asks for any more is left out where its parameter is frozen now', async () => {
  const device = makeDevice();
  const store = place();
  const source = net(device);
  const optimizer = new Sgd(source.parameters(), { lr: 0.5, momentum: 0.9 });
  await stepOnce(source, optimizer);
  optimizer.groups[0]!.momentum = 0;
  await saveCheckpoint(source, store, { optimizer });
  const target = net(device, 2);
  const own = new Sgd(target.parameters(), { lr: 0.5, momentum: 0.9 });
  for (const parameter of target.parameters()) {
    parameter.requiresGrad = false;
  }
  await loadCheckpoint(target, store, { optimizer: own });
  expect(await textOf(target)).toEqual(await textOf(source));
});

describe('refuses, and writes nothing', () => {
  it('state of another optimizer, or none, or other groups', async () => {
    const device = makeDevice();
    const [store, bare] = [place(), place()];
    const source = net(device);
    const optimizer = new Sgd(source.parameters(), { lr: 0.5, momentum: 0.9 });
    await stepOnce(source, optimizer);
    await saveCheckpoint(source, store, { optimizer });
    await saveCheckpoint(source, bare);
    const target = net(device, 2);
    const before = await textOf(target);
    const loading = loadCheckpoint(target, store, { optimizer: new Adam(target.parameters()) });
    await expect(loading).rejects.toThrow('expected state of Adam, got that of Sgd');
    const plain = place();
    const other = net(device);
    const still = new Sgd(other.parameters(), { lr: 0.5 }); // This optimizer has no state tensors.
    await stepOnce(other, still);
    await saveCheckpoint(other, plain, { optimizer: still });
    const fresh = loadCheckpoint(target, plain, { optimizer: new Adam(target.parameters()) });
    await expect(fresh).rejects.toThrow('expected state of Adam, got that of Sgd');
    const own = new Sgd(target.parameters(), { lr: 0.5, momentum: 0.9 });
    await expect(loadCheckpoint(target, bare, { optimizer: own })).rejects.toThrow(
      'expected state of Sgd, got no optimizer state',
    );
    const two = target.parameters().map((param) => ({ params: [param] }));
    const grouped = new Sgd(two, { lr: 0.5, momentum: 0.9 });
    await expect(loadCheckpoint(target, store, { optimizer: grouped })).rejects.toThrow(
      "saved group 0 in one group, got '0.weight' in group 0 and '0.bias' in group 1",
    );
    expect(await textOf(target)).toEqual(before);
    await loadCheckpoint(target, store); // Weights without an optimizer fit.
    expect(await textOf(target)).toEqual(await textOf(source));
  });

  it('an optimizer of other parameters, and parameters that are elsewhere', async () => {
    const device = makeDevice();
    const [one, other] = [net(device), net(device)];
    const optimizer = new Adam(other.parameters());
    await expect(saveCheckpoint(one, place(), { optimizer })).rejects.toThrow(
      "expected an optimizer of the module's parameters",
    );
    const [weight] = one.parameters();
    weight!.piece = { flat: weight!, start: 0, length: 3, numShards: 2 };
    await expect(saveCheckpoint(one, place())).rejects.toThrow(
      'Call it with the wrapper that holds them',
    );
  });
});
