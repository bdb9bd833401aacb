import { AdamW, clipGradNorm, LossScaler, NnConfigError } from '@shardweave/nn';
import { cast, sum, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { expectClose, makeDevice, read } from './support/support.js';

describe('LossScaler', () => {
  it('starts as PyTorch does, halves after an overflow, doubles after an interval without', () => {
    const scaler = new LossScaler({ growthInterval: 3 });
    const factors = [false, false, true, false, false, false, false, true, true].map((found) => {
      scaler.update(found);
      return scaler.factor;
    });
    expect(factors).toEqual([65536, 65536, 32768, 32768, 32768, 65536, 65536, 32768, 16384]);
    const fresh = new LossScaler();
    for (let i = 0; i < 1999; i++) {
      fresh.update(false);
    }
    expect(fresh.factor).toBe(65536);
    fresh.update(false);
    expect(fresh.factor).toBe(131072);
  });

  it('does not grow beyond what f32 holds', () => {
    const scaler = new LossScaler({ initScale: 2 ** 127, growthInterval: 1 });
    scaler.update(false);
    expect(scaler.factor).toBe(2 ** 127);
  });

  it('scales the loss, and its inverse undoes that in norm and step', async () => {
    const step = async (scaler: LossScaler | undefined) => {
      const device = makeDevice();
      const x = device.tensor([1, -2, 3], [3], { requiresGrad: true });
      const optimizer = new AdamW([x], { lr: 0.1, eps: 1e-2 });
      const loss = sum(cast(x, 'f16')) as Tensor;
      const root = cast(loss, 'f32');
      await (scaler?.scale(root) ?? root).backward();
      const { norm, scale } = await clipGradNorm([x], 0, { unscale: scaler?.unscale ?? 1 });
      await optimizer.step({ gradScale: scale });
      return [...(await read(x)), await norm.item()];
    };
    expectClose(await step(new LossScaler({ initScale: 1024 })), await step(undefined), 1e-7);
  });

  it('finds overflow in the norm and agrees with the other ranks', async () => {
    const device = makeDevice();
    const asked: boolean[] = [];
    const other = { answer: false };
    const scaler = new LossScaler({
      reduceFoundInf: async (found) => {
        asked.push(found);
        return found || other.answer;
      },
    });
    expect(await scaler.foundInf(device.tensor([3]))).toBe(false);
    expect(await scaler.foundInf(device.tensor([Number.POSITIVE_INFINITY]))).toBe(true);
    expect(await scaler.foundInf(device.tensor([Number.NaN]))).toBe(true);
    other.answer = true;
    expect(await scaler.foundInf(device.tensor([3]))).toBe(true);
    expect(asked).toEqual([false, true, true, false]);
  });

  it('resumes', () => {
    const scaler = new LossScaler({ growthInterval: 2 });
    scaler.update(true);
    scaler.update(false);
    const resumed = new LossScaler({ growthInterval: 2 });
    resumed.loadStateDict(scaler.stateDict());
    resumed.update(false);
    expect(resumed.factor).toBe(65536);
  });

  it('refuses factors that cannot work', () => {
    expect(() => new LossScaler({ growthFactor: 1 })).toThrow(NnConfigError);
    expect(() => new LossScaler({ backoffFactor: 1 })).toThrow(NnConfigError);
  });
});
