// The parameters of these modules have no memory until somebody makes or loads their values.

import {
  castInPlace,
  Gpt2,
  LayerNorm,
  Linear,
  loadStateDict,
  ParameterInit,
  stateDict,
} from '@shardweave/nn';
import { deferredParameter, hostRecipe, materialize, recipeOf } from '@shardweave/nn/flat';
import { StateError, Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { makeDevice } from './support/support.js';

const SIZES = { vocab_size: 19, n_positions: 6, n_embd: 8, n_layer: 2, n_head: 2 };

describe('a module with deferred initial values', () => {
  it('takes no memory, and materializes to the very values of one made at once', async () => {
    const device = makeDevice();
    const model = device.scope(() => {
      const made = new Gpt2(device, SIZES, { seed: 3, deferInit: true });
      return made;
    });
    expect(device.memory().live.total).toBe(0);
    materialize(model);
    expect(device.memory().live.total).toBe(device.memory().live.parameter);
    expect(await stateDict(model)).toEqual(
      await stateDict(new Gpt2(makeDevice(), SIZES, { seed: 3 })),
    );
    model.dispose();
    expect(device.memory().live.total).toBe(0);
  });

  it('refuses to run before, and says what to do', async () => {
    const device = makeDevice();
    const init = new ParameterInit(device, { seed: 1, isDeferred: true });
    const layer = new Linear(device, { inFeatures: 3, outFeatures: 2, init });
    const error = await layer.call(device.zeros([1, 3])).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(StateError);
    expect((error as Error).message).toContain('materialize(module)');
    materialize(layer);
    expect((await layer.call(device.zeros([1, 3]))).shape).toEqual([1, 2]);
  });

  it('takes a state dict in place of its own values, without drawing them', async () => {
    const device = makeDevice();
    const source = new Gpt2(device, SIZES, { seed: 9 });
    const model = new Gpt2(device, SIZES, { seed: 3, deferInit: true });
    await loadStateDict(model, await stateDict(source));
    expect(model.parameters().filter((tensor) => recipeOf(tensor) !== undefined)).toEqual([]);
    expect(await stateDict(model)).toEqual(await stateDict(source));
  });

  it('keeps a second materialize from changing what was trained since', async () => {
    const device = makeDevice();
    const init = new ParameterInit(device, { seed: 1, isDeferred: true });
    const norm = new LayerNorm(device, { normalizedShape: 4, init });
    materialize(norm);
    device.copyInto(norm.weight, device.full([4], 7));
    materialize(norm);
    expect([...(await norm.weight.toArray())]).toEqual([7, 7, 7, 7]);
  });
});

it('a recipe of the host is asked for 4 MiB at a time', async () => {
  const device = makeDevice();
  const starts: number[] = [];
  const recipe = hostRecipe((values, start) => {
    starts.push(start);
    for (let i = 0; i < values.length; i++) {
      values[i] = start + i;
    }
  });
  const size = 2 ** 20 + 3;
  const tensor = deferredParameter(device, [size], recipe);
  materialize(tensor);
  expect(starts).toEqual([0, 2 ** 20]);
  expect((await tensor.toArray()).every((value, i) => value === i)).toBe(true);
  starts.length = 0;
  const part = device.empty([5]);
  recipe.draw(part, 3);
  expect(starts).toEqual([3]);
  expect([...(await part.toArray())]).toEqual([3, 4, 5, 6, 7]);
});

it('a recipe is drawn in parts of a million into 16 bits, each part its own values', async () => {
  const device = makeDevice();
  const size = 2 ** 20 + 2;
  const recipe = hostRecipe((numbers, start) => {
    numbers.forEach((_, i) => {
      numbers[i] = (start + i) % 251; // f16 has each of these
    });
  });
  const tensor = deferredParameter(device, [size], recipe);
  castInPlace(tensor, 'f16');
  materialize(tensor);
  const drawn = await tensor.toArray();
  expect(drawn.every((value, i) => value === i % 251)).toBe(true);
});

it('drawing makes nothing beside the parameter, on the device or on the way from the host', () => {
  const device = makeDevice();
  const init = new ParameterInit(device, { seed: 4, isDeferred: true });
  const tensor = init.normal('w', [300, 7], { mean: 1 });
  materialize(tensor);
  expect(device.memory().peak.total).toBe(300 * 7 * 4);
});

it('a recipe gives any part of the values alone, at any place', async () => {
  const device = makeDevice();
  const init = new ParameterInit(device, { seed: 4 });
  const deferred = new ParameterInit(device, { seed: 4, isDeferred: true });
  for (const make of [
    (from: ParameterInit) => from.normal('w', [7, 9], { mean: 1 }),
    (from: ParameterInit) => from.uniform('w', [63], { low: -1, high: 2 }),
    (from: ParameterInit) => from.ones([63]),
  ]) {
    const whole = await make(init).toArray();
    const recipe = recipeOf(make(deferred))!;
    for (const [start, end] of [
      [0, 63],
      [1, 2],
      [3, 9],
      [4, 8],
      [61, 63],
    ] as const) {
      const around = device.full([70], 8);
      recipe.draw(new Tensor(around.storage, [end - start], 5), start);
      const values = [...(await around.toArray())];
      expect(values.splice(5, end - start)).toEqual([...whole.slice(start, end)]);
      expect(values.every((value) => value === 8)).toBe(true);
    }
  }
});
