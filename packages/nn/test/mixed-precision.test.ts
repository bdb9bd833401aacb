// A packed module computes in 16 bits beside f32 masters.

import { piecesIn } from '@shardweave/checkpoint';
import {
  AdamW,
  BatchNorm1d,
  captureCheckpoint,
  gradNorm,
  Linear,
  loadCheckpoint,
  loadStateDict,
  type Module,
  NnConfigError,
  packParameters,
  Sequential,
  Sgd,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import {
  cast,
  createDryBackend,
  Device,
  mul,
  StateError,
  sum,
  type Tensor,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { makeDevice, read, values } from './support/support.js';

const DTYPES = ['bf16', 'f16'] as const;

const model = (device: Device) =>
  new Sequential<[x: Tensor], Tensor>(device, [
    new Linear(device, { inFeatures: 3, outFeatures: 5 }),
    new Linear(device, { inFeatures: 5, outFeatures: 2 }),
  ]);

const input = (device: Device, seed: number) => device.tensor(values(6, seed), [2, 3]);

async function backward(net: Module<[x: Tensor], Tensor>, seed: number): Promise<void> {
  const { device } = net;
  await device.scope(async () => {
    const out = await net.call(input(device, seed));
    await sum(mul(out, out)).backward();
  });
}

async function evaluate(net: Module<[x: Tensor], Tensor>, seed = 1): Promise<number[]> {
  const { device } = net;
  return device.noGrad(() => device.scope(async () => read(await net.call(input(device, seed)))));
}

async function textOf(net: Module): Promise<Record<string, string>> {
  const state = await stateDict(net);
  return Object.fromEntries(
    [...state].map(([name, { dtype, data }]) => [
      name,
      `${dtype} ${Buffer.from(data).toString('hex')}`,
    ]),
  );
}

/** Halves the values that a parameter has at the moment. */
async function halve(parameter: Tensor): Promise<void> {
  const { device, dtype, shape } = parameter;
  const half = (await read(parameter)).map((value) => value / 2);
  device.noGrad(() =>
    device.scope(() => device.copyInto(parameter, device.tensor(half, shape, { dtype }))),
  );
}

describe.each(DTYPES)('in %s', (computeDType) => {
  it('trains bit for bit as a 16-bit module does whose f32 masters are kept by hand', async () => {
    const byHand = async () => {
      const device = makeDevice();
      const masters = model(device);
      const net = model(device).to(computeDType);
      const optimizer = new AdamW(masters.parameters(), { lr: 0.05 });
      for (let step = 1; step <= 4; step++) {
        await loadStateDict(net, await stateDict(masters));
        for (const seed of [step, step + 50]) {
          await device.scope(async () => {
            const out = await net.call(cast(input(device, seed), computeDType));
            await sum(mul(out, out)).backward();
          });
          masters.parameters().forEach((master, i) => {
            const parameter = net.parameters()[i]!;
            const gradient = device.scope(() => cast(parameter.grad!, 'f32'));
            master.grad = master.grad ?? device.zeros(master.shape).keep();
            device.addInPlace(master.grad, gradient);
            parameter.grad = undefined;
          });
        }
        await optimizer.step();
        optimizer.zeroGrad();
      }
      return textOf(masters);
    };
    const packed = async () => {
      const net = model(makeDevice());
      packParameters(net, { computeDType });
      const optimizer = new AdamW(net.parameters(), { lr: 0.05 });
      for (let step = 1; step <= 4; step++) {
        await backward(net, step);
        await backward(net, step + 50);
        await optimizer.step();
        optimizer.zeroGrad();
      }
      return textOf(net);
    };
    expect(await packed()).toEqual(await byHand());
  });

  it('has gradients, norms and state in f32, and steps with one kernel', async () => {
    const device = makeDevice();
    const net = model(device);
    const { flats } = packParameters(net, { computeDType });
    expect(net.parameters().map(({ dtype }) => dtype)).toEqual(Array(4).fill(computeDType));
    const optimizer = new AdamW(net.parameters());
    await backward(net, 1);
    const [flat] = flats;
    expect([flats.length, flat!.dtype, flat!.grad!.dtype]).toEqual([1, 'f32', 'f32']);
    const gradient = await read(flat!.grad!);
    const norm = Math.hypot(...gradient);
    expect(norm).toBeGreaterThan(0);
    expect((await gradNorm(net)) / norm).toBeCloseTo(1, 5);
    await optimizer.step(); // makes its state
    const before = device.backend.dispatches;
    await optimizer.step();
    expect(device.backend.dispatches - before).toBe(1);
    net.zeroGrad();
    expect(flat!.grad).toBeUndefined();
  });

  it('casts inputs, and hands the gradient of an f32 input back in f32', async () => {
    const device = makeDevice();
    const net = model(device);
    const seen: string[] = [];
    net
      .children()
      .get('0')!
      .aroundForward({
        before: ([x]) => void seen.push((x as Tensor).dtype),
      });
    packParameters(net, { computeDType });
    const x = input(device, 1);
    x.requiresGrad = true;
    await device.scope(async () => sum(await net.call(x)).backward());
    expect(seen).toEqual([computeDType]);
    expect(x.grad!.dtype).toBe('f32');
    expect(Math.hypot(...(await read(x.grad!)))).toBeGreaterThan(0);
  });
});

/** Has two layers, of which its forward uses the first. */
class Half extends Sequential<[x: Tensor], Tensor> {
  override forward(x: Tensor): Promise<Tensor> {
    return this.layers()[0]!.call(x);
  }
}

describe.each(['f32', ...DTYPES] as const)(
  'a gradient that was assigned to a flat, in %s',
  (computeDType) => {
    const assigned = () => {
      const device = makeDevice();
      const net = new Half(device, [model(device), model(device)]);
      const [flat] = packParameters(net, { computeDType }).flats;
      flat!.grad = device.full([flat!.size], 2).keep();
      const [used, unused] = net.layers().map((layer) => layer.parameters()[0]!);
      return { net, flat: flat!, used: used!, unused: unused! };
    };
    const movedBy = async ({ net, flat }: ReturnType<typeof assigned>, leaf: Tensor) => {
      const at = leaf.piece!.start;
      const before = (await read(flat))[at]!;
      await new Sgd(net.parameters(), { lr: 1 }).step();
      return (await read(flat))[at]! - before;
    };

    it('still steps what a backward does not reach', async () => {
      const made = assigned();
      await backward(made.net, 1);
      expect(await movedBy(made, made.unused)).toBeCloseTo(-2, 5);
    });

    it('stays for others where one parameter is cleared', async () => {
      const made = assigned();
      made.used.grad = undefined;
      expect(await movedBy(made, made.unused)).toBeCloseTo(-2, 5);
      expect(await movedBy(made, made.used)).toBe(0);
    });
  },
);

describe('the copies', () => {
  const packed = () => {
    const device = makeDevice();
    const net = model(device);
    const owner = packParameters(net, { computeDType: 'bf16' });
    return { device, net, owner, parameter: net.parameters()[0]! };
  };

  it('are made again after a step or a load alone', async () => {
    const { device, net } = packed();
    const optimizer = new Sgd(net.parameters(), { lr: 0.5 });
    const kernels = async () => {
      const before = device.backend.dispatches;
      const output = await evaluate(net);
      return { output, count: device.backend.dispatches - before };
    };
    const [first, again] = [await kernels(), await kernels()];
    expect(again).toEqual({ output: first.output, count: first.count - 1 });
    const state = await stateDict(net);
    await backward(net, 1);
    await optimizer.step();
    const stepped = await kernels();
    expect(stepped.count).toBe(first.count);
    expect(stepped.output).not.toEqual(first.output);
    await loadStateDict(net, state);
    expect(await kernels()).toEqual(first);
  });

  it('are on the device from the call to the end of backward', async () => {
    const { device, net, owner, parameter } = packed();
    const bytes = owner.flats[0]!.size * 4;
    const live = () => device.ledger.live().parameter;
    expect(live()).toBe(bytes);
    await expect(parameter.toArray()).rejects.toThrow(/packed module is called/);
    await device.scope(async () => {
      const loss = sum(await net.call(input(device, 1)));
      expect(live()).toBe(bytes * 1.5);
      await loss.backward();
      expect(live()).toBe(bytes);
    });
  });

  it('are there again for a second backward', async () => {
    const { device, net } = packed();
    await device.scope(async () => {
      const losses = [sum(await net.call(input(device, 1))), sum(await net.call(input(device, 2)))];
      for (const loss of losses) {
        await loss.backward();
      }
    });
    const together = await read(net.parameters()[0]!.piece!.flat.grad!);
    const apart = packed();
    for (const seed of [1, 2]) {
      await apart.device.scope(async () =>
        sum(await apart.net.call(input(apart.device, seed))).backward(),
      );
    }
    expect(together).toEqual(await read(apart.parameter.piece!.flat.grad!));
  });

  it('refuse a write that the next use would lose', async () => {
    const { device, net } = packed();
    const [, , weight, bias] = net.parameters();
    await evaluate(net);
    await halve(weight!);
    await expect(evaluate(net)).rejects.toThrow(StateError);
    await evaluate(net); // the write is gone
    await device.scope(async () => {
      const loss = sum(await net.call(input(device, 1)));
      await halve(bias!); // which no node has saved
      await expect(loss.backward()).rejects.toThrow('would be lost. Load a state dict instead.');
    });
  });

  it('refuse a write during backward, such as that of a step of the program', async () => {
    const { device, net } = packed();
    const [, , , bias] = net.parameters();
    device.autograd.onGradientFinal(bias!, () => {
      device.backend.run('fill', { out: bias!.view(), value: 0 });
      bias!.storage.markWritten();
    });
    await expect(backward(net, 1)).rejects.toThrow('would be lost. Load a state dict instead.');
  });

  it('are outdated by a load where a graph has saved them', async () => {
    const { device, net } = packed();
    const state = await stateDict(net);
    await device.scope(async () => {
      const loss = sum(await net.call(input(device, 1)));
      await loadStateDict(net, state);
      await expect(loss.backward()).rejects.toThrow('loadStateDict');
    });
    const store = piecesIn(createHostStore());
    await saveCheckpoint(net, store);
    await device.scope(async () => {
      const loss = sum(await net.call(input(device, 1)));
      await loadCheckpoint(net, store);
      await expect(loss.backward()).rejects.toThrow('loadCheckpoint');
    });
  });

  it('are no longer made when the pack is disposed', async () => {
    const { device, net, owner } = packed();
    await backward(net, 1);
    const seen: string[] = [];
    net.aroundForward({ before: ([x]) => void seen.push((x as Tensor).dtype) });
    net.dispose();
    owner.dispose();
    expect(device.ledger.live().total).toBe(0);
    await expect(evaluate(net)).rejects.toThrow('freed');
    expect(seen).toEqual(['f32']); // inputs are not cast, either
  });

  it('are freed by a backward that fails, and no part of a gradient stays', async () => {
    const { device, net, owner } = packed();
    const x = input(device, 1);
    x.requiresGrad = true;
    await device.scope(async () => {
      const loss = sum(await net.call(x));
      device.beforeGradientOf(loss, () => undefined);
      x.gradSink = {
        accept: () => {
          throw new RangeError('no room');
        },
        final: () => {},
      };
      await expect(loss.backward()).rejects.toThrow('no room');
    });
    expect(owner.flats[0]!.grad).toBeUndefined();
    expect(device.ledger.live().gradient).toBe(0);
    expect(device.ledger.live().parameter).toBe(owner.flats[0]!.size * 4);
  });
});

describe('state', () => {
  it('is that of the masters, whose bits a 16-bit copy would lose', async () => {
    const net = model(makeDevice());
    const before = await textOf(net);
    packParameters(net, { computeDType: 'bf16' });
    expect(await textOf(net)).toEqual(before);
    await evaluate(net);
    expect(await textOf(net)).toEqual(before);
  });

  it('has float buffers in f32, which are computed with in 16 bits', async () => {
    const device = makeDevice();
    const net = new Sequential<[x: Tensor], Tensor>(device, [
      new Linear(device, { inFeatures: 3, outFeatures: 2 }),
      new BatchNorm1d(device, { numFeatures: 2 }),
    ]);
    packParameters(net, { computeDType: 'bf16' });
    await backward(net, 1);
    const floats = net.namedBuffers().filter(([, { dtype }]) => dtype === 'bf16');
    expect(floats.map(([name]) => name)).toEqual(['1.running_mean', '1.running_var']);
    const state = await stateDict(net);
    for (const [name, buffer] of floats) {
      const { dtype, data } = state.get(name)!;
      expect(dtype).toBe('f32');
      expect([...new Float32Array(data.slice().buffer)]).toEqual(await read(buffer));
    }
    const before = await textOf(net);
    await loadStateDict(net, state);
    expect(await textOf(net)).toEqual(before);
  });

  it('goes on bit for bit from a save, one that was captured too', async () => {
    const begun = () => {
      const net = model(makeDevice());
      packParameters(net, { computeDType: 'f16' });
      return { net, optimizer: new AdamW(net.parameters(), { lr: 0.05 }) };
    };
    const train = async ({ net, optimizer }: ReturnType<typeof begun>, steps: number[]) => {
      for (const step of steps) {
        await backward(net, step);
        await optimizer.step();
        optimizer.zeroGrad();
      }
      return textOf(net);
    };
    const whole = begun();
    await train(whole, [1, 2]);
    const store = piecesIn(createHostStore());
    await saveCheckpoint(whole.net, store, { optimizer: whole.optimizer });
    const captured = await captureCheckpoint(whole.net, { optimizer: whole.optimizer });
    await captured.release();
    const expected = await train(whole, [3]);
    const resumed = begun();
    await train(resumed, [7]);
    await loadCheckpoint(resumed.net, store, { optimizer: resumed.optimizer });
    expect(await train(resumed, [3])).toEqual(expected);
    const plain = model(makeDevice());
    await loadCheckpoint(plain, store);
    expect((await stateDict(plain)).get('0.weight')!.dtype).toBe('f32');
  });
});

describe('frozen parameters', () => {
  it('have copies where they are f32, and stay as they are in 16 bits', async () => {
    const device = makeDevice();
    const net = model(device);
    const [weight, bias] = net.parameters();
    for (const parameter of [weight!, bias!]) {
      parameter.requiresGrad = false;
    }
    const before = await read(weight!);
    const { flats } = packParameters(net, { computeDType: 'bf16' });
    expect(flats.map((flat) => flat.size)).toEqual([2 * 128, 2 * 128]);
    const optimizer = new AdamW(net.parameters(), { lr: 0.05 });
    await backward(net, 1);
    expect(flats.map(({ grad }) => grad !== undefined)).toEqual([true, false]);
    await optimizer.step();
    expect(new Float32Array((await stateDict(net)).get('0.weight')!.data.slice().buffer)).toEqual(
      Float32Array.from(before),
    );
    optimizer.zeroGrad();
    weight!.requiresGrad = true; // it is trained from now on
    await backward(net, 2);
    await optimizer.step();
    expect(
      new Float32Array((await stateDict(net)).get('0.weight')!.data.slice().buffer),
    ).not.toEqual(Float32Array.from(before));

    const half = model(makeDevice());
    const base = half.children().get('0')!.to('bf16');
    for (const parameter of base.parameters()) {
      parameter.requiresGrad = false;
    }
    expect(packParameters(half, { computeDType: 'bf16' }).flats.length).toBe(1);
    expect(base.parameters().map(({ piece }) => piece)).toEqual([undefined, undefined]);
    await backward(half, 1);
  });

  it('refuses trained parameters without masters', () => {
    const net = model(makeDevice()).to('bf16');
    expect(() => packParameters(net, { computeDType: 'bf16' })).toThrow(NnConfigError);
    expect(() => packParameters(net, { computeDType: 'f64' as 'f32' })).toThrow('computeDType');
  });
});

describe('memory', () => {
  const SIZE = 2 ** 23; // elements of a weight, which fill a flat
  const large = () => {
    const device = new Device(createDryBackend(createReferenceBackend()));
    const layer = (inFeatures: number, outFeatures: number) =>
      new Linear(device, { inFeatures, outFeatures, bias: false });
    const net = new Sequential<[x: Tensor], Tensor>(device, [
      layer(2048, 4096),
      layer(4096, 2048),
      layer(2048, 4096),
    ]);
    const { flats } = packParameters(net, { computeDType: 'bf16' });
    return { device, net, flats };
  };

  it('has a flat for each 8 Mi elements', () => {
    expect(large().flats.map(({ size }) => size)).toEqual([SIZE, SIZE, SIZE]);
  });

  it('has several smaller parameters in a flat', () => {
    const device = new Device(createDryBackend(createReferenceBackend()));
    const layers = Array.from(
      { length: 5 },
      () => new Linear(device, { inFeatures: 2048, outFeatures: 2048, bias: false }),
    );
    const { flats } = packParameters(new Sequential(device, layers), { computeDType: 'bf16' });
    expect(flats.map(({ size }) => size)).toEqual([SIZE, SIZE, SIZE / 2]);
  });

  it('holds of gradients no more than f32 ones and the 16-bit sum of a flat', async () => {
    const { device, net } = large();
    for (const _ of [1, 2]) {
      device.ledger.resetPeak();
      await device.scope(async () => sum(await net.call(device.zeros([1, 2048]))).backward());
      expect(device.ledger.peak().gradient).toBe(4 * 3 * SIZE + 2 * SIZE);
      expect(device.ledger.peak().parameter).toBe((4 + 2) * 3 * SIZE);
    }
    expect(device.ledger.live().gradient).toBe(4 * 3 * SIZE);
    expect(device.ledger.live().parameter).toBe(4 * 3 * SIZE);
  });
});
