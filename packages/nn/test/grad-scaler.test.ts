import { AdamW, clipGradNorm, GradScaler, type GradScalerOptions, Sgd } from '@shardweave/nn';
import { cast, sum, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { RankedLinear } from './support/ranked-linear.js';
import { expectClose, makeDevice, read } from './support/support.js';

const params = () => [makeDevice().zeros([1], { requiresGrad: true })];

describe('GradScaler', () => {
  it('starts as PyTorch does, halves after an overflow, doubles after an interval without', () => {
    const scaler = new GradScaler(params(), { growthInterval: 3 });
    const factors = [false, false, true, false, false, false, false, true, true].map((found) => {
      scaler.update(found);
      return scaler.factor;
    });
    expect(factors).toEqual([65536, 65536, 32768, 32768, 32768, 65536, 65536, 32768, 16384]);
    const fresh = new GradScaler(params());
    for (let i = 0; i < 1999; i++) {
      fresh.update(false);
    }
    expect(fresh.factor).toBe(65536);
    fresh.update(false);
    expect(fresh.factor).toBe(131072);
  });

  it('does not grow beyond what f32 holds', () => {
    const scaler = new GradScaler(params(), { initScale: 2 ** 127, growthInterval: 1 });
    scaler.update(false);
    expect(scaler.factor).toBe(2 ** 127);
  });

  it('scales the loss, and its inverse undoes that in norm and step', async () => {
    const step = async (options: GradScalerOptions | undefined) => {
      const device = makeDevice();
      const x = device.tensor([1, -2, 3], [3], { requiresGrad: true });
      const scaler = options && new GradScaler([x], options);
      const optimizer = new AdamW([x], { lr: 0.1, eps: 1e-2 });
      const loss = sum(cast(x, 'f16')) as Tensor;
      const root = cast(loss, 'f32');
      await (scaler?.scale(root) ?? root).backward();
      const { norm, scale } = await clipGradNorm([x], 0, { unscale: 1 / (scaler?.factor ?? 1) });
      await optimizer.step({ gradScale: scale });
      return [...(await read(x)), await norm.item()];
    };
    expectClose(await step({ initScale: 1024 }), await step(undefined), 1e-7);
  });

  it.each([Number.POSITIVE_INFINITY, Number.NaN])(
    'finds %d in the gradients, and skips the step of their optimizer alone',
    async (value) => {
      const device = makeDevice();
      const leaves = [1, 2].map((x) => device.tensor([x, x], [2], { requiresGrad: true }));
      const optimizers = leaves.map((leaf) => new Sgd([leaf], { lr: 1 }));
      const scaler = new GradScaler(leaves, { initScale: 4 });
      const stepped = async (second: number) => {
        leaves.forEach((leaf, i) => {
          leaf.grad = device.tensor([8, i === 0 ? 8 : second]);
        });
        const found: boolean[] = [];
        for (const optimizer of optimizers) {
          found.push(await scaler.step(optimizer));
        }
        scaler.update();
        return [...found, scaler.factor];
      };
      expect(await stepped(value)).toEqual([true, false, 2]);
      expect(await Promise.all(leaves.map(read))).toEqual([
        [-1, -1], // the gradients were divided by 4
        [2, 2],
      ]);
      expect(await stepped(8)).toEqual([true, true, 2]);
      expect(await Promise.all(leaves.map(read))).toEqual([
        [-5, -5],
        [-2, -2],
      ]);
    },
  );

  it('asks the wrappers of models that an iterator has given once', async () => {
    const models = [1, 2].map(() => new RankedLinear(makeDevice()));
    const scaler = new GradScaler(new Map(models.entries()).values());
    const optimizer = new Sgd(models[0]!.parameters(), { lr: 1 });
    models[0]!.weight.grad = models[0]!.device.full([2, 3], 1);
    await scaler.step(optimizer);
    expect(models[0]!.asked).toEqual(['unscale']);
  });

  it('resumes', () => {
    const scaler = new GradScaler(params(), { growthInterval: 2 });
    scaler.update(true);
    scaler.update(false);
    const resumed = new GradScaler(params(), { growthInterval: 2 });
    resumed.loadStateDict(scaler.stateDict());
    resumed.update(false);
    expect(resumed.factor).toBe(65536);
  });
});

it('calls out of turn are refused, and change nothing', async () => {
  const device = makeDevice();
  const [x] = [device.tensor([1, 1], [2], { requiresGrad: true })];
  const scaler = new GradScaler([x!], { initScale: 4, growthInterval: 2 });
  const optimizer = new Sgd([x!], { lr: 1 });
  const gradient = () => {
    x!.grad = device.full([2], 8);
  };
  expect(() => scaler.update()).toThrow('to be unscaled or stepped since the last update');
  gradient();
  await scaler.unscale(optimizer);
  await expect(scaler.unscale(optimizer)).rejects.toThrow('got one that was unscaled');
  expect(await read(x!.grad!)).toEqual([2, 2]);
  expect(await scaler.step(optimizer, { gradScale: device.full([1], 0.5) })).toBe(true);
  expect(await read(x!)).toEqual([0, 0]);
  await expect(scaler.step(optimizer)).rejects.toThrow('got a second one');
  await expect(scaler.unscale(optimizer)).rejects.toThrow('got one that was stepped');
  expect(await read(x!)).toEqual([0, 0]);
  scaler.update();
  expect(scaler.stateDict()).toEqual({ scale: 4, growthTracker: 1 });
  expect(() => scaler.update()).toThrow('to be unscaled or stepped since the last update');
  scaler.update(false); // which needs no turn
  expect(scaler.stateDict()).toEqual({ scale: 8, growthTracker: 0 });
  gradient();
  x!.grad = device.tensor([1, Number.NaN]);
  expect(await scaler.step(optimizer)).toBe(false);
  scaler.update();
  expect(scaler.stateDict()).toEqual({ scale: 4, growthTracker: 0 });
  gradient();
  expect(await scaler.step(optimizer)).toBe(true); // the overflow was of the step before
});
