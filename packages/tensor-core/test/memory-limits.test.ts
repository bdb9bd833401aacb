// These tests keep a device under a limit: what the pool gives back, what a dry run finds and what
// ops save.

import {
  add,
  type Backend,
  Device,
  DisposedError,
  LimitError,
  matmul,
  max,
  OutOfMemoryError,
  StateError,
  type Storage,
  square,
  sum,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

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
    device.zeros([300]).dispose(); // This takes 1,280 bytes, for which the large free block goes.
    expect(device.pool).toMatchObject({ reservedBytes: 512 + 1280 + 256, inUseBytes: 256 });
    device.pool.limitBytes = 1280 + 256;
    expect(() => device.zeros([400])).toThrow(LimitError);
    expect(device.pool).toMatchObject({ reservedBytes: 512 + 1280 + 256, inUseBytes: 256 });
    // This fits the free block, although the pool then holds more than its limit.
    device.zeros([257]).dispose();
    device.zeros([200]).dispose();
    expect(device.pool.reservedBytes).toBe(1024 + 256); // Both free blocks had to go.
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

describe('a device without room', () => {
  const MIB = 2 ** 18; // This is the number of f32 elements in a MiB.
  let cpu: Backend;
  beforeEach(async () => {
    cpu = await createCpuBackend({ threads: 0, memoryBytes: 40 * 2 ** 20 });
    device = new Device(cpu);
  });
  afterEach(() => cpu.dispose());

  test('is given free buffers back before an allocation fails', async () => {
    for (const mib of [9, 10, 11]) {
      device.zeros([mib * MIB]).dispose(); // No two of these sizes fit one class.
    }
    const large = device.full([24 * MIB], 3);
    expect(device.memory().reservedBytes).toBe(24 * 2 ** 20);
    expect(await max(large).item()).toBe(3);
  });

  test('gets free buffers back before its memory grows, since memory never shrinks', async () => {
    for (const mib of [9, 10, 11, 12]) {
      device.zeros([mib * MIB]).dispose(); // No two of these sizes fit one class.
    }
    const error = await Promise.resolve()
      .then(() => device.zeros([39 * MIB]))
      .catch((reason: unknown) => reason);
    // This covers the last of the tensors, the kernels, the stacks and what is staged on the host,
    // but not two of the tensors.
    expect((error as { cause: OutOfMemoryError }).cause.reservedBytes).toBeLessThan(24 * 2 ** 20);
  });

  test('is relieved by the pools of other ranks on the same backend', () => {
    const other = new Device(cpu);
    other.zeros([24 * MIB]).dispose();
    device.zeros([24 * MIB]);
    expect(other.memory().reservedBytes).toBe(0);
    other.dispose();
    expect(device.pool.inUseBytes).toBe(24 * 2 ** 20);
  });

  test('fails the call that asked, with what it knew, and computes on', async () => {
    const held = device.full([18 * MIB], 1);
    const error = await Promise.resolve()
      .then(() => device.scope(() => add(held, held)))
      .catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect(error).toMatchObject({
      requestedBytes: 18 * 2 ** 20,
      liveBytes: 18 * 2 ** 20,
      reservedBytes: 18 * 2 ** 20,
      limitBytes: 40 * 2 ** 20,
    });
    expect(device.memory().live.total).toBe(18 * 2 ** 20);
    const small = device.full([MIB], 2);
    expect(await device.scope(() => max(small).item())).toBe(2);
    for (const tensor of [held, small]) {
      tensor.dispose();
    }
    // Memory that was never handed out continues the free bytes before it.
    expect(await max(device.full([24 * MIB], 5)).item()).toBe(5);
  });

  test('other failures of an allocation are passed on without a second try', () => {
    let attempts = 0;
    const broken = createReferenceBackend();
    broken.alloc = () => {
      attempts += 1;
      throw new StateError('broken');
    };
    expect(() => new Device(broken).zeros([1])).toThrow(StateError);
    expect(attempts).toBe(1);
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
      await device.dryRun(() => square(weight)); // No backward frees this graph.
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

  test('is refused on a device that was disposed', async () => {
    const gone = new Device(backend);
    gone.dispose();
    await expect(gone.dryRun(() => gone.zeros([1]))).rejects.toThrow(DisposedError);
  });
});

test('watchSaved tells what ops save, until it is removed', () => {
  const x = device.full([3], 1, { requiresGrad: true });
  const saved: Storage[] = [];
  const remove = device.autograd.watchSaved((storage) => saved.push(storage));
  const y = square(x);
  remove();
  square(y);
  expect(saved).toEqual([x.storage]);
});
