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

  it('a saved group that is two here, or two that are one, is refused', async () => {
    const params = leaves(makeDevice());
    const [first, ...rest] = params;
    const one = new Sgd([{ params }], { lr: 1 });
    const two = new Sgd([{ params: [first!] }, { params: rest }], { lr: 1 });
    const load = async (from: Optimizer<object>, into: Optimizer<object>) =>
      into.loadStateDict(await from.stateDict(named(params)), named(params));
    await expect(load(one, two)).rejects.toThrow(
      "expected the parameters of saved group 0 in one group, got 'p0' in group 0 and 'p1' in",
    );
    await expect(load(two, one)).rejects.toThrow(
      "group 0 in one saved group, got 'p0' in saved group 0 and 'p1' in saved group 1.",
    );
    await load(two, two);
  });

  it('state dicts that do not fit are refused, naming what is wrong', async () => {
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
    await expect(optimizer.loadStateDict(dict, swapped)).rejects.toThrow(/Misshapen: p0, p1/);
    await expect(optimizer.stateDict([])).rejects.toThrow('a name for each parameter');
    const { step, tensors } = dict.state.get('p0')!;
    const turned = [...tensors].map(([name, each]) => [name, { ...each, shape: [3, 2] }] as const);
    const state = new Map([...dict.state, ['p0', { step, tensors: new Map(turned) }]]);
    await expect(optimizer.loadStateDict({ ...dict, state }, named(params))).rejects.toMatchObject({
      mismatched: ['p0'],
    });
    const short = [...tensors].map(
      ([name, each]) => [name, { ...each, data: each.data.subarray(4) }] as const,
    );
    state.set('p0', { step, tensors: new Map(short) });
    await expect(optimizer.loadStateDict({ ...dict, state }, named(params))).rejects.toMatchObject({
      mismatched: ['p0'],
    });
  });

  describe('give the options of groups', () => {
    /** Saves groups of the parameters with these numbers, and loads them into others. */
    const lrsOf = async (
      saved: readonly (readonly number[])[],
      own: readonly (readonly number[])[],
    ) => {
      const params = leaves(makeDevice());
      const groups = (numbers: readonly (readonly number[])[], first: number) =>
        numbers.map((group, i) => ({ params: group.map((p) => params[p]!), lr: first + i }));
      const from = new Sgd(groups(saved, 10));
      const into = new Sgd(groups(own, 20));
      await train(into, params, 1, 1);
      const before = await Promise.all(params.map(read));
      await into.loadStateDict(await from.stateDict(named(params)), named(params));
      expect(await Promise.all(params.map(read))).toEqual(before);
      return into.groups.map(({ lr }) => lr);
    };

    it.each([
      ['of other order', [[0, 1], [2]], [[2], [1, 0]], [11, 10]],
      ['with parameters that are frozen now, or new', [[0, 1], [2]], [[2], [0]], [11, 10]],
      ['with new parameters', [[0], [2]], [[2], [1, 0]], [11, 10]],
      ['beside a saved one without parameters', [[0, 1, 2], []], [[0, 1, 2]], [10]],
      ['without parameters, in order', [[], [0, 1, 2], []], [[0, 1, 2], [], []], [11, 10, 12]],
    ])('groups %s get their options', async (_, saved, own, lrs) => {
      expect(await lrsOf(saved, own)).toEqual(lrs);
    });

    it.each([
      ['one was split', [[0, 1, 2]], [[0], [1, 2]], "got 'p0' in group 0 and 'p1' in group 1"],
      ['two were joined', [[0], [1, 2]], [[0, 1, 2]], "0 and 'p1' in saved group 1"],
      ['a parameter has moved', [[0, 1], [2]], [[0], [2, 1]], "got 'p2' in saved group 1 and 'p1'"],
      [
        'one was not saved',
        [[0]],
        [[0], [1, 2]],
        "2 saved parameter groups, got none for group 1, of 'p1'",
      ],
      ['one is not here', [[0], [1, 2]], [[0]], "got saved group 1 of 2 besides, of 'p1'"],
    ])('a load is refused where %s', async (_, saved, own, text) => {
      await expect(lrsOf(saved, own)).rejects.toThrow(text);
    });
  });

  it('state dicts of before the first step take away what was stepped since', async () => {
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
