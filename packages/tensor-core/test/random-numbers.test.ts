// The distribution of random tensors is compared with the error function, their bits must be equal
// on all devices and in parts, and wrong options are refused. The kernel suite compares the devices
// with the recipe.

import {
  Device,
  drawNormal,
  drawUniform,
  OptionError,
  randomNormal,
  randomUniform,
  Tensor,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterAll, describe, expect, test } from 'vitest';
import { erf } from '../src/testing/twins/elementwise.js';
import { testedBackends } from './support/backends.js';

const COUNT = 50_000;
const KEY = { key0: 11, key1: 7 };

const normalBelow = (z: number) => (1 + erf(z / Math.SQRT2)) / 2;

/**
 * Returns the largest distance between the distribution of the values and `below` (Kolmogorov). It
 * exceeds 1.95 / sqrt(n) for one key in a thousand, and the key is fixed.
 */
function distance(values: ArrayLike<number>, below: (value: number) => number): number {
  const sorted = Float64Array.from(values).sort();
  let most = 0;
  // Every hundredth value is near enough, and the error function is slow.
  for (let i = 0; i < sorted.length; i += 100) {
    most = Math.max(most, Math.abs(below(sorted[i]!) - (i + 0.5) / sorted.length));
  }
  return most;
}

describe('on the CPU device', async () => {
  const backend = await (await testedBackends())[1]!.open();
  afterAll(() => backend.dispose());
  const draw = async (make: (device: Device) => ReturnType<typeof randomNormal>) => {
    const device = new Device(backend);
    const values = await device.scope(() => make(device).toArray());
    device.dispose();
    return values;
  };

  test('normal numbers are normal', async () => {
    const values = await draw((d) => randomNormal(d, [COUNT], { key: KEY, mean: 2, std: 0.5 }));
    expect(distance(values, (x) => normalBelow((x - 2) / 0.5))).toBeLessThan(
      1.95 / Math.sqrt(COUNT),
    );
  });

  test('uniform numbers are uniform', async () => {
    const values = await draw((d) => randomUniform(d, [COUNT], { key: KEY, low: -1, high: 3 }));
    expect(distance(values, (x) => (x + 1) / 4)).toBeLessThan(1.95 / Math.sqrt(COUNT));
    expect(Math.min(...values)).toBeGreaterThanOrEqual(-1);
    expect(Math.max(...values)).toBeLessThanOrEqual(3);
  });

  test('normal numbers with bounds are distributed as those without that lie within the bounds', async () => {
    const bounds = { low: -2, high: 1 };
    const values = await draw((d) => randomNormal(d, [COUNT], { key: KEY, ...bounds }));
    const [least, all] = [normalBelow(-2), normalBelow(1) - normalBelow(-2)];
    const below = (x: number) => (normalBelow(x) - least) / all;
    expect(distance(values, below)).toBeLessThan(1.95 / Math.sqrt(COUNT));
    expect(Math.min(...values)).toBeGreaterThanOrEqual(-2);
    expect(Math.max(...values)).toBeLessThanOrEqual(1);
  });
});

test('each device draws the same, in one piece or in parts', async () => {
  const drawn = new Map<string, string>();
  for (const { name, reason, open } of await testedBackends()) {
    if (reason !== undefined) {
      continue;
    }
    const backend = await open();
    const device = new Device(backend);
    const whole = randomNormal(device, [1000], { key: KEY, std: 0.02, mean: 0.1 });
    const part = randomNormal(device, [333], { key: KEY, std: 0.02, mean: 0.1, first: 501 });
    const [all, some] = [await whole.toBytes(), await part.toBytes()];
    expect(Buffer.from(some).equals(Buffer.from(all.subarray(501 * 4, 834 * 4)))).toBe(true);
    const around = device.full([340], 3);
    const there = new Tensor(around.storage, [333], 6);
    drawNormal(there, { key: KEY, std: 0.02, mean: 0.1, first: 501 });
    expect(Buffer.from(await there.toBytes()).equals(Buffer.from(some))).toBe(true);
    expect([...(await around.toArray())].filter((value) => value === 3)).toHaveLength(7);
    expect(around.storage.version).toBe(1);
    drawn.set(name, Buffer.from(all).toString('hex'));
    device.dispose();
    await backend.dispose();
  }
  expect(drawn.size).toBeGreaterThan(1);
  expect(new Set(drawn.values()).size).toBe(1);
});

test('each call draws other numbers, and a device with the same seed draws the same ones', async () => {
  const draws = async () => {
    const device = new Device(createReferenceBackend(), { seed: 5 });
    return device.scope(async () => {
      const [a, b] = [randomNormal(device, [8]), randomNormal(device, [8])];
      return [[...(await a.toArray())], [...(await b.toArray())]];
    });
  };
  const [first, again] = [await draws(), await draws()];
  expect(first[0]).not.toEqual(first[1]);
  expect(again).toEqual(first);
});

test('drawing into a tensor refuses what it does not know', () => {
  const device = new Device(createReferenceBackend());
  const [out, options] = [device.zeros([2]), { key: KEY, firts: 3 }];
  expect(() => drawNormal(out, options)).toThrow(OptionError);
  expect(() => drawUniform(out, { key: 3 } as never)).toThrow('expected key');
});

test('bounds that leave nothing are refused', () => {
  const device = new Device(createReferenceBackend());
  expect(() => randomUniform(device, [2], { low: 1, high: 0 })).toThrow(OptionError);
  expect(() => randomNormal(device, [2], { low: 7 })).toThrow('a millionth of the distribution');
  expect(() => randomNormal(device, [2], { std: -1 })).toThrow('expected std');
  expect(device.memory().live.total).toBe(0);
});
