// Calls come in odd places here, and failures at odd moments. The tests check what passes through,
// checkpointing around the model, graphs that are kept, and layers that throw.

import { checkpoint, Module, Sequential, Sgd, stateDict } from '@shardweave/nn';
import { OffloadModel } from '@shardweave/offload';
import { add, type Device, mean, mul, square, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  type Body,
  type Build,
  DIM,
  expectAsPlain,
  linear,
  linears,
  newDevice,
  PATHS,
  rows,
  squared,
} from './support/linear-layers.js';

/** This module calls any function. */
// biome-ignore lint/suspicious/noExplicitAny: a layer of any signature
class Call extends Module<any, any> {
  readonly #body: (x: unknown) => unknown;

  constructor(device: Device, body: (x: never) => unknown, inner?: Module) {
    super(device);
    this.#body = body as (x: unknown) => unknown;
    if (inner !== undefined) {
      this.child('inner', inner);
    }
  }

  forward(x: unknown): unknown {
    return this.#body(x);
  }
}

describe.each(PATHS)('%o', (path) => {
  const same = (build: Build, body: Body, numSlices = 4) =>
    expectAsPlain(build, body, { numSlices, ...path });

  it('a value may pass through slices beside others', async () => {
    const skip = (device: Device) => {
      const inner = linear(device);
      type Pair = { x: Tensor; skip: Tensor };
      const run = async ({ x }: Pair) => ({ x: await inner.call(x), skip: x });
      return new Call(device, run, inner);
    };
    await same(
      (device) => [
        linear(device),
        new Call(device, (x: Tensor) => ({ x, skip: x })),
        skip(device),
        skip(device),
        new Call(device, ({ x, skip }: { x: Tensor; skip: Tensor }) => add(x, skip)),
      ],
      squared,
    );
  });

  it('layers that return what they got', async () => {
    await same((device) => {
      const identity = () => new Call(device, (x: Tensor) => x);
      return [identity(), linear(device), identity(), linear(device)];
    }, squared);
  });

  it('one module may stand in two places of a list', async () => {
    await same((device) => {
      const shared = linear(device);
      return [shared, linear(device), shared];
    }, squared);
  });

  it.each([1, 3])('checkpointing around the model, called twice, %i slices', async (numSlices) => {
    await same(
      (device) => linears(device, 3),
      async (model, x) => {
        const wrapped = checkpoint(model);
        const once = (await wrapped.call(x)) as Tensor;
        await mean(square((await wrapped.call(tanh(once))) as Tensor)).backward();
      },
      numSlices,
    );
  });

  it('the model may be called on its own result', async () => {
    await same(
      (device) => linears(device, 3),
      async (model, x) => mean(square(await model.call(await model.call(x)))).backward(),
    );
  });

  it('a graph that is kept runs again, for a second loss', async () => {
    await same(
      (device) => linears(device, 3),
      async (model, x) => {
        const loss = mean(square(await model.call(x)));
        await loss.backward({ retainGraph: true });
        await loss.backward();
      },
    );
  });

  it('evaluation between forward and backward', async () => {
    await same(
      (device) => linears(device, 3),
      async (model, x) => {
        const output = await model.call(x);
        await model.device.noGrad(() => model.call(mul(x, 3)));
        await mean(square(output)).backward();
      },
    );
  });

  it.each(['forward', 'backward'])('a layer that throws in %s leaves nothing', async (where) => {
    const device = newDevice();
    let isBad = false;
    const fail = () => {
      if (isBad) {
        throw new Error('bad layer');
      }
    };
    const bad = new Call(device, (x: Tensor) => {
      const output = tanh(x);
      if (where === 'forward') {
        fail();
      } else {
        device.beforeGradientOf(output, fail);
      }
      return output;
    });
    const layers = [...linears(device, 2), bad, linear(device)];
    const model = new OffloadModel(layers, path);
    const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
    const step = () => device.scope(async () => squared(model, rows(device).detach()));
    await step();
    optimizer.zeroGrad();
    const before = device.memory().live;
    isBad = true;
    await expect(step()).rejects.toThrow('bad layer');
    optimizer.zeroGrad();
    expect(device.memory().live).toEqual(before);
    isBad = false;
    await step();
    await optimizer.step();
    expect(device.memory().live).toEqual(before);
    // What the failed backward had read is given back too.
    expect(model.hostMemory()).toMatchObject({ stagingBytes: 0, parkedBytes: 0 });
  });

  it('forwards without a backward (a skipped batch) leave nothing on the host', async () => {
    const device = newDevice();
    const model = new OffloadModel(linears(device, 4), { numSlices: 4, ...path });
    const made: number[] = [];
    for (let i = 0; i < 6; i++) {
      await device.scope(async () => {
        await model.call(rows(device).detach());
        expect(model.hostMemory().parkedBytes).toBeGreaterThan(0);
      });
      await device.synchronize();
      expect(model.hostMemory().parkedBytes).toBe(0);
      made.push(model.hostMemory().numBuffersMade);
    }
    expect(made[5]).toBe(made[1]);
  });

  it('disposed between forward and backward: an error, and nothing is left', async () => {
    const device = newDevice();
    const model = new OffloadModel(linears(device, 4), path);
    await device.scope(async () => {
      const loss = mean(square(await model.call(rows(device).detach())));
      model.dispose();
      await expect(loss.backward()).rejects.toThrow();
    });
    expect(device.memory().live.total).toBe(0);
  });
});

it("a caller's input stays on the device, whichever layer saved it", async () => {
  const device = newDevice();
  const model = new OffloadModel(linears(device, 3), { numSlices: 3 });
  const x = rows(device);
  const before = await x.toArray();
  await device.scope(async () => {
    const loss = mean(square((await model.call(x)) as Tensor));
    expect(x.storage.isFilled).toBe(true);
    expect(await x.toArray()).toEqual(before);
    await loss.backward();
  });
});

it('a backward that fails inside a slice leaves no part of a gradient behind', async () => {
  const run = async (isFailingFirst: boolean) => {
    const device = newDevice();
    let isBad = isFailingFirst;
    const bad = new Call(device, (x: Tensor) => {
      const output = tanh(x);
      device.beforeGradientOf(output, () => {
        if (isBad) {
          throw new Error('bad layer');
        }
      });
      return output;
    });
    // There is one slice: the last layer has its gradient when the middle one throws.
    const layers = new Sequential(device, [linear(device), bad, linear(device)]);
    const model = new OffloadModel(layers, { numSlices: 1 });
    const step = () => device.scope(() => squared(model, rows(device).detach()));
    if (isFailingFirst) {
      await expect(step()).rejects.toThrow('bad layer');
      expect(device.memory().live.gradient).toBe(0);
      isBad = false;
    }
    await step();
    return Promise.all(model.flats.map(({ home }) => home.gradient.read()));
  };
  expect(await run(true)).toEqual(await run(false));
});

it.each(['forward', 'backward'])(
  'a write into a parameter in %s is refused, not lost',
  async (at) => {
    const device = newDevice();
    const inner = linear(device);
    let isWriting = true;
    const write = () => {
      if (isWriting) {
        device.noGrad(() => device.scope(() => device.copyInto(inner.bias!, device.zeros([DIM]))));
      }
    };
    const layer = new Call(
      device,
      async (x: Tensor) => {
        const output = await inner.call(x);
        if (at === 'forward') {
          write();
        } else {
          device.beforeGradientOf(output, write);
        }
        return tanh(output);
      },
      inner,
    );
    const model = new OffloadModel([linear(device), layer, linear(device)]);
    const before = await stateDict(model);
    const step = () => device.scope(() => squared(model, rows(device).detach()));
    await expect(step()).rejects.toThrow(/write into the f32 copy of f32 values in a store/);
    expect(device.memory().live).toMatchObject({ parameter: 0, gradient: 0 });
    isWriting = false;
    await step();
    expect(await stateDict(model)).toEqual(before);
  },
);

it('activations of a call whose graph was dropped at once do not come over those of the next', async () => {
  const gradientsOf = async (isDropping: boolean) => {
    const device = newDevice();
    const model = new OffloadModel(linears(device, 4), { numSlices: 4 });
    const x = rows(device).detach();
    await model.moveToStore();
    const read = device.backend.read.bind(device.backend);
    const late: (() => void)[] = [];
    let isLate = isDropping;
    device.backend.read = async (buffer, byteOffset, byteLength, into) => {
      const bytes = await read(buffer, byteOffset, byteLength, isLate ? undefined : into);
      if (isLate && into !== undefined) {
        await new Promise<void>((resolve) => late.push(resolve));
        into.set(bytes);
      }
      return into ?? bytes;
    };
    if (isDropping) {
      await device.scope(async () => void (await model.call(mul(x, 3))));
      isLate = false;
    }
    await device.scope(async () => {
      const loss = mean(square((await model.call(x)) as Tensor));
      for (const arrive of late) {
        arrive();
      }
      await loss.backward();
    });
    return Promise.all(model.flats.map(({ home }) => home.gradient.read()));
  };
  expect(await gradientsOf(true)).toEqual(await gradientsOf(false));
});

it('evaluation holds a few boundaries at a time, not all of them', async () => {
  const device = newDevice();
  const model = new OffloadModel(linears(device, 8), { numSlices: 8 });
  await device.noGrad(() => device.scope(() => model.call(rows(device))));
  device.ledger.resetPeak();
  await device.noGrad(() => device.scope(() => model.call(rows(device))));
  const boundary = 4 * 4 * DIM;
  // The caller's input, a layer's input, its output, and what it computes in between.
  expect(device.memory().peak.activation).toBeLessThanOrEqual(4 * boundary);
});

it('what the next slice uses stays: each activation goes to the host once', async () => {
  const device = newDevice();
  // Saves its inputs and, because of the product, its result.
  const pair = ([a, b]: [Tensor, Tensor]) => {
    const y = tanh(add(a, b));
    return [y, mul(y, y)];
  };
  const layers = Array.from({ length: 3 }, () => new Call(device, pair));
  const first = new Call(device, (x: Tensor) => [mul(x, 2), mul(x, 3)]);
  const model = new OffloadModel([linear(device), first, ...layers]);
  const read = device.backend.read.bind(device.backend);
  await device.scope(async () => {
    const x = rows(device);
    await model.call(x); // This moves the parameters into the store.
    let numReads = 0;
    device.backend.read = (...args) => {
      numReads += 1;
      return read(...args);
    };
    await model.call(x);
    // Three sums, and two of the three first results of pairs: the last one belongs to the caller.
    expect(numReads).toBe(5);
  });
});
