// Keeping a device under a limit: what the pool gives back, what a dry run finds, what ops save.

import {
  Device,
  LimitError,
  matmul,
  StateError,
  type Storage,
  square,
  sum,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { beforeEach, describe, expect, test } from 'vitest';

let backend: ReturnType<typeof createReferenceBackend>;
let device: Device;
beforeEach(() => {
  backend = createReferenceBackend();
  device = new Device(backend);
});

describe('the pool', () => {
  test('a limit is kept by giving back free buffers, the largest first', () => {
    const [small, large, used] = [100, 1000, 64].map((size) => device.zeros([size]));
    small!.dispose();
    large!.dispose();
    device.pool.limitBytes = 512 + 4096 + 256;
    device.zeros([300]).dispose(); // 1,280 bytes: the large one goes
    expect(device.pool).toMatchObject({ reservedBytes: 512 + 1280 + 256, inUseBytes: 256 });
    device.pool.limitBytes = 1280 + 256;
    expect(() => device.zeros([400])).toThrow(LimitError);
    expect(device.pool).toMatchObject({ reservedBytes: 512 + 1280 + 256, inUseBytes: 256 });
    device.zeros([257]).dispose(); // fits the free one, though what is held passes the limit
    device.zeros([200]).dispose();
    expect(device.pool.reservedBytes).toBe(1024 + 256); // both free ones had to go
    expect(used!.view().size).toBe(64);
  });

  test('peakInUseBytes is the lowest limit that the same work runs under', () => {
    const work = () => device.scope(() => void sum(square(tanh(device.zeros([500])))));
    work();
    const peak = device.pool.peakInUseBytes;
    device.pool.trim();
    device.pool.limitBytes = peak;
    work();
    expect(device.pool.reservedBytes).toBeLessThanOrEqual(peak);
    device.pool.trim();
    device.pool.limitBytes = peak - 1;
    expect(work).toThrow(LimitError);
    device.pool.trim();
    device.pool.resetPeak();
    expect(device.pool.peakInUseBytes).toBe(0);
  });
});

describe('dryRun', () => {
  const step = async (weight: Tensor) => {
    await sum(square(matmul(weight, weight))).backward();
    weight.grad!.dispose();
    weight.grad = undefined;
  };

  test('finds the peak of a real run and touches nothing', async () => {
    const weight = device.full([40, 40], 2, { requiresGrad: true });
    await device.scope(() => step(weight));
    const real = device.pool.peakInUseBytes - device.pool.inUseBytes;
    const before = { memory: device.memory(), usage: backend.usage(), runs: backend.dispatches };
    await device.scope(async () => {
      const { peakInUseBytes } = await device.dryRun(() => step(weight));
      expect(peakInUseBytes).toBe(real);
      await device.dryRun(() => square(weight)); // a graph that no backward frees
    });
    expect({ memory: device.memory(), usage: backend.usage(), runs: backend.dispatches }).toEqual(
      before,
    );
    expect((await weight.toArray())[0]).toBe(2);
  });

  test('restores the device after a failure, and refuses to free what was there', async () => {
    const weight = device.full([2], 3).keep();
    device.random.begin({ step: 4, rowOffset: 0 });
    const random = device.random.state();
    const failing = device.dryRun(() => {
      device.random.begin({ step: 5, rowOffset: 1 });
      weight.dispose();
    });
    await expect(failing).rejects.toThrow(StateError);
    expect(device.random.state()).toEqual(random);
    expect(device.backend).toBe(backend);
  });
});

test('watchSaved tells what ops save, until it is removed', () => {
  const x = device.full([3], 1, { requiresGrad: true });
  const saved: Storage[] = [];
  const remove = device.watchSaved((storage) => saved.push(storage));
  const y = square(x);
  remove();
  square(y);
  expect(saved).toEqual([x.storage]);
});
