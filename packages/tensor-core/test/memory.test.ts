// These tests check who holds bytes and until when: the ledger by tag, scopes, keep and dispose,
// and storages that are freed and filled again under one identity.

import {
  Device,
  DisposedError,
  type MemoryTag,
  matmul,
  reshape,
  ShapeError,
  StateError,
  sizeClass,
  square,
  storageBytes,
  sum,
  tanh,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import fc from 'fast-check';
import { beforeEach, describe, expect, test } from 'vitest';

let backend: ReturnType<typeof createReferenceBackend>;
let device: Device;
beforeEach(() => {
  backend = createReferenceBackend();
  device = new Device(backend);
});

const live = (tag: MemoryTag | 'total' = 'total') => device.memory().live[tag];
const pause = () => new Promise((resolve) => setTimeout(resolve, 1));

describe('the ledger', () => {
  test('counts bytes by tag, live and at peak, in whole words', () => {
    const weight = device.zeros([5], { tag: 'parameter', dtype: 'f16' });
    expect(live('parameter')).toBe(12);
    const activation = device.zeros([10]);
    activation.dispose();
    expect(device.memory().live).toMatchObject({ parameter: 12, activation: 0, total: 12 });
    expect(device.memory().peak).toMatchObject({ parameter: 12, activation: 40, total: 52 });
    device.ledger.resetPeak();
    expect(device.memory().peak).toMatchObject({ parameter: 12, activation: 0, total: 12 });
    weight.storage.tag = 'optimizer';
    expect(device.memory().live).toMatchObject({ parameter: 0, optimizer: 12, total: 12 });
    expect(device.memory().peak).toMatchObject({ parameter: 12, optimizer: 12, total: 12 });
    weight.dispose();
    expect(live()).toBe(0);
  });

  test('knows what it held when the total was at its peak, not each tag at its own', () => {
    const early = device.zeros([10], { tag: 'gathered' });
    early.dispose();
    const weight = device.zeros([5], { tag: 'parameter' });
    const late = device.zeros([9]);
    expect(device.ledger.atPeak()).toMatchObject({ parameter: 20, activation: 36, total: 56 });
    late.dispose();
    const small = device.zeros([1], { tag: 'gradient' });
    const { peak } = device.memory();
    expect(peak).toMatchObject({ gathered: 40, activation: 36, gradient: 4, total: 56 });
    const mix = { parameter: 20, activation: 36, gathered: 0, gradient: 0, total: 56 };
    expect(device.ledger.atPeak()).toMatchObject(mix);
    device.ledger.resetPeak();
    const now = { parameter: 20, activation: 0, gradient: 4, total: 24 };
    expect(device.ledger.atPeak()).toMatchObject(now);
    weight.dispose();
    small.dispose();
    expect(device.ledger.atPeak()).toMatchObject(now);
  });

  test('an absent storage counts nothing, and its tag may change meanwhile', () => {
    const storage = device.storage(8, 'f32', 'gathered');
    expect(live()).toBe(0);
    storage.fill();
    storage.fill();
    expect(live('gathered')).toBe(32);
    storage.free();
    storage.tag = 'staging';
    expect(live()).toBe(0);
    storage.fill();
    expect(live('staging')).toBe(32);
    storage.release();
    expect(live()).toBe(0);
  });

  test('storageBytes is whole words, at least one', () => {
    expect([0, 1, 2, 3].map((count) => storageBytes(count, 'bf16'))).toEqual([4, 4, 4, 8]);
    expect([0, 1, 2, 3].map((count) => storageBytes(count, 'f32'))).toEqual([4, 4, 8, 12]);
  });
});

describe('the pool', () => {
  test('hands freed buffers out again, the oldest first, by size class', () => {
    const [a, b] = [device.zeros([60]), device.zeros([64])];
    const [first, second] = [a.view().buffer, b.view().buffer];
    a.dispose();
    b.dispose();
    expect(device.zeros([1]).view().buffer).toBe(first);
    expect(device.zeros([64]).view().buffer).toBe(second);
    expect(device.memory()).toMatchObject({ bufferCount: 2, reservedBytes: 512 });
    expect(backend.usage()).toEqual({ bytes: 512, buffers: 2 });
  });

  test('trim gives back what is free and keeps what is used', () => {
    const kept = device.zeros([4]);
    device.zeros([1000]).dispose();
    device.pool.trim();
    expect(backend.usage()).toEqual({ bytes: 256, buffers: 1 });
    expect(device.memory()).toMatchObject({ bufferCount: 1, reservedBytes: 256 });
    kept.dispose();
  });

  test('size classes hold the request, waste at most an eighth when large, and are stable', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 2 ** 31 }), (bytes) => {
        const size = sizeClass(bytes);
        expect(size % 4).toBe(0);
        expect(size).toBeGreaterThanOrEqual(bytes);
        expect(size - bytes).toBeLessThan(Math.max(256, bytes / 8 + 1));
        expect(sizeClass(size)).toBe(size);
      }),
    );
  });
});

describe('scopes', () => {
  test('free what is neither returned nor saved, in any container', () => {
    const [a, { b }] = device.scope(() => {
      const made = device.zeros([64]);
      tanh(made);
      return [made, { b: new Map([['x', new Set([square(made)])]]) }] as const;
    });
    expect(live()).toBe(512);
    a.dispose();
    [...b.get('x')!][0]!.dispose();
    expect(live()).toBe(0);
  });

  test('hold what is saved for backward until then, or until the outermost ends', async () => {
    const x = device.tensor([1, 2], [2], { requiresGrad: true });
    await device.scope(async () => {
      const loss = device.scope(() => sum(square(tanh(x)))); // This saves the result of tanh.
      expect(live('activation')).toBe(8 + 4 + 8);
      await loss.backward();
      expect(live('activation')).toBe(8 + 4);
      device.scope(() => {
        sum(square(tanh(x)));
      });
      expect(live('activation')).toBe(8 + 4 + 8);
    });
    expect(live('activation')).toBe(8);
  });

  test('the outermost keeps the graph of what it returns', async () => {
    const x = device.tensor([1, 2], [2], { requiresGrad: true });
    const loss = device.scope(() => {
      sum(tanh(tanh(x))); // This graph is needed by nothing that is returned.
      return sum(square(tanh(x)));
    });
    expect(live('activation')).toBe(8 + 4 + 8);
    await loss.backward();
    loss.dispose();
    expect(live('activation')).toBe(8);
  });

  test('nest: what an inner one returns lives until the outer one ends', () => {
    device.scope(() => {
      const x = device.scope(() => device.scope(() => device.zeros([4])));
      expect(live()).toBe(16);
      device.scope(() => x);
      expect(live()).toBe(16);
    });
    expect(live()).toBe(0);
  });

  test('nest: a view that an inner one returns is freed with the outer one, and holds nothing twice', () => {
    device.scope(() => {
      const x = device.zeros([6]);
      const view = device.scope(() => reshape(x, [2, 3]));
      expect(view.storage.holds).toBe(1);
      const [again, other] = device.scope(() => [reshape(view, [6]), reshape(x, [3, 2])]);
      expect([again!.storage.holds, other!.storage.holds]).toEqual([1, 1]);
      expect(live()).toBe(24);
    });
    expect(live()).toBe(0);
  });

  test('asynchronous ones end when their promise does, also when it rejects', async () => {
    const x = await device.scope(async () => {
      const made = device.zeros([4]);
      await pause();
      tanh(made);
      return device.scope(async () => {
        await pause();
        return square(made);
      });
    });
    expect(live()).toBe(16);
    x.dispose();
    const failing = device.scope(async () => {
      device.zeros([4]);
      await pause();
      throw new Error('inside');
    });
    await expect(failing).rejects.toThrow('inside');
    expect(() =>
      device.scope(() => {
        device.zeros([4]);
        throw new Error('at once');
      }),
    ).toThrow('at once');
    expect(live()).toBe(0);
  });

  test('scopes of two strands throw, free what they held, and the device recovers', async () => {
    let release = () => {};
    const gate = new Promise<void>((resolve) => {
      release = resolve;
    });
    const first = device.scope(async () => {
      device.zeros([4]);
      await gate;
    });
    const second = device.scope(async () => {
      device.zeros([4]);
      await pause();
      return device.zeros([1]);
    });
    release();
    await expect(first).rejects.toThrow(StateError);
    await expect(first).rejects.toThrow(/Two strands/);
    (await second).dispose();
    expect(live()).toBe(0);
    device.scope(() => device.zeros([4]));
    expect(live()).toBe(16);
  });

  test('views hold their storage; returned ones are each disposed on their own', () => {
    const x = device.zeros([6]);
    const y = device.scope(() => reshape(reshape(x, [2, 3]), [3, 2]));
    x.dispose();
    expect(live()).toBe(24);
    y.dispose();
    expect(live()).toBe(0);
    const [a, b] = device.scope(() => {
      const made = device.zeros([6]);
      return [made, reshape(made, [2, 3])];
    });
    a!.dispose();
    expect(live()).toBe(24);
    b!.dispose();
    expect(live()).toBe(0);
    const weight = device.zeros([6]);
    device.scope(() => {
      reshape(weight, [2, 3]);
      return weight; // This tensor belongs to the caller already.
    });
    weight.dispose();
    expect(live()).toBe(0);
  });
});

describe('keep and dispose', () => {
  test('kept tensors outlive their scope', () => {
    const kept = device.scope(() => {
      const made = device.zeros([4]).keep();
      return { release: () => made.dispose() };
    });
    expect(live()).toBe(16);
    kept.release();
    expect(live()).toBe(0);
  });

  test('dispose inside a scope frees early, and leaves the graph its hold', async () => {
    const x = device.tensor([3], [1], { requiresGrad: true });
    await device.scope(async () => {
      const temporary = device.zeros([4]);
      temporary.dispose();
      temporary.dispose();
      expect(live('activation')).toBe(4);
      const loss = device.scope(() => {
        const y = tanh(x);
        const result = square(y);
        y.dispose();
        return result;
      });
      await loss.backward();
    });
    expect(live('activation')).toBe(4);
  });

  test('a tensor used after it was freed says so', async () => {
    const x = device.zeros([4]);
    x.dispose();
    expect(() => tanh(x)).toThrow(DisposedError);
    await expect(x.toArray()).rejects.toThrow(/tensor\.keep\(\)/);
    expect(() => x.storage.fill()).toThrow(DisposedError);
    const lost = device.scope(() => ({ read: device.zeros([4]).view.bind(device.zeros([1])) }));
    expect(() => lost.read()).toThrow(DisposedError);
  });

  test('device.dispose gives back all buffers, also those of living tensors', async () => {
    const other = new Device(backend);
    const theirs = other.zeros([4]);
    const mine = device.zeros([1000]);
    device.dispose();
    device.dispose();
    expect(device.memory()).toMatchObject({ bufferCount: 0, reservedBytes: 0 });
    expect(live()).toBe(0);
    expect(backend.usage()).toEqual({ bytes: 256, buffers: 1 });
    expect(() => device.zeros([1])).toThrow(DisposedError);
    await expect(mine.toArray()).rejects.toThrow(/device was disposed/);
    mine.dispose();
    expect(live()).toBe(0);
    expect([...(await theirs.toArray())]).toEqual([0, 0, 0, 0]);
  });
});

describe('storage', () => {
  test('freed after forward and refilled before backward gives right gradients', async () => {
    const bytes = (values: readonly number[]) => new Uint8Array(Float32Array.from(values).buffer);
    const storage = device.storage(4, 'f32', 'gathered');
    const x = device.tensor([1, 2], [1, 2], { requiresGrad: true });
    const weight = device.zeros([2, 2], { requiresGrad: true });
    weight.rebind(storage, 0);
    storage.fill();
    storage.write(bytes([1, 2, 3, 4]));
    await device.scope(async () => {
      // The product x w is [7, 10].
      const loss = device.scope(() => sum(square(matmul(x, weight))));
      storage.free();
      expect(live('gathered')).toBe(0);
      expect(() => weight.view()).toThrow(StateError);
      device.zeros([4]); // This takes the buffer that was freed.
      device.beforeGradientOf(loss, () => {
        storage.fill();
        storage.refill(() => storage.write(bytes([1, 2, 3, 4])));
      });
      await loss.backward();
    });
    expect([...(await x.grad!.toArray())]).toEqual([14 + 40, 42 + 80]);
    expect([...(await weight.grad!.toArray())]).toEqual([14, 20, 28, 40]);
  });

  test('counts versions at writes, and refuses writes that would clobber a neighbor', () => {
    const storage = device.storage(5, 'f16', 'parameter');
    expect(() => storage.write(new Uint8Array(4))).toThrow(StateError);
    storage.fill();
    storage.write(new Uint8Array(4), 4);
    storage.write(new Uint8Array(2), 8);
    expect(storage.version).toBe(2);
    for (const [length, offset] of [
      [2, 0],
      [4, 2],
      [16, 0],
      [4, -4],
    ] as const) {
      expect(() => storage.write(new Uint8Array(length), offset)).toThrow(ShapeError);
    }
    expect(() => device.zeros([6]).rebind(storage, 0)).toThrow(ShapeError);
  });

  test('further releases do nothing', () => {
    const storage = device.storage(5, 'f16', 'parameter');
    storage.fill();
    storage.retain();
    storage.release();
    expect(live()).toBe(12);
    storage.release();
    storage.release();
    expect(live()).toBe(0);
    expect(storage.holds).toBe(0);
    expect(() => storage.retain()).toThrow(DisposedError);
  });
});
