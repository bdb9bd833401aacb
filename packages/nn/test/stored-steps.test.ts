// These flats rest in stores. They are stepped in parts, by several optimizers, over several
// processes, and with a store that fails in the middle. The results are compared with those of
// flats on the device.

import { AdamW, type Optimizer, Sgd } from '@shardweave/nn';
import { HostBuffers, LEAST_PART_BYTES } from '@shardweave/nn/flat';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { type Flat, type FlatOptions, makeFlat, SIZE } from './support/flats.js';
import { MapStore } from './support/map-store.js';

const newDevice = () => new Device(createReferenceBackend());
const hex = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex');

type Step = (count: number) => Promise<void>;

/** Runs a program with a flat on the device and with one in a store, and returns both results. */
async function both(
  program: (one: Flat, step: (...optimizers: Optimizer<object>[]) => Step) => Promise<void>,
  options?: FlatOptions,
): Promise<[resident: string, stored: string]> {
  const results: string[] = [];
  for (const store of [undefined, new MapStore()]) {
    const one = await makeFlat(newDevice(), store, options);
    let seed = 10;
    const step =
      (...optimizers: Optimizer<object>[]) =>
      async (count: number) => {
        for (let i = 0; i < count; i++) {
          await one.addGradient(seed++);
          for (const optimizer of optimizers) {
            await optimizer.step();
          }
          for (const optimizer of optimizers) {
            optimizer.zeroGrad();
          }
        }
      };
    await program(one, step);
    results.push(hex(await one.read()));
  }
  return results as [string, string];
}

describe('in parts', () => {
  // Parts have 64 KiB of each tensor, the least there is, which cuts 40,002 elements into three.
  it.each(['f32', 'f16', 'bf16'] as const)('a flat in %s takes the same bits', async (dtype) => {
    for (const make of [
      (params: readonly Tensor[]) => new AdamW(params, { lr: 0.1 }),
      (params: readonly Tensor[]) => new Sgd(params, { lr: 0.1, momentum: 0.9, dampening: 0.1 }),
    ]) {
      let numParts = 0;
      const [resident, stored] = await both(
        async ({ halves, home, flat }, step) => {
          const { device } = flat;
          if (home !== undefined) {
            device.pool.limitBytes = 5 * 64 * 1024;
            const { run } = device.backend;
            device.backend.run = (name, call) => {
              numParts += name === 'adam' || name === 'sgd' ? 1 : 0;
              run.call(device.backend, name, call);
            };
          }
          await step(make(halves))(2);
        },
        { size: 40_002, dtype },
      );
      expect(stored).toBe(resident);
      expect(numParts).toBe(2 * 3);
    }
  });
});

describe('several optimizers of one flat', () => {
  it('each has a state and a count of its own', async () => {
    const [resident, stored] = await both(async ({ halves: [first, second] }, step) => {
      const adam = new AdamW([first!], { lr: 0.1 });
      const sgd = new Sgd([second!], { lr: 0.1, momentum: 0.9, dampening: 0.5 });
      await step(adam)(2);
      await step(adam, sgd)(3);
    });
    expect(stored).toBe(resident);
  });

  it('one made after another begins anew', async () => {
    const [resident, stored] = await both(async ({ flat }, step) => {
      const before = new AdamW([flat], { lr: 0.1 });
      await step(before)(2);
      before.dispose();
      await step(new AdamW([flat], { lr: 0.1 }))(2);
    });
    expect(stored).toBe(resident);
  });

  it('momentum that is switched on late begins with the gradient, undampened', async () => {
    const late = async ({ flat }: Flat, step: (...optimizers: Optimizer<object>[]) => Step) => {
      const optimizer = new Sgd([flat], { lr: 0.1, dampening: 0.5 });
      await step(optimizer)(1);
      optimizer.groups[0]!.momentum = 0.9;
      await step(optimizer)(2);
    };
    const [resident, stored] = await both(late);
    expect(stored).toBe(resident);
    const [expected] = await both(async ({ flat }, step) => {
      await step(new Sgd([flat], { lr: 0.1 }))(1);
      await step(new Sgd([flat], { lr: 0.1, dampening: 0.5, momentum: 0.9 }))(2);
    });
    expect(resident).toBe(expected);
  });
});

describe('the next process', () => {
  /** Takes steps, and lets another process continue from the store. */
  async function left() {
    const store = new MapStore();
    const one = await makeFlat(newDevice(), store);
    const optimizers = optimizersOf(one);
    for (const seed of [3, 4]) {
      await one.addGradient(seed);
      for (const optimizer of optimizers) {
        await optimizer.step();
      }
      one.home!.clearGradient();
    }
    const states = await Promise.all(optimizers.map((each) => each.readFlatState(one.flat)));
    one.home!.close();
    return { store, states };
  }

  function optimizersOf({ halves: [first, second] }: Flat): Optimizer<object>[] {
    return [new AdamW([first!], { lr: 0.1 }), new Sgd([second!], { lr: 0.1, momentum: 0.9 })];
  }

  it('finds the state of each optimizer, made in any order', async () => {
    const { store, states } = await left();
    const next = await makeFlat(newDevice(), store, { resume: true });
    const [adam, sgd] = optimizersOf(next);
    expect(await sgd!.readFlatState(next.flat)).toEqual(states[1]);
    expect(await adam!.readFlatState(next.flat)).toEqual(states[0]);
    expect(states.map((state) => state!.runs[0]!.step)).toEqual([2, 2]);
  });

  it.each<[string, (one: Flat) => Optimizer<object>, RegExp]>([
    ['another optimizer', ({ halves }) => new Sgd([halves[0]!]), /Got Sgd of elements 0 to 127/],
    [
      'other parameters',
      ({ flat }) => new AdamW([flat]),
      /AdamW of elements 0 to 127 \(group 0\); and Sgd of .*Got AdamW of elements 0 to 255/,
    ],
    [
      'other groups',
      ({ halves }) => new AdamW([{ params: [] }, { params: [halves[0]!] }]),
      /Got AdamW of elements 0 to 127 \(group 1\)/,
    ],
  ])('refuses %s, by name', async (_, make, message) => {
    const { store } = await left();
    const next = await makeFlat(newDevice(), store, { resume: true });
    await next.addGradient(5);
    const before = await next.read();
    await expect(make(next).step()).rejects.toThrow(message);
    expect(await next.read()).toEqual(before);
  });

  it('has of two optimizers alike the later one', async () => {
    const store = new MapStore();
    const one = await makeFlat(newDevice(), store);
    for (const seed of [3, 4]) {
      await one.addGradient(seed);
      await new AdamW([one.flat], { lr: 0.1 }).step(); // The first optimizer is not disposed yet.
      one.home!.clearGradient();
    }
    one.home!.close();
    const found = [...store.values].reverse(); // stores give keys in any order
    store.values.clear();
    for (const [key, bytes] of found) {
      store.values.set(key, bytes);
    }
    const next = await makeFlat(newDevice(), store, { resume: true });
    const state = await new AdamW([next.flat]).readFlatState(next.flat);
    expect(state!.runs[0]!.step).toBe(1);
    const own = store.values.get('one/2/expAvg');
    expect(state!.tensors.get('expAvg')).toEqual(own);
  });
});

it('the head of a state keeps its size as steps are counted, so that its store needs no more room', async () => {
  const store = new MapStore();
  const { flat, addGradient } = await makeFlat(newDevice(), store);
  const optimizer = new AdamW([flat], { lr: 0.1 });
  const sizes = new Set<number>();
  for (let step = 1; step <= 11; step++) {
    await addGradient(step);
    await optimizer.step();
    sizes.add(store.values.get('one/state')!.byteLength);
  }
  expect(sizes.size).toBe(1);
});

it('a state whose owner was disposed gives its place to the next, and leaves its keys', async () => {
  const store = new MapStore();
  const { flat, halves, addGradient } = await makeFlat(newDevice(), store);
  const stepBy = async (optimizer: Optimizer<object>) => {
    await addGradient(3);
    await optimizer.step();
    optimizer.zeroGrad();
    return store.keys().filter((key) => key.endsWith('state'));
  };
  const [first, second] = halves.map((half) => new AdamW([half], { lr: 0.1 }));
  await stepBy(first!);
  expect(await stepBy(second!)).toEqual(['one/state', 'one/2/state']);
  first!.dispose();
  const third = new Sgd([halves[0]!], { lr: 0.1, momentum: 0.9 });
  expect((await stepBy(third)).sort()).toEqual(['one/2/state', 'one/3/state']);
  expect(store.keys().filter((key) => key.startsWith('one/expAvg'))).toEqual([]);
  for (const each of [second!, third]) {
    each.dispose();
  }
  expect((await stepBy(new AdamW([flat]))).sort()).toEqual(['one/state']);
});

it('a state at rest counts the steps of those that it replaced, until another is loaded into it', async () => {
  const { flat, home, addGradient } = await makeFlat(newDevice(), new MapStore());
  const stepBy = async (optimizer: Optimizer<object>) => {
    await addGradient(3);
    await optimizer.step();
    optimizer.zeroGrad();
  };
  expect(home!.states.step).toBeUndefined();
  const first = new AdamW([flat]);
  await stepBy(first);
  await stepBy(first);
  first.dispose();
  expect(home!.states.step).toBe(2);
  const next = new AdamW([flat]);
  await stepBy(next);
  expect(home!.states.step).toBe(3);
  const { tensors } = (await next.readFlatState(flat))!;
  const run = { start: 0, length: SIZE, names: ['expAvg', 'expAvgSq'] };
  await next.writeFlatState(flat, { runs: [{ ...run, step: 7 }], tensors });
  expect(home!.states.step).toBe(7);
  await stepBy(next);
  expect(home!.states.step).toBe(8);
});

it('groups that meet in a flat are told apart when the next process asks for their state', async () => {
  const store = new MapStore();
  const one = await makeFlat(newDevice(), store);
  const groupsOf = ({ halves }: Flat) => halves.map((half) => ({ params: [half] }));
  await one.addGradient(3);
  await new AdamW(groupsOf(one)).step();
  one.home!.close();
  const next = await makeFlat(newDevice(), store, { resume: true });
  await next.addGradient(3);
  for (const params of [[{ params: next.halves }], groupsOf(next).toReversed()]) {
    await expect(new AdamW(params).step()).rejects.toThrow(
      'AdamW of elements 0 to 127 (group 0), 128 to 255 (group 1)',
    );
  }
  const own = new AdamW(groupsOf(next));
  expect((await own.readFlatState(next.flat))!.runs.map(({ step }) => step)).toEqual([1]);
});

describe('a step that fails half-way', () => {
  /** Makes two flats in two stores. The second store fails to read when a test wants it to. */
  async function twoStores() {
    const device = newDevice();
    const stores = [new MapStore(), new MapStore()];
    const flats = [await makeFlat(device, stores[0]), await makeFlat(device, stores[1])];
    // This flat has another optimizer.
    const other = await makeFlat(device, stores[1], { name: 'other' });
    const optimizer = new AdamW(
      flats.map(({ flat }) => flat),
      { lr: 0.1 },
    );
    const addGradients = async (seed: number) => {
      for (const one of flats) {
        await one.addGradient(seed);
      }
    };
    const read = async () => [hex(await flats[0]!.read()), hex(await flats[1]!.read())];
    const commits = () =>
      stores.map(({ calls }) => calls.filter((call) => call === 'commit').length);
    return { device, stores, flats, other, optimizer, addGradients, read, commits };
  }

  type Two = Awaited<ReturnType<typeof twoStores>>;

  /** Returns the values after two steps without any failure. */
  async function expected(options?: object): Promise<string[]> {
    const { optimizer, addGradients, read } = await twoStores();
    Object.assign(optimizer.groups[0]!, options);
    for (const seed of [3, 4]) {
      await addGradients(seed);
      await optimizer.step();
      optimizer.zeroGrad();
    }
    return read();
  }

  /** Returns two stores after one step, and a second step that failed. */
  async function failed(failing: (call: string) => boolean): Promise<Two> {
    const two = await twoStores();
    const { stores, optimizer, addGradients } = two;
    await addGradients(3);
    await optimizer.step();
    optimizer.zeroGrad();
    await addGradients(4);
    stores[1]!.failing = failing;
    await expect(optimizer.step()).rejects.toThrow('refused');
    stores[1]!.failing = () => false;
    return two;
  }

  const onRead = (call: string) => call === 'read one/expAvg';

  it('a step that a device without room ends is finished when there is some, and leaves nothing on it', async () => {
    const { device, flats, optimizer, addGradients, read, commits } = await twoStores();
    await addGradients(3);
    await optimizer.step();
    optimizer.zeroGrad();
    await addGradients(4);
    device.pool.trim();
    device.pool.limitBytes = 3 * SIZE * 4; // A step of a flat needs one tensor more than this.
    await expect(optimizer.step()).rejects.toThrow(/under the limit of 3072/);
    expect(device.memory().live.total).toBe(0);
    await expect(flats[0]!.home!.parameter.read(0, 4)).rejects.toThrow(/half-way/);
    device.pool.limitBytes = Number.POSITIVE_INFINITY;
    await optimizer.step();
    expect(await read()).toEqual(await expected());
    expect(commits()).toEqual([2, 2]);
  });

  it('is committed nowhere, and nothing of it is given out', async () => {
    const { flats, commits } = await failed(onRead);
    expect(commits()).toEqual([1, 1]);
    for (const { home } of flats) {
      await expect(home!.parameter.read(0, 4)).rejects.toThrow(/half-way/);
      await expect(home!.parameter.readForLoad('f32')).rejects.toThrow(/half-way/);
      await expect(home!.parameter.write(new Uint8Array(4), 0)).rejects.toThrow(/half-way/);
      expect(() => home!.startGradient()).toThrow(/half-way/);
    }
  });

  it.each([
    ['a read', onRead],
    ['a write', (call: string) => call === 'write one/expAvg'],
    ['the commit', (call: string) => call === 'commit'],
  ])(
    'a step that fails by %s is finished by the next, once, and one commit a store',
    async (_, failing) => {
      const { optimizer, read, commits } = await failed(failing);
      await optimizer.step();
      expect(await read()).toEqual(await expected());
      expect(commits().map((count) => count)).toEqual(
        failing('commit') ? [2, 3] : [2, 2], // The failed commit counts as a call as well.
      );
    },
  );

  it('is finished by a commit, whose step is not taken again', async () => {
    const { flats, optimizer, read } = await failed(onRead);
    await flats[0]!.home!.steps.commit();
    expect(await read()).toEqual(await expected());
    await optimizer.step(); // A caller that saw the first step fail repeats it.
    expect(await read()).toEqual(await expected());
    await optimizer.step(); // A second step with the same gradients may be intended.
    expect(await read()).not.toEqual(await expected());
  });

  it('a step that was finished by somebody else does not swallow the next', async () => {
    const { flats, optimizer, read, addGradients } = await failed(onRead);
    await flats[0]!.home!.steps.rest();
    optimizer.zeroGrad();
    await addGradients(5);
    await optimizer.step();
    expect(optimizer.stateOf(flats[1]!.flat)!.runs[0]!.step).toBe(3);
    expect(await read()).not.toEqual(await expected());
  });

  it('keeps its gradients until then, and forgets them when they were cleared meanwhile', async () => {
    const { flats, optimizer, read } = await failed(onRead);
    optimizer.zeroGrad();
    expect(flats.map(({ home }) => home!.hasGradient)).toEqual([true, true]);
    await flats[1]!.home!.steps.rest();
    expect(flats.map(({ home }) => home!.hasGradient)).toEqual([false, false]);
    expect(await read()).toEqual(await expected());
  });

  it('is finished with the options and the scale that it began with', async () => {
    const run = async (isFailing: boolean) => {
      const two = await twoStores();
      const { device, stores, optimizer, addGradients, read } = two;
      await addGradients(3);
      await device.scope(async () => {
        const step = optimizer.step({ gradScale: device.full([1], 0.5) });
        if (!isFailing) {
          await step;
          return;
        }
        stores[1]!.failing = (call) => call === 'read one/gradient';
        await expect(step).rejects.toThrow('refused');
        stores[1]!.failing = () => false;
      });
      if (isFailing) {
        optimizer.groups[0]!.lr = 7;
        await optimizer.step();
      }
      return { values: await read(), live: device.memory().live.total };
    };
    expect(await run(true)).toEqual(await run(false));
  });

  it('holds up another optimizer of the store, which finishes it first', async () => {
    const { other, read } = await failed(onRead);
    await other.addGradient(9);
    await new Sgd([other.flat], { lr: 0.1 }).step();
    expect(await read()).toEqual(await expected());
  });

  it('a step that cannot be finished holds up another optimizer, which has stepped nothing', async () => {
    const { other, stores, commits } = await failed(onRead);
    await other.addGradient(9);
    stores[1]!.failing = onRead;
    const before = stores[1]!.values.get('other/parameter');
    const sgd = new Sgd([other.flat], { lr: 0.1 });
    await expect(sgd.step()).rejects.toThrow('refused: read one/expAvg');
    expect(stores[1]!.values.get('other/parameter')).toEqual(before);
    expect(commits()).toEqual([1, 1]);
    stores[1]!.failing = () => false;
    await sgd.step(); // which counts as the first one
    expect(stores[1]!.values.get('other/parameter')).not.toEqual(before);
    sgd.zeroGrad();
    expect(other.home!.hasGradient).toBe(false); // The step has released the gradient.
  });

  it('is finished by whoever reads the state of its optimizer', async () => {
    const { flats, optimizer, read } = await failed(onRead);
    const named = flats.map(({ flat }, i) => [String(i), flat] as const);
    expect((await optimizer.stateDict(named)).state.get('1')!.step).toBe(2);
    expect(await read()).toEqual(await expected());
  });
});

it('two steps in one store run one after the other, and each commit is of whole ones', async () => {
  const device = newDevice();
  const store = new MapStore();
  const flats = [await makeFlat(device, store), await makeFlat(device, store, { name: 'two' })];
  const steps = flats.map(async (one) => {
    await one.addGradient(3);
    await new AdamW([one.flat]).step();
  });
  await Promise.all(steps);
  const calls = store.calls.filter((call) => call === 'commit' || call.startsWith('write'));
  const from = calls.indexOf('commit');
  const names = (part: readonly string[]) =>
    new Set(part.filter((call) => /expAvg/.test(call)).map((call) => call.split(/[ /]/)[1]));
  expect(names(calls.slice(0, from)).size).toBe(1);
  expect(names(calls.slice(from)).size).toBe(1);
});

it('brings a part of a flat when the one before it has come back', async () => {
  const backend = createReferenceBackend();
  const device = new Device(backend);
  const size = 2 ** 17; // This makes eight parts of the least size.
  const one = await makeFlat(device, new MapStore(), { size });
  device.pool.limitBytes = 4 * LEAST_PART_BYTES;
  const read = backend.read.bind(backend);
  let [now, most, numReads] = [0, 0, 0];
  backend.read = async (buffer, byteOffset, byteLength, into) => {
    now += byteLength;
    numReads += 1;
    most = Math.max(most, now);
    const bytes = await read(buffer, byteOffset, byteLength, into);
    await new Promise((resolve) => setImmediate(resolve)); // A device is slower than its host.
    now -= byteLength;
    return bytes;
  };
  await one.addGradient(5);
  await new AdamW([one.flat], { lr: 0.1 }).step();
  expect(numReads).toBe(8 * 3);
  expect(most).toBe(3 * LEAST_PART_BYTES);
});

it('begins with moments of zeros in each part, whatever the host buffers had before', async () => {
  const size = 2 ** 17;
  const buffers = new HostBuffers();
  const used = Array.from({ length: 6 }, () => buffers.take(4 * size).fill(0x3f));
  used.forEach((bytes) => void buffers.give(bytes));
  const results: string[] = [];
  for (const store of [undefined, new MapStore()]) {
    const device = newDevice();
    const one = await makeFlat(device, store, { size, buffers });
    if (store !== undefined) {
      device.pool.limitBytes = 4 * LEAST_PART_BYTES;
    }
    await one.addGradient(5);
    await new AdamW([one.flat], { lr: 0.1 }).step();
    results.push(hex(await one.read()));
  }
  expect(results[1]).toBe(results[0]);
});
