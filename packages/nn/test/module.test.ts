import {
  Dropout,
  isModule,
  Linear,
  Module,
  ModuleList,
  MultiheadAttention,
  NnConfigError,
  packParameters,
  Sequential,
} from '@shardweave/nn';
import { type Device, mean, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { makeDevice, read } from './support/support.js';

class Net extends Module<[Tensor], Tensor> {
  readonly first: Linear;
  readonly second: Linear;
  readonly scale: Tensor;

  constructor(device: Device) {
    super(device);
    this.first = this.child('first', new Linear(device, { inFeatures: 2, outFeatures: 2 }));
    this.second = this.child('second', new Linear(device, { inFeatures: 2, outFeatures: 2 }));
    this.scale = this.buffer('scale', device.tensor([2]));
  }

  async forward(x: Tensor): Promise<Tensor> {
    return this.second.call(await this.first.call(x));
  }
}

class Wrapper extends Module<[Tensor], Tensor> {
  calls = 0;

  constructor(inner: Module) {
    super(inner.device);
    this.child('module', inner);
  }

  override childPrefix(): string {
    return '';
  }

  forward(x: Tensor): Promise<Tensor> {
    this.calls += 1;
    return this.children().get('module')!.call(x);
  }
}

describe('Module', () => {
  it('names parameters and buffers by path, in order', () => {
    const net = new Net(makeDevice());
    expect(net.namedParameters().map(([name]) => name)).toEqual([
      'first.weight',
      'first.bias',
      'second.weight',
      'second.bias',
    ]);
    expect(net.namedBuffers().map(([name]) => name)).toEqual(['scale']);
    expect(isModule(net)).toBe(true);
    expect(isModule({})).toBe(false);
  });

  it("runs a wrapper put in a child's place, without a trace in the names", async () => {
    const device = makeDevice();
    const net = new Net(device);
    const before = net.namedParameters();
    const wrapper = new Wrapper(net.first);
    net.replaceChild('first', wrapper);
    await net.call(device.zeros([1, 2]));
    expect(wrapper.calls).toBe(1);
    expect(net.namedParameters()).toEqual(before);
  });

  it('switches modes below it', () => {
    const device = makeDevice();
    const drop = new Dropout(device, { p: 0.5 });
    const model = new Sequential(device, [new Sequential(device, [drop])]);
    expect(drop.isTraining).toBe(true);
    model.eval();
    expect(drop.isTraining).toBe(false);
    model.train();
    expect(drop.isTraining).toBe(true);
  });

  it('keeps parameters made inside a scope and frees everything on dispose', async () => {
    const device = makeDevice();
    let net: Net | undefined;
    device.scope(() => {
      net = new Net(device);
    });
    expect(device.ledger.live().parameter).toBe(13 * 4);
    const x = device.zeros([1, 2]);
    const out = await device.noGrad(() => net!.call(x));
    expect(await read(out)).toHaveLength(2);
    net!.dispose();
    expect(device.ledger.live().parameter).toBe(0);
  });

  it('runs hooks around forward, in order, until removed', async () => {
    const device = makeDevice();
    const net = new Net(device);
    const seen: string[] = [];
    const remove = net.aroundForward({
      before: async () => {
        seen.push('before');
      },
      after: (output) => {
        seen.push(`after ${(output as Tensor).shape}`);
      },
    });
    await net.call(device.zeros([3, 2]));
    remove();
    await net.call(device.zeros([3, 2]));
    expect(seen).toEqual(['before', 'after 3,2']);
    net.aroundForward({ before: () => void seen.push('another') });
    remove(); // again, which removes nothing else
    await net.call(device.zeros([3, 2]));
    expect(seen.slice(2)).toEqual(['another']);
  });

  it('puts a wrapper into every property that has the child, whatever its name', () => {
    const device = makeDevice();
    const block = new MultiheadAttention(device, { embedDim: 4, numHeads: 1 });
    const wrapper = new Wrapper(block.cAttn);
    block.replaceChild('c_attn', wrapper);
    expect(block.cAttn as unknown).toBe(wrapper);
    expect(() => block.replaceChild('cAttn', wrapper)).toThrow(RangeError);
  });

  it('has a module that stands in two places once, and frees its gradients with it', async () => {
    const device = makeDevice();
    const shared = new Linear(device, { inFeatures: 2, outFeatures: 2 });
    const model = new Sequential(device, [shared, new Wrapper(shared)]);
    expect(model.namedModules().map(([path]) => path)).toEqual(['', '0', '1']);
    expect(model.namedParameters().map(([path]) => path)).toEqual(['0.weight', '0.bias']);
    await device.scope(async () => mean(await model.call(device.full([1, 2], 1))).backward());
    expect(shared.weight.grad).toBeDefined();
    model.dispose();
    expect(device.ledger.live().total).toBe(0);
  });

  it('gives the arguments before forward, and calls again when its scope has ended', async () => {
    const device = makeDevice();
    const net = new Net(device);
    const x = device.zeros([1, 2]);
    const bytes = () => device.ledger.live().activation;
    const start = bytes();
    const seen: [string, number][] = [];
    const given: unknown[] = [];
    net.aroundForward({
      before: (args) => void given.push(...args),
      after: () => void seen.push(['after', bytes() - start]),
      afterScope: (output) => {
        seen.push([`scope ended, ${(output as Tensor).shape}`, bytes() - start]);
      },
    });
    await device.noGrad(() => net.call(x));
    expect(given).toEqual([x]);
    // The first layer's output is freed with the scope, which leaves two f32.
    expect(seen).toEqual([
      ['after', 16],
      ['scope ended, 1,2', 8],
    ]);
  });

  it('may give forward and later hooks other arguments, and nothing but arguments', async () => {
    const device = makeDevice();
    const net = new Net(device);
    const [x, y] = [device.zeros([1, 2]), device.zeros([4, 2])];
    const given: unknown[] = [];
    net.aroundForward({ before: async () => [y] });
    net.aroundForward({ before: (args) => void given.push(...args) });
    expect((await net.call(x)).shape).toEqual([4, 2]);
    expect(given).toEqual([y]);
    net.aroundForward({ before: (() => 3) as unknown as () => void });
    await expect(net.call(x)).rejects.toThrow('to return an array of arguments or nothing, got 3');
  });
});

describe('to', () => {
  it('casts float parameters and buffers in place, and nothing else', async () => {
    const device = makeDevice();
    const net = new Net(device);
    const weight = net.first.weight;
    const before = await weight.toArray();
    const { parameter } = device.memory().live;
    expect(net.to('f16')).toBe(net);
    expect([...net.parameters(), net.scale].map(({ dtype }) => dtype)).toEqual(
      Array(5).fill('f16'),
    );
    expect(net.first.weight).toBe(weight);
    const rounded = await device.tensor(before, [2, 2], { dtype: 'f16' }).toArray();
    expect(await weight.toArray()).toEqual(rounded);
    // The buffer has a single element, which takes a whole word in either dtype.
    expect(device.memory().live.parameter).toBe((parameter - 4) / 2 + 4);
  });

  it('refuses parameters with gradients, and casts nothing then', async () => {
    const device = makeDevice();
    const net = new Net(device);
    await mean(await net.call(device.full([1, 2], 1))).backward();
    expect(() => net.to('f16')).toThrow(NnConfigError);
    expect(net.parameters().every(({ dtype }) => dtype === 'f32')).toBe(true);
  });

  it('refuses packed parameters, and casts nothing then', () => {
    const net = new Net(makeDevice());
    packParameters(net.second);
    expect(() => net.to('f16')).toThrow("a sharded or packed parameter at 'second.weight'");
    expect(new Set(net.parameters().map(({ dtype }) => dtype))).toEqual(new Set(['f32']));
  });
});

it('a list of modules has them by index, from the end too, and what has taken their place', async () => {
  const device = makeDevice();
  const [first, second] = [new Dropout(device, { p: 0 }), new Dropout(device, { p: 0.5 })];
  const list = new ModuleList(device, [first, second]);
  expect([list.length, [...list]]).toEqual([2, [first, second]]);
  expect([0, 1, -1, -2, 2, -3].map((index) => list.at(index))).toEqual([
    ...[first, second, second, first],
    ...[undefined, undefined],
  ]);
  const wrapper = new Wrapper(second);
  list.replaceChild('1', wrapper);
  expect(list.at(-1)).toBe(wrapper);
  await expect(list.call()).rejects.toThrow('a call of a module in it');
});

it('zeroGrad clears what holds a gradient in the place of its parameter', () => {
  const device = makeDevice();
  const net = new Net(device);
  const cleared: Tensor[] = [];
  for (const parameter of net.parameters()) {
    parameter.gradSink = {
      accept() {},
      final() {},
      clear: (leaves) => void cleared.push(...leaves),
    };
  }
  net.first.zeroGrad();
  expect(cleared).toEqual(net.first.parameters());
  net.zeroGrad();
  expect(cleared.slice(2)).toEqual(net.parameters());
  device.dispose();
});
