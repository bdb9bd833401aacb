import {
  Adam,
  type AdamOptions,
  AdamW,
  OptimizerError,
  Sgd,
  type SgdOptions,
} from '@shardweave/nn';
import { Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { gradientAt, leaves, setGradients } from './support/gradient-leaves.js';
import { expectClose, makeDevice, read, values } from './support/support.js';

const STEPS = 5;

function adam64(
  start: readonly number[],
  leaf: number,
  o: AdamOptions,
  isDecoupled: boolean,
  scale: number,
) {
  let p = [...start];
  const m = p.map(() => 0);
  const v = p.map(() => 0);
  for (let t = 1; t <= STEPS; t++) {
    const gradient = gradientAt(t, leaf, p.length);
    p = p.map((x, i) => {
      const shrunk = isDecoupled ? x * (1 - o.lr * o.weightDecay) : x;
      const g = gradient[i]! * scale + (isDecoupled ? 0 : o.weightDecay * x);
      m[i] = o.betas[0] * m[i]! + (1 - o.betas[0]) * g;
      v[i] = o.betas[1] * v[i]! + (1 - o.betas[1]) * g ** 2;
      const corrected = Math.sqrt(v[i]! / (1 - o.betas[1] ** t));
      return shrunk - (o.lr * (m[i]! / (1 - o.betas[0] ** t))) / (corrected + o.eps);
    });
  }
  return p;
}

function sgd64(start: readonly number[], leaf: number, o: SgdOptions) {
  let p = [...start];
  let buffer: number[] | undefined;
  for (let t = 1; t <= STEPS; t++) {
    const g = gradientAt(t, leaf, p.length).map((x, i) => x + o.weightDecay * p[i]!);
    buffer = buffer?.map((b, i) => o.momentum * b + (1 - o.dampening) * g[i]!) ?? g;
    const used = o.nesterov ? g.map((x, i) => x + o.momentum * buffer![i]!) : buffer;
    p = p.map((x, i) => x - o.lr * (o.momentum === 0 ? g[i]! : used[i]!));
  }
  return p;
}

describe('Adam and AdamW', () => {
  for (const isDecoupled of [true, false]) {
    it(`follow a float64 ${isDecoupled ? 'AdamW' : 'Adam'} over steps, by group`, async () => {
      const device = makeDevice();
      const params = leaves(device);
      const starts = await Promise.all(params.map(read));
      const first = { lr: 0.05, betas: [0.8, 0.95], eps: 1e-3, weightDecay: 0.3 } as const;
      const groups = [
        { params: params.slice(0, 2), weightDecay: 0.3 },
        { params: params.slice(2), lr: 0.2, weightDecay: 0 },
      ];
      const Kind = isDecoupled ? AdamW : Adam;
      const optimizer = new Kind(groups, { ...first, weightDecay: 9 });
      for (let t = 1; t <= STEPS; t++) {
        setGradients(params, t);
        await optimizer.step();
      }
      for (const [i, param] of params.entries()) {
        const options = i < 2 ? first : { ...first, lr: 0.2, weightDecay: 0 };
        expectClose(await read(param), adam64(starts[i]!, i, options, isDecoupled, 1), 1e-6);
      }
    });
  }

  it('multiply gradients by a scale on the device', async () => {
    const device = makeDevice();
    const params = leaves(device);
    const starts = await Promise.all(params.map(read));
    const options = { lr: 0.05, betas: [0.9, 0.999], eps: 1e-2, weightDecay: 0.01 } as const;
    const optimizer = new AdamW(params, options);
    const scales = device.tensor([4, 0.25]);
    const gradScale = new Tensor(scales.storage, [1], 1); // a part of a larger tensor
    for (let t = 1; t <= STEPS; t++) {
      setGradients(params, t);
      await optimizer.step({ gradScale });
    }
    expectClose(await read(params[0]!), adam64(starts[0]!, 0, options, true, 0.25), 1e-6);
    expect(await read(params[0]!)).not.toEqual(adam64(starts[0]!, 0, options, true, 1));
  });

  it('obey a learning rate changed between steps', async () => {
    const device = makeDevice();
    const params = leaves(device);
    const optimizer = new AdamW(params, { lr: 0.1 });
    setGradients(params, 1);
    await optimizer.step();
    const before = await read(params[0]!);
    optimizer.groups[0]!.lr = 0;
    setGradients(params, 2);
    await optimizer.step();
    expect(await read(params[0]!)).toEqual(before);
  });

  it('pass over parameters without a gradient, and make state when it is first needed', async () => {
    const device = makeDevice();
    const params = leaves(device);
    const optimizer = new AdamW(params, { lr: 0.1 });
    expect(device.ledger.live().optimizer).toBe(0);
    setGradients(params.slice(0, 1), 1);
    const second = await read(params[1]!);
    await optimizer.step();
    expect(await read(params[1]!)).toEqual(second);
    expect(device.ledger.live().optimizer).toBe(2 * 6 * 4);
    expect(optimizer.stateOf(params[0]!)!.runs[0]!.step).toBe(1);
    expect(optimizer.stateOf(params[1]!)).toBeUndefined();
    optimizer.zeroGrad();
    expect(device.ledger.live().gradient).toBe(0);
    optimizer.dispose();
    expect(device.ledger.live().optimizer).toBe(0);
  });
});

describe('Sgd', () => {
  const cases: Partial<SgdOptions>[] = [
    {},
    { weightDecay: 0.2 },
    { momentum: 0.9 },
    { momentum: 0.9, dampening: 0.5, weightDecay: 0.1 },
    { momentum: 0.7, nesterov: true },
  ];
  it.each(cases)('follows a float64 SGD over steps with %o', async (change) => {
    const device = makeDevice();
    const params = leaves(device);
    const starts = await Promise.all(params.map(read));
    const options = {
      lr: 0.1,
      momentum: 0,
      dampening: 0,
      weightDecay: 0,
      nesterov: false,
      ...change,
    };
    const optimizer = new Sgd(params, options);
    for (let t = 1; t <= STEPS; t++) {
      setGradients(params, t);
      await optimizer.step();
    }
    for (const [i, param] of params.entries()) {
      expectClose(await read(param), sgd64(starts[i]!, i, options), 1e-6);
    }
    const stateBytes = options.momentum === 0 ? 0 : 10 * 4;
    expect(device.ledger.live().optimizer).toBe(stateBytes);
  });
});

describe('parameter groups', () => {
  it('may not hold a parameter twice, nor integers', () => {
    const device = makeDevice();
    const [first, second] = leaves(device);
    expect(() => new AdamW([first!, second!, first!])).toThrow(OptimizerError);
    expect(() => new Sgd([device.zeros([2], { dtype: 'i32' })])).toThrow(OptimizerError);
  });

  it.each(['f16', 'bf16'] as const)('step %s parameters in f32 and round once', async (dtype) => {
    const device = makeDevice();
    const half = device.tensor(values(6, 3), [6], { dtype, requiresGrad: true });
    const whole = device.tensor(await half.toArray(), [6], { requiresGrad: true });
    const optimizers = [half, whole].map((param) => new AdamW([param], { lr: 0.1 }));
    setGradients([half], 0);
    setGradients([whole], 0);
    for (const optimizer of optimizers) {
      await optimizer.step();
    }
    const rounded = device.tensor(await whole.toArray(), [6], { dtype });
    expect(await half.toArray()).toEqual(await rounded.toArray());
    expect(await half.toArray()).not.toEqual(await whole.toArray());
  });

  it('refuse options that cannot work', () => {
    const device = makeDevice();
    expect(() => new AdamW(leaves(device), { betas: [0.9, 1] })).toThrow('betas');
    expect(() => new Sgd(leaves(device), { nesterov: true })).toThrow('nesterov');
  });
});

describe('sharded pieces', () => {
  it('are stepped where they lie, in one dispatch for one flat', async () => {
    const device = makeDevice();
    const params = leaves(device);
    const starts = await Promise.all(params.map(read));
    const optimizer = new AdamW([
      { params: params.slice(0, 1), weightDecay: 0.5 },
      { params: params.slice(1), weightDecay: 0 },
    ]);
    // This rank's flat holds the last 2 elements of the first parameter, all of the second, none of
    // the third, and 3 elements of padding.
    const flat = device.tensor([...starts[0]!.slice(4), ...starts[1]!, 7, 7, 7], [8], {
      requiresGrad: true,
    });
    const ranges = [
      [0, 2],
      [2, 3],
      [5, 0],
    ] as const;
    params.forEach((param, i) => {
      const [start, length] = ranges[i]!;
      param.piece = { flat, start, length };
    });
    const options = { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0.5 } as const;
    for (let t = 1; t <= STEPS; t++) {
      const parts = [gradientAt(t, 0, 6).slice(4), gradientAt(t, 1, 3), [5, 5, 5]];
      flat.grad = device.tensor(parts.flat(), [8]);
      const before = device.backend.dispatches;
      await optimizer.step();
      if (t > 1) {
        expect(device.backend.dispatches - before).toBe(1);
      }
    }
    const expected = [
      ...adam64(starts[0]!, 0, options, true, 1).slice(4),
      ...adam64(starts[1]!, 1, { ...options, weightDecay: 0 }, true, 1),
      ...[7, 7, 7],
    ];
    expectClose(await read(flat), expected, 1e-6);
    const named = params.map((param, i) => [String(i), param] as const);
    await expect(optimizer.stateDict(named)).rejects.toThrow(OptimizerError);
  });
});

it('momentum that is switched on between steps begins with the gradient of then', async () => {
  const device = makeDevice();
  const param = device.zeros([1], { requiresGrad: true });
  const optimizer = new Sgd([param], { lr: 1 });
  const stepBy = async (gradient: number) => {
    param.grad = device.full([1], gradient);
    await optimizer.step();
    optimizer.zeroGrad();
    return param.item();
  };
  expect(await stepBy(1)).toBe(-1);
  optimizer.groups[0]!.momentum = 0.5;
  expect(await stepBy(2)).toBe(-3);
  expect(await stepBy(4)).toBe(-8); // The step is 0.5 * 2 + 4.
});

it('momentum that is loaded into an optimizer without it is not kept', async () => {
  const device = makeDevice();
  const param = device.zeros([1], { requiresGrad: true });
  const optimizer = new Sgd([param], { lr: 1, dampening: 0.5 });
  const run = { start: 0, length: 1, step: 3, names: ['momentum'] };
  const tensors = new Map([['momentum', new Uint8Array(Float32Array.of(9).buffer)]]);
  await optimizer.writeFlatState(param, { runs: [run], tensors });
  expect(await optimizer.flatStateRuns(param)).toEqual([{ ...run, names: [] }]);
  optimizer.groups[0]!.momentum = 0.5;
  param.grad = device.full([1], 2);
  await optimizer.step();
  expect(await param.item()).toBe(-2); // A first gradient is not dampened.
});

it('refuses parameters that were sharded after its first step, however often it is called', async () => {
  const device = makeDevice();
  const param = device.zeros([4], { requiresGrad: true });
  const optimizer = new AdamW([param]);
  param.grad = device.full([4], 1);
  await optimizer.step();
  param.piece = { flat: device.zeros([2]), start: 0, length: 2 };
  for (const _ of ['the first', 'the second']) {
    await expect(optimizer.step()).rejects.toThrow('sharded before the first step');
  }
});

it('a step says that the values changed, so that copies of before are stale', async () => {
  const device = makeDevice();
  const [stepped, still] = [1, 2].map(() => device.zeros([3], { requiresGrad: true }));
  stepped!.grad = device.full([3], 1);
  const versions = () => [stepped!.storage.version, still!.storage.version];
  const before = versions();
  await new AdamW([stepped!, still!]).step();
  expect(versions()).toEqual([before[0]! + 1, before[1]!]);
});

it('momentum that is switched off and on again goes on from what it was', async () => {
  const device = makeDevice();
  const param = device.zeros([1], { requiresGrad: true });
  const optimizer = new Sgd([param], { lr: 1, momentum: 0.5 });
  const positions: number[] = [];
  for (const [gradient, momentum] of [
    [1, 0.5],
    [2, 0],
    [4, 0.5],
  ] as const) {
    optimizer.groups[0]!.momentum = momentum;
    param.grad = device.full([1], gradient);
    await optimizer.step();
    optimizer.zeroGrad();
    positions.push(await param.item());
  }
  expect(positions).toEqual([-1, -3, -7.5]); // the last step is 0.5 * 1 + 4
});

it('parameters of one group and one count of steps, of which some have momentum, step apart', async () => {
  const device = makeDevice();
  const flat = device.zeros([256], { requiresGrad: true });
  const params = [0, 128].map((start) => {
    const param = device.zeros([128], { requiresGrad: true });
    param.piece = { flat, start, length: 128 };
    return param;
  });
  const optimizer = new Sgd(params, { lr: 1, momentum: 0.5, dampening: 0.5 });
  const run = { length: 128, step: 3 };
  await optimizer.writeFlatState(flat, {
    runs: [
      { ...run, start: 0, names: ['momentum'] },
      { ...run, start: 128, names: [] },
    ],
    tensors: new Map([['momentum', new Uint8Array(new Float32Array(256).fill(8).buffer)]]),
  });
  flat.grad = device.full([256], 2);
  await optimizer.step();
  const moved = await read(flat);
  expect([moved[0], moved[127], moved[128], moved[255]]).toEqual([-5, -5, -2, -2]);
  expect((await optimizer.flatStateRuns(flat)).map(({ step, names }) => [step, names])).toEqual([
    [4, ['momentum']],
  ]);
});

it('a state that is written has zeros for what is not given', async () => {
  const device = makeDevice();
  const param = device.zeros([3], { requiresGrad: true });
  const optimizer = new AdamW([param], { lr: 1 });
  param.grad = device.full([3], 1);
  await optimizer.step();
  const { runs, tensors } = (await optimizer.readFlatState(param))!;
  await optimizer.writeFlatState(param, { runs, tensors: new Map([...tensors].slice(0, 1)) });
  const after = (await optimizer.readFlatState(param))!;
  expect(after.tensors.get('expAvg')).toEqual(tensors.get('expAvg'));
  expect(after.tensors.get('expAvgSq')).toEqual(new Uint8Array(12));
});

it.each(['f32', 'bf16'] as const)(
  'a parameter within a larger storage is stepped there alone, in %s',
  async (dtype) => {
    const device = makeDevice();
    const whole = device.tensor([1, 2, 3, 4, 5, 6, 7, 8], [8], { dtype }).keep();
    const param = new Tensor(whole.storage, [2], 4, true);
    for (const optimizer of [new Sgd([param], { lr: 1 }), new AdamW([param], { lr: 0 })]) {
      param.grad = device.tensor([1, 2], [2], { dtype });
      await optimizer.step();
    }
    expect(await read(whole)).toEqual([1, 2, 3, 4, 4, 4, 7, 8]);
  },
);

it('options of a group that are undefined are the defaults', () => {
  const [first] = leaves(makeDevice());
  const group = { params: [first!], lr: undefined, weightDecay: 0.5 } as object;
  expect(new AdamW([group as { params: Tensor[] }], { lr: 0.25 }).groups).toMatchObject([
    { lr: 0.25, weightDecay: 0.5, eps: 1e-8, betas: [0.9, 0.999] },
  ]);
  expect(new Adam([first!]).groups[0]).toMatchObject({ lr: 1e-3, weightDecay: 0 });
  expect(new AdamW([first!]).groups[0]).toMatchObject({ lr: 1e-3, weightDecay: 0.01 });
});
