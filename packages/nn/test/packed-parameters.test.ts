// Parameters are packed into one flat for the optimizer.

import { Adam, AdamW, Dropout, Linear, packParameters, Sequential } from '@shardweave/nn';
import { type Device, mul, sum } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { makeDevice, read, values } from './support/support.js';

const STEPS = 5;

describe('packed parameters', () => {
  const model = (device: Device) =>
    new Sequential(device, [
      new Linear(device, { inFeatures: 3, outFeatures: 5 }),
      new Linear(device, { inFeatures: 5, outFeatures: 2 }),
    ]);
  const groupsOf = (net: Sequential) => [
    { params: net.parameters().filter((p) => p.rank > 1), weightDecay: 0.1 },
    { params: net.parameters().filter((p) => p.rank < 2), weightDecay: 0 },
  ];
  const backward = async (net: Sequential, step: number) => {
    const { device } = net;
    await device.scope(async () => {
      const out = await net.call(device.tensor(values(6, step), [2, 3]));
      await sum(mul(out, out)).backward();
    });
  };

  it('lose a gradient that was set on one of them, with their own', async () => {
    const net = model(makeDevice());
    const { flats } = packParameters(net);
    const [weight] = net.parameters();
    await backward(net, 1);
    weight!.grad = net.device.full(weight!.shape, 1).keep();
    new AdamW(groupsOf(net), { lr: 0.05 }).zeroGrad();
    expect([weight!.grad, flats[0]!.grad]).toEqual([undefined, undefined]);
  });

  it('train bit for bit as plain ones, with one dispatch a step', async () => {
    const train = async (isPacked: boolean) => {
      const device = makeDevice();
      const net = model(device);
      const packed = isPacked ? packParameters(net) : undefined;
      const optimizer = new AdamW(groupsOf(net), { lr: 0.05 });
      let dispatches = 0;
      for (let step = 1; step <= STEPS; step++) {
        optimizer.zeroGrad();
        await backward(net, step);
        await backward(net, step + 50);
        const before = device.backend.dispatches;
        await optimizer.step();
        dispatches = device.backend.dispatches - before;
      }
      const result = await Promise.all(net.parameters().map(read));
      net.dispose();
      packed?.dispose();
      optimizer.dispose();
      expect(device.ledger.live().total).toBe(0);
      return { result, dispatches };
    };
    const [plain, packed] = [await train(false), await train(true)];
    expect(packed.result).toEqual(plain.result);
    expect([plain.dispatches, packed.dispatches]).toEqual([4, 1]);
  });

  it('keep values and start at multiples of 128 elements', async () => {
    const device = makeDevice();
    const net = model(device);
    const before = await Promise.all(net.parameters().map(read));
    const flat = packParameters(net).flats[0]!;
    expect(await Promise.all(net.parameters().map(read))).toEqual(before);
    expect(net.parameters().map(({ offset }) => offset)).toEqual([0, 128, 256, 384]);
    expect(device.ledger.live().parameter).toBe(flat.size * 4);
    expect(() => packParameters(net)).toThrow('packed already');
  });

  it('take over the state of parameters that have stepped unequally often', async () => {
    const train = async (isPacked: boolean) => {
      const net = model(makeDevice());
      const optimizer = new AdamW(net.parameters(), { lr: 0.05 });
      const step = async (number: number) => {
        await backward(net, number);
        await optimizer.step();
        optimizer.zeroGrad();
      };
      const [first] = net.parameters();
      first!.requiresGrad = false;
      await step(1);
      first!.requiresGrad = true;
      await step(2);
      if (isPacked) {
        packParameters(net);
      }
      await step(3);
      return Promise.all(net.parameters().map(read));
    };
    expect(await train(true)).toEqual(await train(false));
  });

  it('leave out what is frozen, which stays a tensor of its own', async () => {
    const device = makeDevice();
    const net = model(device);
    const [frozen, ...trained] = net.parameters();
    frozen!.requiresGrad = false;
    const before = await read(frozen!);
    const flat = packParameters(net).flats[0]!;
    expect(frozen!.piece).toBeUndefined();
    expect(trained.map(({ piece }) => piece?.flat)).toEqual(trained.map(() => flat));
    const optimizer = new AdamW(net.parameters(), { lr: 0.05 });
    await backward(net, 1);
    await optimizer.step();
    expect(await read(frozen!)).toEqual(before);
  });

  it('have the state dict of plain ones, and load it, each parameter its own part', async () => {
    const train = async (isPacked: boolean) => {
      const net = model(makeDevice());
      if (isPacked) {
        packParameters(net);
      }
      const optimizer = new Adam(groupsOf(net), { lr: 0.05 });
      for (let step = 1; step <= 2; step++) {
        await backward(net, step);
        await optimizer.step();
        optimizer.zeroGrad();
      }
      return { net, optimizer, dict: await optimizer.stateDict(net.namedParameters()) };
    };
    const [plain, packed] = [await train(false), await train(true)];
    expect(packed.dict).toEqual(plain.dict);
    packed.optimizer.dispose();
    await packed.optimizer.loadStateDict(plain.dict, packed.net.namedParameters());
    for (const { net, optimizer } of [plain, packed]) {
      await backward(net, 3);
      await optimizer.step();
    }
    const valuesOf = ({ net }: typeof plain) => Promise.all(net.parameters().map(read));
    expect(await valuesOf(packed)).toEqual(await valuesOf(plain));
  });

  it('take over the state of an optimizer that has stepped', async () => {
    const train = async (packAfter: number) => {
      const net = model(makeDevice());
      const optimizer = new Adam(groupsOf(net), { lr: 0.05 });
      for (let step = 1; step <= STEPS; step++) {
        if (step === packAfter) {
          packParameters(net);
        }
        await backward(net, step);
        await optimizer.step();
        optimizer.zeroGrad();
      }
      return Promise.all(net.parameters().map(read));
    };
    expect(await train(3)).toEqual(await train(0));
  });

  it('AdamW leaves what a used flat has without a gradient, frozen or not', async () => {
    const train = async (isPacked: boolean) => {
      const net = model(makeDevice());
      if (isPacked) {
        packParameters(net);
      }
      const [first, second] = net.layers() as [Linear, Linear];
      second.bias!.requiresGrad = false;
      const optimizer = new AdamW(net.parameters(), { lr: 0.1, weightDecay: 0.5 });
      const { device } = net;
      await device.scope(async () => {
        const out = await first.call(device.tensor(values(6), [2, 3]));
        await sum(mul(out, out)).backward();
      });
      await optimizer.step();
      expect(optimizer.stateOf(first.weight.piece?.flat ?? first.weight)!.runs).toHaveLength(1);
      await optimizer.step(); // This steps again with the same gradients.
      return Promise.all(net.parameters().map(read));
    };
    expect(await train(true)).toEqual(await train(false));
  });
});

it('a gradient of some parameters has zeros for the others, whatever memory had before', async () => {
  for (const computeDType of ['f32', 'bf16'] as const) {
    const device = makeDevice();
    const layers = [1, 2].map(
      () => new Linear(device, { inFeatures: 128, outFeatures: 1, bias: false }),
    );
    const net = new Sequential(device, layers);
    const flat = packParameters(net, { computeDType }).flats[0]!;
    for (const dtype of ['f32', computeDType] as const) {
      const dirty = device.storage(flat.size, dtype, 'gradient');
      dirty.fill();
      device.backend.run('fill', { out: dirty.view(), value: 7 });
      dirty.release();
    }
    net.aroundForward({ before: ([x]) => [x] });
    await device.scope(async () => {
      net.replaceChild('1', new Dropout(device, { p: 0 }));
      await sum(await net.call(device.full([1, 128], 1))).backward();
    });
    expect(await read(flat.grad!)).toEqual([...Array(128).fill(1), ...Array(128).fill(0)]);
  }
});

it('refuses parameters whose gradients somebody else takes', () => {
  const layer = new Linear(makeDevice(), { inFeatures: 2, outFeatures: 1 });
  layer.weight.gradSink = { accept() {}, final() {} };
  expect(() => packParameters(layer)).toThrow("'weight' is sharded or packed already");
});

it('state of plain parameters is freed when they are packed', async () => {
  const device = makeDevice();
  const layer = new Linear(device, { inFeatures: 2, outFeatures: 1 });
  const optimizer = new AdamW(layer.parameters());
  const step = async () => {
    await device.scope(async () => sum(await layer.call(device.full([1, 2], 1))).backward());
    await optimizer.step();
    optimizer.zeroGrad();
  };
  await step();
  const flat = packParameters(layer).flats[0]!;
  await step();
  expect(device.ledger.live().optimizer).toBe(2 * 4 * flat.size);
});
