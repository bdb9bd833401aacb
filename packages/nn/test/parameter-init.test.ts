import { Conv1D, Embedding, Gpt2, Linear, MultiheadAttention, ParameterInit } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { expectClose, makeDevice, read } from './support/support.js';

describe('ParameterInit', () => {
  it('draws normal values of the mean and deviation asked for', async () => {
    const init = new ParameterInit(makeDevice(), { seed: 5 });
    const drawn = await read(init.normal('w', [20001], { mean: 2, std: 0.5 }));
    const mean = drawn.reduce((a, b) => a + b) / drawn.length;
    const variance = drawn.reduce((a, b) => a + (b - mean) ** 2, 0) / drawn.length;
    expect(drawn).toHaveLength(20001);
    expect(mean).toBeCloseTo(2, 1.7);
    expect(Math.sqrt(variance)).toBeCloseTo(0.5, 1.7);
    const beyondTwo = drawn.filter((x) => Math.abs(x - 2) > 1).length / drawn.length;
    expect(beyondTwo).toBeGreaterThan(0.035);
    // 4.55 % of a normal distribution lie beyond two standard deviations.
    expect(beyondTwo).toBeLessThan(0.056);
  });

  it('draws uniform values inside their range, reaching for both ends', async () => {
    const init = new ParameterInit(makeDevice(), { seed: 5 });
    const drawn = await read(init.uniform('w', [4001], { low: -3, high: 1 }));
    expect(Math.min(...drawn)).toBeGreaterThanOrEqual(-3);
    expect(Math.max(...drawn)).toBeLessThanOrEqual(1);
    expect(Math.min(...drawn)).toBeLessThan(-2.95);
    expect(Math.max(...drawn)).toBeGreaterThan(0.95);
    expect(drawn.reduce((a, b) => a + b) / drawn.length).toBeCloseTo(-1, 0.9);
  });

  it('gives each path and each seed a stream of its own', async () => {
    const device = makeDevice();
    const draw = async (seed: number, path: string, name: string) =>
      read(new ParameterInit(device, { seed, path }).normal(name, [8]));
    const first = await draw(1, 'a', 'weight');
    expect(await draw(1, 'a', 'weight')).toEqual(first);
    expect(await draw(1, '', 'a.weight')).toEqual(first);
    expect(await draw(2, 'a', 'weight')).not.toEqual(first);
    expect(await draw(1 + 2 ** 32, 'a', 'weight')).not.toEqual(first);
    expect(await draw(1, 'b', 'weight')).not.toEqual(first);
  });

  it('gives layers without a source different values, the same in every run', async () => {
    const make = async (seed: number) => {
      const device = makeDevice({ seed });
      const layers = [0, 1].map(() => new Linear(device, { inFeatures: 3, outFeatures: 2 }));
      return Promise.all(layers.map((layer) => read(layer.weight)));
    };
    const [first, second] = await make(0);
    expect(first).not.toEqual(second);
    expect(await make(0)).toEqual([first, second]);
    expect(await make(1)).not.toEqual([first, second]);
  });
});

describe('initial values', () => {
  it('are PyTorch-like for Linear, Conv1D and Embedding', async () => {
    const device = makeDevice();
    const linear = new Linear(device, { inFeatures: 16, outFeatures: 64 });
    for (const tensor of [linear.weight, linear.bias!]) {
      const drawn = await read(tensor);
      expect(Math.max(...drawn.map(Math.abs))).toBeLessThanOrEqual(0.25);
      expect(Math.max(...drawn.map(Math.abs))).toBeGreaterThan(0.22);
    }
    const conv = new Conv1D(device, { inFeatures: 30, outFeatures: 40 });
    expect(deviation(await read(conv.weight))).toBeCloseTo(0.02, 2.5);
    expect(await read(conv.bias)).toEqual(new Array(40).fill(0));
    const table = new Embedding(device, { numEmbeddings: 50, embeddingDim: 40 });
    expect(deviation(await read(table.weight))).toBeCloseTo(1, 0.9);
  });

  it('values of attention have one deviation in both projections, unless the second has its own', async () => {
    const device = makeDevice({ seed: 2 });
    const deviations = async (options: { readonly std: number; readonly projStd?: number }) => {
      const { cAttn, cProj } = new MultiheadAttention(device, {
        embedDim: 32,
        numHeads: 2,
        ...options,
      });
      const all = await Promise.all([cAttn, cProj].map(({ weight }) => read(weight)));
      return all.map((weight) => Math.hypot(...weight) / Math.sqrt(weight.length));
    };
    expectClose(await deviations({ std: 0.5 }), [0.5, 0.5], 0.05);
    expectClose(await deviations({ std: 0.5, projStd: 0.1 }), [0.5, 0.1], 0.05);
  });

  it('values of a GPT-2 scale the projections onto the residual stream by 1 / sqrt(2 layers)', async () => {
    const sizes = { vocab_size: 64, n_positions: 16, n_embd: 32, n_layer: 8, n_head: 2 };
    const model = new Gpt2(makeDevice(), sizes, { seed: 3 });
    const parameters = new Map(model.namedParameters());
    const std = async (name: string) => deviation(await read(parameters.get(name)!));
    expect(await std('transformer.wte.weight')).toBeCloseTo(0.02, 2.7);
    expect(await std('transformer.h.3.attn.c_attn.weight')).toBeCloseTo(0.02, 2.7);
    expect(await std('transformer.h.3.attn.c_proj.weight')).toBeCloseTo(0.005, 3.3);
    expect(await std('transformer.h.7.mlp.c_proj.weight')).toBeCloseTo(0.005, 3.3);
    expect(await std('transformer.h.7.mlp.c_fc.weight')).toBeCloseTo(0.02, 2.7);
    expect(await std('transformer.h.7.ln_1.weight')).toBe(0);
  });
});

function deviation(drawn: readonly number[]): number {
  const mean = drawn.reduce((a, b) => a + b) / drawn.length;
  return Math.sqrt(drawn.reduce((a, b) => a + (b - mean) ** 2, 0) / drawn.length);
}

it('every bit of a seed counts, and a layer without one gets more than 32 of them', async () => {
  const device = makeDevice({ seed: 3 });
  const drawn = async (seed: number) =>
    (await read(new ParameterInit(device, { seed }).normal('a', [2]))).join();
  const seeds = [1, 2, 1 + 2 ** 32, 1 + 2 ** 33, -1, 2 ** 52 + 1];
  expect(new Set(await Promise.all(seeds.map(drawn))).size).toBe(seeds.length);
  const next = Array.from({ length: 8 }, () => ParameterInit.next(device).seed);
  expect(next.filter((seed) => seed >= 2 ** 32).length).toBeGreaterThan(6);
  expect(next.every(Number.isSafeInteger)).toBe(true);
});
