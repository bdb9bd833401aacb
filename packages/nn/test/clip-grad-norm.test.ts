import {
  clipCoefficient,
  clipGradNorm,
  gradNorm,
  Linear,
  NnConfigError,
  packParameters,
  scaleGradients,
} from '@shardweave/nn';
import { Device, sum, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { makeFlat } from './support/flats.js';
import { MapStore } from './support/map-store.js';
import { RankedLinear } from './support/ranked-linear.js';
import { expectClose, makeDevice, read, values } from './support/support.js';

/**
 * Makes four leaves: three with gradients, of which one has 16 bits, and one without a gradient.
 */
function leaves(device: Device): Tensor[] {
  return [7, 64, 5, 3].map((size, i) => {
    const leaf = device.zeros([size], { requiresGrad: true });
    const dtype = i === 2 ? 'bf16' : 'f32';
    if (i < 3) {
      leaf.grad = device.tensor(values(size, i + 1), [size], { dtype, tag: 'gradient' });
    }
    return leaf;
  });
}

const sumOf = async (model: Linear) => sum(await model.call(model.device.full([1, 2], 1)));

async function normOf(params: readonly Tensor[]): Promise<number> {
  const gradients = await Promise.all(params.map(({ grad }) => (grad ? read(grad) : [])));
  return Math.hypot(...gradients.flat());
}

describe('clipGradNorm', () => {
  it("gives the norm over all gradients and PyTorch's factor, and touches no gradient", async () => {
    const device = makeDevice();
    const params = leaves(device);
    const expected = await normOf(params);
    const before = await read(params[0]!.grad!);
    const { norm, scale } = await clipGradNorm(params, 0.5);
    expectClose([await norm.item(), await scale.item()], [expected, 0.5 / (expected + 1e-6)], 1e-6);
    expect(await read(params[0]!.grad!)).toEqual(before);
  });

  it('has factor 1 below the bound and where there is none', async () => {
    const params = leaves(makeDevice());
    const expected = await normOf(params);
    for (const bound of [expected + 1, 0, Number.POSITIVE_INFINITY]) {
      const { norm, scale } = await clipGradNorm(params, bound);
      expectClose([await norm.item(), await scale.item()], [expected, 1], 1e-6);
    }
  });

  it('undoes a loss scale in norm and factor', async () => {
    const params = leaves(makeDevice());
    const expected = (await normOf(params)) / 8;
    for (const bound of [0, expected / 3]) {
      const { norm, scale } = await clipGradNorm(params, bound, { unscale: 1 / 8 });
      const factor = bound === 0 ? 1 : bound / (expected + 1e-6);
      expectClose([await norm.item(), await scale.item()], [expected, factor / 8], 1e-6);
    }
  });

  it('has the bits of the device where ranks tell their norms, whatever the loss scale is', async () => {
    const layer = new RankedLinear(makeDevice());
    layer.weight.grad = layer.device.tensor(values(6, 3), [2, 3]);
    for (const unscale of [1 / 3, 1 / 98304, 1 / 7e5, 0.1]) {
      const [own, told] = [layer.parameters(), layer].map((target) =>
        clipGradNorm(target, 1e-6, { unscale }),
      );
      expect(await (await told!).norm.item()).toBe(await (await own!).norm.item());
      expect(await (await told!).scale.item()).toBe(await (await own!).scale.item());
    }
    expect(layer.asked).toHaveLength(4);
  });

  it('counts a flat once, and its own gradient alone', async () => {
    const device = makeDevice();
    const flat = device.zeros([4], { requiresGrad: true });
    flat.grad = device.tensor([3, 4, 0, 0]);
    const params = [0, 2].map((start) => {
      const param = device.zeros([2], { requiresGrad: true });
      param.piece = { flat, start, length: 2 };
      return param;
    });
    expect(await (await clipGradNorm(params, 0)).norm.item()).toBe(5);
  });

  it('refuses parts of a flat that other ranks share, also where they are whole here', async () => {
    const device = makeDevice();
    const flat = device.zeros([4], { requiresGrad: true });
    flat.grad = device.tensor([3, 4, 0, 0]);
    const pieceOf = (length: number, numShards?: number) => {
      const param = device.zeros([2], { requiresGrad: true });
      param.piece = { flat, start: 0, length, ...(numShards === undefined ? {} : { numShards }) };
      return param;
    };
    const [plain] = leaves(device);
    for (const part of [pieceOf(2, 2), pieceOf(1), pieceOf(0, 3)]) {
      await expect(clipGradNorm([plain!, part], 1)).rejects.toThrow(NnConfigError);
    }
    expect(await clipGradNorm([plain!, pieceOf(2), pieceOf(2, 1)], 1)).toBeDefined();
  });

  it('is 0 without gradients, and not finite where one is not', async () => {
    const device = makeDevice();
    const [, , , bare] = leaves(device);
    expect(await (await clipGradNorm([bare!], 1)).norm.item()).toBe(0);
    bare!.grad = device.tensor([1, Number.POSITIVE_INFINITY, 0]);
    expect(Number.isFinite(await (await clipGradNorm([bare!], 1)).norm.item())).toBe(false);
    await expect(clipGradNorm([bare!], -1)).rejects.toThrow(NnConfigError);
    await expect(clipGradNorm([], 1)).rejects.toThrow(NnConfigError);
  });

  it('takes three kernels beside one for each flat gradient', async () => {
    const device = makeDevice();
    const params = leaves(device).slice(0, 3);
    const before = device.backend.dispatches;
    await device.scope(() => clipGradNorm(params, 1));
    expect(device.backend.dispatches - before).toBe(3 + 3);
    const model = new Linear(device, { inFeatures: 3, outFeatures: 2 });
    const flat = packParameters(model).flats[0]!;
    flat.grad = device.full([flat.size], 1);
    const packed = device.backend.dispatches;
    await device.scope(() => clipGradNorm(model, 1));
    expect(device.backend.dispatches - packed).toBe(1 + 3);
  });

  it('leaves two numbers on the device and nothing else', async () => {
    const device = makeDevice();
    const params = leaves(device);
    const before = device.ledger.live().activation;
    const { norm, scale } = await clipGradNorm(params, 1);
    expect(device.ledger.live().activation).toBe(before + 8);
    norm.dispose();
    scale.dispose();
    expect(device.ledger.live().activation).toBe(before);
  });
});

describe('clipCoefficient', () => {
  it("is the device's factor, computed on the host", async () => {
    const params = leaves(makeDevice());
    const norm = await (await clipGradNorm(params, 0)).norm.item();
    const bounds = Array.from({ length: 40 }, (_, i) => 10 ** (-i / 4));
    for (const bound of [norm / 3, norm * 2, 0, Number.POSITIVE_INFINITY, ...bounds]) {
      const factor = await (await clipGradNorm(params, bound)).scale.item();
      expect(clipCoefficient(norm, bound)).toBe(factor);
    }
    expectClose([clipCoefficient(0, 1e-9)], [1e-3], 1e-6);
    expect(() => clipCoefficient(1, -1)).toThrow(NnConfigError);
  });
});

describe('scaleGradients', () => {
  it('bounds the gradients themselves', async () => {
    const params = leaves(makeDevice());
    const expected = await normOf(params);
    const before = await read(params[1]!.grad!);
    const { norm, scale } = await clipGradNorm(params, 0.25);
    await scaleGradients(params, scale);
    expectClose([await norm.item()], [expected], 1e-6);
    expectClose(
      await read(params[1]!.grad!),
      before.map((g) => (g * 0.25) / expected),
      1e-5,
    );
    expect(await normOf(params)).toBeCloseTo(0.25, 3);
  });

  it('scales a parameter that is listed twice once, in a flat of its own or of several', async () => {
    const device = makeDevice();
    const model = new Linear(device, { inFeatures: 2, outFeatures: 1 });
    const [plain] = leaves(device);
    const before = await read(plain!.grad!);
    packParameters(model);
    await device.scope(async () => device.backward(await model.call(device.full([1, 2], 1))));
    const { flat } = model.weight.piece!;
    const packed = await read(flat.grad!);
    const { weight, bias } = model;
    await scaleGradients([plain!, weight, plain!, bias!, weight], device.full([1], 0.5));
    expect(await read(plain!.grad!)).toEqual(before.map((value) => value / 2));
    expect(await read(flat.grad!)).toEqual(packed.map((value) => value / 2));
  });

  it('takes gradients larger than a binding in runs, each element once', async () => {
    const maxViewBytes = 4096;
    const device = new Device(createReferenceBackend({ maxViewBytes }));
    const leaf = device.zeros([2500], { requiresGrad: true });
    const gradient = values(2500);
    leaf.grad = device.tensor(gradient);
    await scaleGradients([leaf], device.full([1], 0.5));
    expect(await read(leaf.grad)).toEqual(gradient.map((value) => value * 0.5));
  });
});

it('a norm counts a parameter once, in any order, also what was frozen since, and dirty memory not', async () => {
  const device = makeDevice();
  const model = new Linear(device, { inFeatures: 2, outFeatures: 3 });
  packParameters(model);
  const { weight, bias } = model;
  await device.scope(async () => device.backward(await sumOf(model)));
  const [plain, without] = leaves(device).slice(2) as [Tensor, Tensor];
  const all = [weight, bias!, plain, without];
  const expected = Math.hypot(
    ...(await read(weight.piece!.flat.grad!)),
    ...(await read(plain.grad!)),
  );
  const dirty = device.full([64], 1e9);
  dirty.dispose();
  for (const list of [all, all.toReversed(), [...all, ...all]]) {
    expectClose([await gradNorm(list)], [expected], 1e-6);
    const { norm } = await clipGradNorm(list, 1);
    expectClose([await norm.item()], [expected], 1e-6);
  }
  plain.requiresGrad = false;
  bias!.requiresGrad = false;
  expectClose([await gradNorm(all)], [expected], 1e-6);
});

it('a bound that is too small for f32, and norms without an end, have factors of their own', () => {
  expect(clipCoefficient(1, 2 ** -130)).toBe(0);
  expect(clipCoefficient(2 ** 100, 2 ** -60)).toBe(0);
  expect(clipCoefficient(Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY)).toBe(1);
  expect(clipCoefficient(Number.POSITIVE_INFINITY, 1)).toBe(0);
  expect(clipCoefficient(0, 1)).toBe(1);
});

it.each([1, 2, 3, Number.POSITIVE_INFINITY])(
  'a norm of the power %d clips by itself',
  async (normType) => {
    const device = makeDevice();
    const params = leaves(device);
    const gradients = await Promise.all(params.map(({ grad }) => (grad ? read(grad) : [])));
    const all = gradients.flat().map(Math.abs);
    const expected =
      normType === Number.POSITIVE_INFINITY
        ? Math.max(...all)
        : all.reduce((total, value) => total + value ** normType, 0) ** (1 / normType);
    const { norm, scale } = await clipGradNorm(params, 0.25, { normType, unscale: 0.5 });
    const found = [await norm.item(), await scale.item()];
    expectClose(found, [expected / 2, (0.5 * 0.25) / (expected / 2 + 1e-6)], 1e-5);
  },
);

it('a norm that fails leaves no memory behind, and its parameters free for the next', async () => {
  const device = makeDevice();
  const store = new MapStore();
  const { flat, addGradient } = await makeFlat(device, store);
  await addGradient(3);
  const before = device.memory().live.total;
  store.failing = (call) => call.startsWith('read');
  await expect(clipGradNorm([flat], 1)).rejects.toThrow('refused');
  await expect(gradNorm([flat])).rejects.toThrow('refused');
  expect(device.memory().live.total).toBe(before);
  store.failing = () => false;
  expect(await gradNorm([flat])).toBeGreaterThan(0);
});
