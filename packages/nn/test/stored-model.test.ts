// What a store holds of a model besides its flats, and the names that models have in it.

import { HostBuffers, StoredFlat, StoredModel, storeUseOf } from '@shardweave/nn/flat';
import { createHostStore } from '@shardweave/shard-store';
import { type Device, Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { MapStore } from './support/map-store.js';
import { makeDevice, read } from './support/support.js';

interface Options {
  readonly name?: string;
  readonly resume?: boolean | undefined;
  readonly steps?: number;
  readonly marks?: readonly string[];
  readonly dtype?: 'f32' | 'bf16';
  readonly value?: number;
}

/** A model of two buffers in a store, of which one lies within a larger storage. */
function modelIn(store: MapStore, device: Device, options: Options = {}) {
  const { name = 'net', resume, steps = 0, marks = ['rank 0'], dtype = 'f32', value = 1 } = options;
  const whole = device.full([6], value, { dtype }).keep();
  const part = new Tensor(whole.storage, [2], 2);
  const count = device.full([1], value, { dtype: 'u32' });
  const use = storeUseOf(store);
  const buffers = () =>
    [
      ['mean', part],
      ['count', count],
    ] as const;
  const model = new StoredModel({
    ...{ use, name, device, resume, flats: [], marks: () => marks },
    ...{ buffers, numSteps: () => steps },
  });
  return { model, use, whole, count };
}

describe('a stored model', () => {
  it.each([
    ['f32', 'f32'],
    ['bf16', 'f32'],
    ['f32', 'bf16'],
  ] as const)('left in %s brings its buffers to their places in %s', async (from, into) => {
    const store = new MapStore();
    const left = modelIn(store, makeDevice(), { dtype: from, value: 5, steps: 3 });
    await left.model.open();
    await left.use.commit();
    expect(store.values.get('net/buffer/mean')).toEqual(
      new Uint8Array(Float32Array.of(5, 5).buffer),
    );
    left.model.close();
    const next = modelIn(store, makeDevice(), { resume: true, dtype: into });
    await next.model.open();
    expect(await read(next.whole)).toEqual([1, 1, 5, 5, 1, 1]);
    expect(await read(next.count)).toEqual([5]);
  });

  it('goes on with the random state of then, but on a device that has begun with its own', async () => {
    const store = new MapStore();
    const device = makeDevice({ seed: 7 });
    device.random.nextKey();
    const left = modelIn(store, device);
    await left.model.open();
    await left.use.commit();
    left.model.close();
    const expected = device.random.nextKey();
    const fresh = makeDevice({ seed: 7 });
    await modelIn(store, fresh, { resume: true }).model.open();
    expect(fresh.random.nextKey()).toEqual(expected);
    const begun = makeDevice({ seed: 8 });
    begun.random.begin({ step: 5, rowOffset: 0 });
    begun.random.nextKey();
    begun.random.nextKey();
    const own = begun.random.state();
    await modelIn(store, begun, { resume: true, name: 'net' }).model.open();
    expect(begun.random.state()).toEqual(own);
  });

  it.each<[string, Options, string | undefined]>([
    ['another mark', { marks: ['rank 1'], resume: true }, 'rank 0. Got rank 1.'],
    ['a part more', { marks: ['rank 0', 'x'], resume: true }, 'Got x.'],
    ['a part less', { marks: [], resume: true }, 'rank 0. Got buffer'],
    [
      'no trace of it',
      { name: 'other', resume: true },
      "a model under 'other' in the store, got none",
    ],
    ['no word of resuming', {}, 'got one after 3 steps, which would be lost'],
    ['a wish to begin anew', { resume: false }, undefined],
    ['the same', { resume: true }, undefined],
  ])('a model with %s', async (_, options, message) => {
    const store = new MapStore();
    const left = modelIn(store, makeDevice(), { steps: 3 });
    await left.model.open();
    await left.use.commit();
    left.model.close();
    store.values.set('net2/head', Uint8Array.of(1));
    const { model } = modelIn(store, makeDevice(), options);
    for (const _attempt of [1, 2]) {
      await (message === undefined ? model.open() : expect(model.open()).rejects.toThrow(message));
    }
    const kept = message !== undefined || options.resume === true;
    expect(store.keys().includes('net/head')).toBe(kept);
    expect(store.keys().includes('net2/head')).toBe(true);
  });

  it('is written by each commit until it is closed, or its device is gone', async () => {
    const store = new MapStore();
    const device = makeDevice();
    const { model, use } = modelIn(store, device);
    await model.open();
    const written = async () => {
      store.values.delete('net/head');
      await use.commit();
      return store.values.has('net/head');
    };
    expect([await written(), await written()]).toEqual([true, true]);
    const { byteLength } = store.values.get('net/head')!;
    device.random.begin({ step: 1e9, rowOffset: 1e6 });
    await use.commit();
    expect(store.values.get('net/head')!.byteLength).toBe(byteLength);
    model.close();
    expect(await written()).toBe(false);
    await model.open();
    expect(await written()).toBe(true);
    device.dispose();
    expect(await written()).toBe(false);
  });

  it('a model that was never trained gives its place to the next without a word', async () => {
    const store = new MapStore();
    const first = modelIn(store, makeDevice());
    await first.model.open();
    await first.use.commit();
    first.model.close();
    await modelIn(store, makeDevice()).model.open();
    expect(store.keys()).toEqual([]);
  });
});

describe('names in a store', () => {
  const use = () => storeUseOf(createHostStore());

  it.each([
    [['a'], ['a']],
    [['a'], ['a/b']],
    [['a/b'], ['a']],
    [
      ['x', 'a'],
      ['y', 'a/b/c'],
    ],
  ])('%j are refused beside %j, and nothing is taken then', (one, other) => {
    const store = use();
    const [device, second] = [makeDevice(), makeDevice()];
    store.claim(one, device);
    expect(() => store.claim(other, second)).toThrow('that no other model or flat parameter');
    expect(store.isSharedBeyond(device)).toBe(false);
    expect(() => store.claim(['a', 'b', 'a/c'], second)).toThrow("got '");
  });

  it('names that only begin alike stand beside each other, until they are given back', () => {
    const store = use();
    const [device, other] = [makeDevice(), makeDevice()];
    const back = store.claim(['a', 'b/c'], device);
    store.claim(['ab', 'b/cd'], other);
    expect([device, other].map((each) => store.isSharedBeyond(each))).toEqual([true, true]);
    back();
    const again = store.claim(['a'], other);
    back(); // which is no longer its own
    expect(() => store.claim(['a'], device)).toThrow("got 'a' beside 'a'");
    expect(store.isSharedBeyond(other)).toBe(false);
    again();
    store.claim(['a'], device);
    device.dispose();
    store.claim(['a'], other); // whose names are free with their device
  });
});

it('the work that has a flat is the first that began, of several', () => {
  const device = makeDevice();
  const flat = device.zeros([4]);
  const options = { use: storeUseOf(new MapStore()), rests: 'all', resume: false } as const;
  const home = new StoredFlat(flat, options, () => new HostBuffers());
  const [first, second, third] = ['a', 'b', 'b'].map((by) => home.occupy(by));
  expect(home.occupant).toBe('a');
  second!();
  second!();
  expect(home.occupant).toBe('a');
  first!();
  expect(home.occupant).toBe('b');
  third!();
  expect(home.occupant).toBeUndefined();
  expect(home.parameter.loadBytes('f32')).toBe(16);
  expect(home.parameter.loadBytes('bf16')).toBe(16 + 8);
});
