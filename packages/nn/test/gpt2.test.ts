import {
  Gpt2,
  type Gpt2Config,
  type Module,
  NnConfigError,
  type TokenOptions,
} from '@shardweave/nn';
import {
  crossEntropy,
  type Device,
  mul,
  ShapeError,
  sum,
  type Tensor,
} from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { expectClose, expectGradients, makeDevice, read } from './support/support.js';

const TINY: Partial<Gpt2Config> = {
  vocab_size: 11,
  n_positions: 6,
  n_embd: 8,
  n_layer: 2,
  n_head: 2,
  embd_pdrop: 0,
  attn_pdrop: 0,
  resid_pdrop: 0,
  initializer_range: 0.3,
};

function ids(device: Device, shape: readonly [number, number], seed = 0): Tensor {
  const data = Int32Array.from({ length: shape[0] * shape[1] }, (_, i) => (i * 7 + seed) % 11);
  return device.tensor(data, shape);
}

describe('Gpt2', () => {
  it('has the names and shapes of the Hugging Face layout, the tied table once', () => {
    const model = new Gpt2(makeDevice(), TINY);
    const shapes = Object.fromEntries(
      model.namedParameters().map(([name, { shape }]) => [name, shape]),
    );
    const block = (i: number) => ({
      [`transformer.h.${i}.ln_1.weight`]: [8],
      [`transformer.h.${i}.ln_1.bias`]: [8],
      [`transformer.h.${i}.attn.c_attn.weight`]: [8, 24],
      [`transformer.h.${i}.attn.c_attn.bias`]: [24],
      [`transformer.h.${i}.attn.c_proj.weight`]: [8, 8],
      [`transformer.h.${i}.attn.c_proj.bias`]: [8],
      [`transformer.h.${i}.ln_2.weight`]: [8],
      [`transformer.h.${i}.ln_2.bias`]: [8],
      [`transformer.h.${i}.mlp.c_fc.weight`]: [8, 32],
      [`transformer.h.${i}.mlp.c_fc.bias`]: [32],
      [`transformer.h.${i}.mlp.c_proj.weight`]: [32, 8],
      [`transformer.h.${i}.mlp.c_proj.bias`]: [8],
    });
    expect(shapes).toEqual({
      'transformer.wte.weight': [11, 8],
      'transformer.wpe.weight': [6, 8],
      ...block(0),
      ...block(1),
      'transformer.ln_f.weight': [8],
      'transformer.ln_f.bias': [8],
    });
    expect(model.layers()).toHaveLength(4);
    expect(model.parameters()[3]!.name).toBe('transformer.h.0.ln_1.bias');
  });

  it('gives logits that depend on earlier tokens alone', async () => {
    const device = makeDevice();
    const model = new Gpt2(device, TINY);
    const first = await read(await model.call(device.tensor(Int32Array.of(1, 2, 3, 4), [1, 4])));
    const changed = await read(await model.call(device.tensor(Int32Array.of(1, 2, 9, 4), [1, 4])));
    expect(first).toHaveLength(4 * 11);
    expect(changed.slice(0, 22)).toEqual(first.slice(0, 22));
    for (const at of [2, 3]) {
      expect(changed.slice(at * 11, at * 11 + 11)).not.toEqual(first.slice(at * 11, at * 11 + 11));
    }
  });

  it('agrees with itself whatever the batch', async () => {
    const device = makeDevice();
    const model = new Gpt2(device, TINY);
    const both = await read(await model.call(ids(device, [2, 5])));
    const second = Int32Array.from({ length: 5 }, (_, i) => ((i + 5) * 7) % 11);
    expectClose(await read(await model.call(device.tensor(second, [1, 5]))), both.slice(55), 1e-6);
  });

  it('has gradients of all parameters, the tied table from both of its uses', async () => {
    const device = makeDevice();
    const model = new Gpt2(device, { ...TINY, n_layer: 1 });
    const targets = ids(device, [2, 4], 3);
    const input = ids(device, [2, 4]);
    await expectGradients(
      model.parameters(),
      async () => crossEntropy(await model.call(input), targets),
      { tolerance: 3e-3 },
    );
  });

  it('gives the losses of targets, with the gradients of logits and crossEntropy', async () => {
    const device = makeDevice();
    const model = new Gpt2(device, TINY);
    const [input, targets] = [ids(device, [2, 4]), ids(device, [2, 4], 3)];
    const run = async (lossesOf: () => Promise<Tensor>) => {
      const losses = await lossesOf();
      await sum(mul(losses, device.tensor([1, 0, 0.5, 2, 1, 1, 3, 1], [2, 4]))).backward();
      const gradients = await Promise.all(model.parameters().map(({ grad }) => read(grad!)));
      for (const parameter of model.parameters()) {
        parameter.grad = undefined;
      }
      return { shape: losses.shape, losses: await read(losses), gradients };
    };
    const inside = await run(() => model.call(input, { targets }));
    const outside = await run(async () =>
      crossEntropy(await model.call(input), targets, { reduction: 'none' }),
    );
    expect(inside).toEqual(outside);
    expect(inside.shape).toEqual([2, 4]);
  });

  it('keeps packed documents apart: each has the losses it has alone', async () => {
    const device = makeDevice();
    const model = new Gpt2(device, TINY);
    const numbers = (values: number[]) =>
      device.tensor(Uint32Array.from(values), [1, values.length]);
    const lossesOf = async (input: number[], targets: number[], options: TokenOptions = {}) =>
      read(await model.call(numbers(input), { targets: numbers(targets), ...options }));
    const [first, second] = [await lossesOf([3, 1, 4], [1, 4, 1]), await lossesOf([5, 9], [9, 2])];
    const packed = await lossesOf([3, 1, 4, 5, 9], [1, 4, 1, 9, 2], {
      segments: numbers([0, 0, 0, 1, 1]),
      positions: numbers([0, 1, 2, 0, 1]),
    });
    expectClose(packed, [...first, ...second], 1e-6);
    const mixed = await lossesOf([3, 1, 4, 5, 9], [1, 4, 1, 9, 2]);
    expectClose(mixed.slice(0, 3), first, 1e-6);
    for (const [i, loss] of second.entries()) {
      expect(Math.abs(mixed[3 + i]! - loss)).toBeGreaterThan(1e-3);
    }
  });

  it('starts with the same values whatever wraps its layers, and others for another seed', async () => {
    const valuesOf = async (model: Module) => Promise.all(model.parameters().map(read));
    const device = makeDevice();
    device.random.nextKey();
    const first = await valuesOf(new Gpt2(device, TINY, { seed: 4 }));
    expect(await valuesOf(new Gpt2(makeDevice({ seed: 8 }), TINY, { seed: 4 }))).toEqual(first);
    expect(await valuesOf(new Gpt2(device, TINY, { seed: 5 }))).not.toEqual(first);
    const wider = await valuesOf(new Gpt2(device, { ...TINY, n_layer: 1 }, { seed: 4 }));
    expect(wider[0]).toEqual(first[0]);
  });

  it('refuses sequences beyond its positions and ids that are not [batch, seq]', async () => {
    const device = makeDevice();
    const model = new Gpt2(device, TINY);
    await expect(model.call(ids(device, [1, 7]))).rejects.toThrow(ShapeError);
    await expect(model.call(device.tensor(Int32Array.of(1, 2)))).rejects.toThrow('[batch, seq]');
  });

  it('refuses a configuration that cannot work, naming the field', () => {
    const make = (change: Partial<Gpt2Config>) => () =>
      new Gpt2(makeDevice(), { ...TINY, ...change });
    expect(make({ n_head: 3 })).toThrow(NnConfigError);
    expect(make({ n_head: 8 })).toThrow('n_head');
    expect(make({ n_layer: 0 })).toThrow('n_layer');
    expect(make({ embd_pdrop: 1 })).toThrow('embd_pdrop');
    expect(make({ activation_function: 'relu' as 'gelu' })).toThrow('activation_function');
    expect(make({ n_inner: 0 })).toThrow('n_inner');
  });

  it('holds no memory but its parameters after a step and none after dispose', async () => {
    const device = makeDevice();
    const dropout = { attn_pdrop: 0.1, resid_pdrop: 0.1, embd_pdrop: 0.1 };
    const made: Gpt2[] = [];
    device.scope(() => {
      made.push(new Gpt2(device, { ...TINY, ...dropout })); // The parameters outlive the scope.
    });
    const model = made[0]!;
    const bytes = model.parameters().reduce((total, { size }) => total + size * 4, 0);
    await device.scope(async () => {
      await crossEntropy(await model.call(ids(device, [2, 4])), ids(device, [2, 4], 1)).backward();
    });
    expect(device.ledger.live()).toMatchObject({
      activation: 0,
      parameter: bytes,
      gradient: bytes,
    });
    model.dispose();
    expect(device.ledger.live().total).toBe(0);
  });
});
