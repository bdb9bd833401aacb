import {
  AddLayerNorm,
  AddRmsNorm,
  Conv1D,
  Dropout,
  Embedding,
  Gelu,
  LayerNorm,
  Linear,
  Module,
  MultiheadAttention,
  NnConfigError,
  ParameterInit,
  RmsNorm,
  Sequential,
} from '@shardweave/nn';
import { add, type Device, mul, sum, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { expectClose, expectGradients, makeDevice, read, values } from './support/support.js';

describe('Linear and Conv1D', () => {
  it('multiply by weights in their own order and add the bias', async () => {
    const device = makeDevice();
    const x = device.tensor(values(6), [2, 3]);
    const linear = new Linear(device, { inFeatures: 3, outFeatures: 4 });
    const conv = new Conv1D(device, { inFeatures: 3, outFeatures: 4, std: 1 });
    expect(linear.weight.shape).toEqual([4, 3]);
    expect(conv.weight.shape).toEqual([3, 4]);
    const [xs, w, b, v] = await Promise.all(
      [x, linear.weight, linear.bias!, conv.weight].map(read),
    );
    const at = (weight: (i: number, o: number) => number, bias: (o: number) => number) =>
      [0, 1].flatMap((row) =>
        [0, 1, 2, 3].map((o) =>
          [0, 1, 2].reduce((total, i) => total + xs![row * 3 + i]! * weight(i, o), bias(o)),
        ),
      );
    expectClose(
      await read(await linear.call(x)),
      at(
        (i, o) => w![o * 3 + i]!,
        (o) => b![o]!,
      ),
      1e-6,
    );
    expectClose(
      await read(await conv.call(x)),
      at(
        (i, o) => v![i * 4 + o]!,
        () => 0,
      ),
      1e-6,
    );
  });

  it('give gradients to input, weight and bias, in three dimensions and without a bias', async () => {
    const device = makeDevice();
    const x = device.tensor(values(12), [2, 2, 3], { requiresGrad: true });
    const weights = device.tensor(values(20, 7), [2, 2, 5]);
    const layers = [
      new Linear(device, { inFeatures: 3, outFeatures: 5 }),
      new Linear(device, { inFeatures: 3, outFeatures: 5, bias: false }),
      new Conv1D(device, { inFeatures: 3, outFeatures: 5, std: 0.5 }),
    ];
    expect(layers.map((layer) => layer.parameters().length)).toEqual([2, 1, 2]);
    for (const layer of layers) {
      x.grad = undefined;
      await expectGradients([x, ...layer.parameters()], async () =>
        sum(mul(await (layer as Module).call(x), weights)),
      );
    }
  });
});

describe('Embedding', () => {
  it('looks rows up and adds the gradients of repeated ids', async () => {
    const device = makeDevice();
    const table = new Embedding(device, { numEmbeddings: 4, embeddingDim: 2 });
    const ids = device.tensor(Int32Array.of(3, 1, 3), [1, 3]);
    const out = await table.call(ids);
    expect(out.shape).toEqual([1, 3, 2]);
    const rows = await read(table.weight);
    expect(await read(out)).toEqual([3, 1, 3].flatMap((id) => rows.slice(id * 2, id * 2 + 2)));
    await sum(out).backward();
    expect(await read(table.weight.grad!)).toEqual([0, 0, 1, 1, 0, 0, 2, 2]);
  });
});

describe('LayerNorm', () => {
  it('normalizes rows, scales and shifts, with gradients', async () => {
    const device = makeDevice();
    const norm = new LayerNorm(device, { normalizedShape: 5, eps: 1e-3 });
    norm.weight.storage.write(new Uint8Array(Float32Array.from(values(5, 2)).buffer));
    norm.bias.storage.write(new Uint8Array(Float32Array.from(values(5, 3)).buffer));
    const x = device.tensor(values(15), [3, 5], { requiresGrad: true });
    const [xs, w, b] = await Promise.all([x, norm.weight, norm.bias].map(read));
    const expected = [0, 1, 2].flatMap((row) => {
      const cells = xs!.slice(row * 5, row * 5 + 5);
      const mean = cells.reduce((a, c) => a + c) / 5;
      const variance = cells.reduce((a, c) => a + (c - mean) ** 2, 0) / 5;
      return cells.map((c, i) => ((c - mean) / Math.sqrt(variance + 1e-3)) * w![i]! + b![i]!);
    });
    expectClose(await read(await norm.call(x)), expected, 1e-6);
    const weights = device.tensor(values(15, 4), [3, 5]);
    await expectGradients([x, norm.weight, norm.bias], async () =>
      sum(mul(await norm.call(x), weights)),
    );
  });
});

describe('RmsNorm', () => {
  it.each([
    { isOffset: false, factor: 'weight' },
    { isOffset: true, factor: '1 + weight' },
  ])('divides rows by their root mean square, times $factor', async ({ isOffset }) => {
    const device = makeDevice();
    const norm = new RmsNorm(device, { normalizedShape: 5, eps: 1e-3, isOffset });
    expect(await read(norm.weight)).toEqual(new Array(5).fill(isOffset ? 0 : 1));
    norm.weight.storage.write(new Uint8Array(Float32Array.from(values(5, 2)).buffer));
    const x = device.tensor(values(15), [3, 5], { requiresGrad: true });
    const [xs, w] = await Promise.all([x, norm.weight].map(read));
    const expected = [0, 1, 2].flatMap((row) => {
      const cells = xs!.slice(row * 5, row * 5 + 5);
      const meanSquare = cells.reduce((a, c) => a + c ** 2, 0) / 5;
      const scale = (i: number) => w![i]! + (isOffset ? 1 : 0);
      return cells.map((c, i) => (c / Math.sqrt(meanSquare + 1e-3)) * scale(i));
    });
    expectClose(await read(await norm.call(x)), expected, 1e-6);
    const weights = device.tensor(values(15, 4), [3, 5]);
    await expectGradients([x, norm.weight], async () => sum(mul(await norm.call(x), weights)));
    norm.resetOwnParameters(new ParameterInit(device, { seed: 1 }));
    expect(await read(norm.weight)).toEqual(new Array(5).fill(isOffset ? 0 : 1));
  });
});

describe('Gelu', () => {
  it('has an exact form and the approximation of GPT-2', async () => {
    const device = makeDevice();
    const x = device.tensor([-2, -0.5, 0, 1, 3]);
    // These values of Phi(x) have seven digits and come from tables of the normal distribution.
    const cumulative = [0.0227501, 0.3085375, 0.5, 0.8413447, 0.9986501];
    const exact = [-2, -0.5, 0, 1, 3].map((v, i) => v * cumulative[i]!);
    expectClose(await read(await new Gelu(device).call(x)), exact, 1e-6);
    const approximate = await read(await new Gelu(device, { approximate: 'tanh' }).call(x));
    const tanh = [-2, -0.5, 0, 1, 3].map(
      (v) => 0.5 * v * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (v + 0.044715 * v ** 3))),
    );
    expectClose(approximate, tanh, 1e-6);
    expect(approximate).not.toEqual(await read(await new Gelu(device).call(x)));
  });
});

describe('Dropout', () => {
  it('drops and rescales while training and passes through in eval', async () => {
    const device = makeDevice({ seed: 9 });
    const drop = new Dropout(device, { p: 0.25 });
    const x = device.full([40, 50], 3, { requiresGrad: true });
    const out = await drop.call(x);
    const kept = (await read(out)).filter((v) => v !== 0);
    expectClose(
      kept,
      kept.map(() => 4),
      1e-6,
    );
    expect(kept.length / 2000).toBeGreaterThan(0.7);
    expect(kept.length / 2000).toBeLessThan(0.8);
    await sum(out).backward();
    const gradient = await read(x.grad!);
    expectClose(
      gradient,
      (await read(out)).map((v) => v / 3),
      1e-6,
    );
    expect(await drop.eval().call(x)).toBe(x);
  });

  it('refuses a probability of 1', () => {
    expect(() => new Dropout(makeDevice(), { p: 1 })).toThrow(NnConfigError);
  });
});

describe('MultiheadAttention', () => {
  it('equals the plain computation head by head', async () => {
    const device = makeDevice();
    const attention = new MultiheadAttention(device, { embedDim: 4, numHeads: 2, std: 0.8 });
    const x = device.tensor(values(12), [1, 3, 4]);
    const [xs, wa, wp] = await Promise.all(
      [x, attention.cAttn.weight, attention.cProj.weight].map(read),
    );
    const qkv = product(xs!, wa!, 3, 4, 12);
    const mixed = new Array<number>(12).fill(0);
    for (const head of [0, 1]) {
      for (let t = 0; t < 3; t++) {
        const scores = Array.from({ length: t + 1 }, (_, s) =>
          [0, 1].reduce(
            (a, d) => a + qkv[t * 12 + head * 2 + d]! * qkv[s * 12 + 4 + head * 2 + d]!,
            0,
          ),
        ).map((score) => Math.exp(score / Math.sqrt(2)));
        const total = scores.reduce((a, b) => a + b);
        scores.forEach((score, s) => {
          for (const d of [0, 1]) {
            mixed[t * 4 + head * 2 + d]! += (score / total) * qkv[s * 12 + 8 + head * 2 + d]!;
          }
        });
      }
    }
    expectClose(await read(await attention.call(x)), product(mixed, wp!, 3, 4, 4), 1e-6);
  });

  it('gives gradients to the input and both projections', async () => {
    const device = makeDevice();
    const attention = new MultiheadAttention(device, { embedDim: 4, numHeads: 2, std: 0.8 });
    const x = device.tensor(values(12), [1, 3, 4], { requiresGrad: true });
    const weights = device.tensor(values(12, 8), [1, 3, 4]);
    await expectGradients([x, ...attention.parameters()], async () =>
      sum(mul(await attention.call(x), weights)),
    );
  });

  it('drops attention weights and results only while training', async () => {
    const device = makeDevice();
    const attention = new MultiheadAttention(device, {
      embedDim: 4,
      numHeads: 2,
      std: 0.8,
      dropout: 0.5,
      residDropout: 0.5,
    });
    const x = device.tensor(values(24), [2, 3, 4]);
    const run = async () => {
      device.random.begin({ step: 1, rowOffset: 0 });
      return read(await attention.call(x));
    };
    const dropped = await run();
    expect(dropped.filter((v) => v === 0).length).toBeGreaterThan(4);
    expect(await run()).toEqual(dropped);
    attention.eval();
    const whole = await run();
    expect(whole.filter((v) => v === 0)).toEqual([]);
    device.random.begin({ step: 2, rowOffset: 0 });
    expect(await read(await attention.call(x))).toEqual(whole);
  });

  it('refuses an odd head width', () => {
    const make = () => new MultiheadAttention(makeDevice(), { embedDim: 6, numHeads: 2 });
    expect(make).toThrow('numHeads times an even number');
  });
});

describe('Sequential', () => {
  it('runs its layers in order under numbered names', async () => {
    const device = makeDevice();
    const model = new Sequential(device, [
      new Linear(device, { inFeatures: 2, outFeatures: 3 }),
      new Gelu(device),
      new Linear(device, { inFeatures: 3, outFeatures: 1, bias: false }),
    ]);
    expect(model.namedParameters().map(([name]) => name)).toEqual([
      '0.weight',
      '0.bias',
      '2.weight',
    ]);
    const x = device.tensor(values(4), [2, 2]);
    const [first, act, last] = model.layers();
    const byHand = await last!.call(await act!.call(await first!.call(x)));
    expect(await read(await model.call(x))).toEqual(await read(byHand));
  });

  it('gives all arguments to the first layer and runs what replaced a layer', async () => {
    const device = makeDevice();
    const model = new Sequential<[Tensor, Tensor]>(device, [new Sum(device), new Gelu(device)]);
    model.replaceChild('1', new Double(device));
    const [a, b] = [device.tensor([1, 2]), device.tensor([10, 20])];
    expect(await read(await model.call(a, b))).toEqual([22, 44]);
    expect(() => model.replaceChild('2', new Double(device))).toThrow(RangeError);
  });

  it('hands its arguments to the layers that a subclass says', async () => {
    class Ending extends Sequential<[Tensor, Tensor]> {
      override argumentsOf(index: number, previous: unknown, [x, last]: [Tensor, Tensor]) {
        return index === 0 ? [x] : index === 2 ? [previous, last] : [previous];
      }
    }
    const device = makeDevice();
    const model = new Ending(device, [new Double(device), new Double(device), new Sum(device)]);
    const [x, last] = [device.tensor([1, 2]), device.tensor([10, 20])];
    expect(await read(await model.call(x, last))).toEqual([14, 28]);
  });

  it('frees what a layer returned once the next has used it', async () => {
    const device = makeDevice();
    const layers = Array.from({ length: 8 }, () => new Double(device));
    const model = new Sequential<[Tensor]>(device, layers);
    const x = device.zeros([1000]);
    device.ledger.resetPeak();
    const out = await model.call(x);
    // These are the input, one result and the next.
    expect(device.ledger.peak().activation).toBe(3 * 4000);
    expect(device.ledger.live().activation).toBe(2 * 4000);
    out.dispose();
    expect(await read(x)).toHaveLength(1000);
  });

  it('leaves a subclass what it passed on', async () => {
    class Residual extends Sequential<[Tensor]> {
      override async forward(x: Tensor): Promise<Tensor> {
        const doubled = mul(x, 2);
        return add(await super.forward(doubled), doubled);
      }
    }
    const device = makeDevice();
    const model = new Residual(device, [new Double(device), new Double(device)]);
    expect(await read(await model.call(device.tensor([1])))).toEqual([10]);
  });

  it('leaves the caller its input and a result that is the input', async () => {
    const device = makeDevice();
    const model = new Sequential<[Tensor]>(device, [
      new Dropout(device, { p: 0.5 }),
      new Dropout(device, { p: 0 }),
    ]).eval();
    const x = device.tensor([1, 2]);
    expect(await model.call(x)).toBe(x);
    await device.scope(async () => {
      const inner = device.tensor([3, 4]);
      expect(await read(await model.call(inner))).toEqual([3, 4]);
    });
    expect(await read(x)).toEqual([1, 2]);
    x.dispose();
    expect(device.ledger.live().total).toBe(0);
  });
});

class Sum extends Module<[Tensor, Tensor], Tensor> {
  forward(a: Tensor, b: Tensor): Tensor {
    return add(a, b);
  }
}

class Double extends Module<[Tensor], Tensor> {
  constructor(device: Device) {
    super(device);
  }

  forward(x: Tensor): Tensor {
    return mul(x, 2);
  }
}

function product(
  a: readonly number[],
  b: readonly number[],
  m: number,
  k: number,
  n: number,
): number[] {
  return Array.from({ length: m * n }, (_, at) => {
    const [row, col] = [Math.floor(at / n), at % n];
    let total = 0;
    for (let i = 0; i < k; i++) {
      total += a[row * k + i]! * b[i * n + col]!;
    }
    return total;
  });
}

it('options of norms and dropout count at their ends, too', async () => {
  const device = makeDevice();
  const x = device.tensor([0, 1e-3], [1, 2]);
  const exact = new LayerNorm(device, { normalizedShape: 2, eps: 0 });
  expectClose(await read(await exact.call(x)), [-1, 1], 1e-5);
  const row = [3e-3, 4e-3];
  const small = device.tensor(row, [1, 2]);
  const rms = (eps: number) => row.map((value) => value / Math.sqrt(12.5e-6 + eps));
  for (const [eps, expected] of [
    [0, rms(0)],
    [undefined, rms(1e-6)],
    [1e-3, rms(1e-3)],
  ] as const) {
    const options = { normalizedShape: 2, ...(eps !== undefined && { eps }) };
    expectClose(await read(await new RmsNorm(device, options).call(small)), expected, 1e-5);
    const { norm, sum: same } = await new AddRmsNorm(device, options).call(small);
    expectClose(await read(norm), expected, 1e-5);
    expectClose(await read(same), row, 1e-6);
  }
  const added = new AddLayerNorm(device, { normalizedShape: 2, eps: 1e-2 });
  const layer = new LayerNorm(device, { normalizedShape: 2, eps: 1e-2 });
  const { norm } = await added.call(small, x);
  expectClose(await read(norm), await read(await layer.call(add(small, x))), 1e-6);
  const idle = new Dropout(device, { p: 0 });
  expect([idle.isIdle, idle.forward(x) === x]).toEqual([true, true]);
  const drop = new Dropout(device, { p: 0.5 });
  expect([drop.isIdle, drop.eval().isIdle, drop.forward(x) === x]).toEqual([false, true, true]);
});

it('a Linear of no columns is its bias of zeros', async () => {
  const device = makeDevice();
  const layer = new Linear(device, { inFeatures: 0, outFeatures: 2 });
  expect((await read(layer.bias!)).map(Math.abs)).toEqual([0, 0]);
});
