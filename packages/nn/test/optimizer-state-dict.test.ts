// These tests save and load an optimizer's state dict.

import { AdamW, type Optimizer, Sgd, StateDictError } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { leaves, setGradients } from './support/gradient-leaves.js';
import { makeDevice, read } from './support/support.js';

describe('optimizer state dicts', () => {
  const named = (params: readonly Tensor[]) => params.map((p, i) => [`p${i}`, p] as const);
  const train = async (
    optimizer: Optimizer<object>,
    params: readonly Tensor[],
    from: number,
    to: number,
  ) => {
    for (let t = from; t <= to; t++) {
      setGradients(params, t);
      await optimizer.step();
    }
  };

  it('resume bit for bit', async () => {
    const first = leaves(makeDevice());
    const optimizer = new AdamW(first, { lr: 0.1 });
    await train(optimizer, first, 1, 3);
    optimizer.groups[0]!.lr = 0.07;
    const dict = await optimizer.stateDict(named(first));
    expect([...dict.state.keys()]).toEqual(['p0', 'p1', 'p2']);
    expect(dict.paramGroups).toMatchObject([{ lr: 0.07, params: ['p0', 'p1', 'p2'] }]);
    expect(dict.state.get('p0')!.step).toBe(3);
    expect(dict.state.get('p0')!.tensors.get('expAvg')).toMatchObject({
      dtype: 'f32',
      shape: [2, 3],
    });

    const device = makeDevice();
    const second = await Promise.all(
      first.map(async (p) => device.tensor(await read(p), p.shape, { requiresGrad: true })),
    );
    const resumed = new AdamW(second, { lr: 0.1 });
    await resumed.loadStateDict(dict, named(second));
    await train(optimizer, first, 4, 5);
    await train(resumed, second, 4, 5);
    expect(await Promise.all(second.map(read))).toEqual(await Promise.all(first.map(read)));
  });

  it('that do not fit are refused, naming what is wrong', async () => {
    const params = leaves(makeDevice());
    const optimizer = new Sgd(params, { momentum: 0.9 });
    await train(optimizer, params, 1, 1);
    const dict = await optimizer.stateDict(named(params));
    const renamed = params.map((p, i) => [`q${i}`, p] as const);
    await expect(optimizer.loadStateDict(dict, renamed)).rejects.toThrow(StateDictError);
    const swapped = [
      [`p1`, params[0]!],
      ['p0', params[1]!],
      ['p2', params[2]!],
    ] as const;
    await expect(optimizer.loadStateDict(dict, swapped)).rejects.toThrow(/misshapen state: p0, p1/);
    await expect(optimizer.stateDict([])).rejects.toThrow('a name for each parameter');
  });

  it('of before the first step take away what was stepped since', async () => {
    const device = makeDevice();
    const params = leaves(device);
    const optimizer = new AdamW(params, { lr: 0.1 });
    const fresh = await optimizer.stateDict(named(params));
    expect(fresh.state.size).toBe(0);
    for (const param of params) {
      param.grad = device.full(param.shape, 1);
    }
    await optimizer.step();
    expect((await optimizer.stateDict(named(params))).state.size).toBe(params.length);
    await optimizer.loadStateDict(fresh, named(params));
    expect((await optimizer.stateDict(named(params))).state.size).toBe(0);
    await optimizer.step();
    const { state } = await optimizer.stateDict(named(params));
    expect([...state.values()].map(({ step }) => step)).toEqual(params.map(() => 1));
  });
});
