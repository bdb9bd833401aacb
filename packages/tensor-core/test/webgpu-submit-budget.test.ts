// How much work a submit holds follows the speed of the device, as far as submits and the news of
// their completion tell it. The clock of these tests is theirs.

import type { BackendBuffer, KernelCalls, View } from '@shardweave/tensor-core';
import { createWebGpuBackend, type PlannedDispatch } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { SubmitBudget } from '../src/backends/webgpu/queue/submit-budget.js';
import { WebGpuBackend } from '../src/backends/webgpu/webgpu-backend.js';
import { product } from './support/webgpu-kit.js';

describe('the budget of a submit', () => {
  let nowMs: number;
  let serial: number;
  let budget: SubmitBudget;
  const make = (options: Partial<ConstructorParameters<typeof SubmitBudget>[0]> = {}) =>
    new SubmitBudget({ fixedFlops: undefined, whenDone: undefined, now: () => nowMs, ...options });
  beforeEach(() => {
    [nowMs, serial] = [1000, 0];
    budget = make();
  });

  /** Has a device of `flopsPerMs` run full submits, of whose end the host hears `lateMs` late. */
  function run(flopsPerMs: number, { submits = 1, lateMs = 0 } = {}): void {
    const flops = submits * budget.flops;
    for (let i = 0; i < submits; i++) {
      budget.submitted(++serial, budget.flops);
    }
    nowMs += flops / flopsPerMs + lateMs;
    budget.completed(serial);
  }

  function settle(flopsPerMs: number, options?: Parameters<typeof run>[1]): number {
    for (let i = 0; i < 20; i++) {
      run(flopsPerMs, options);
    }
    return budget.flops;
  }

  test('begins small, and doubles at most', () => {
    expect(budget.flops).toBe(5e9);
    run(1e12);
    expect(budget.flops).toBe(10e9);
    run(1e12);
    expect(budget.flops).toBe(20e9);
  });

  test.each([
    ['an integrated GPU of 100 GFLOP/s', 1e8, 7.5e9],
    ['a GPU of 1 TFLOP/s', 1e9, 75e9],
    ['the largest, within bounds', 35e9, 200e9],
    ['the slowest, within bounds', 1e6, 1e9],
  ])('is what the device does in 75 ms: %s', (_, flopsPerMs, flops) => {
    expect(settle(flopsPerMs)).toBeCloseTo(flops, -3);
  });

  test('is some 75 ms of a step of many submits, of which the host hears late', () => {
    const flops = settle(1e9, { submits: 10, lateMs: 8 });
    expect(flops).toBeGreaterThan(70e9);
    expect(flops).toBeLessThanOrEqual(75e9);
  });

  test('outlives a shader that is compiled first, and a clock that stood still', () => {
    settle(1e9);
    run(1e9, { lateMs: 30_000 });
    run(Number.POSITIVE_INFINITY);
    run(1e9, { lateMs: 5000 });
    expect(budget.flops).toBeCloseTo(75e9, -3);
  });

  test('follows a device that slows down', () => {
    settle(1e9);
    expect(settle(2e8)).toBeCloseTo(15e9, -3);
  });

  test('heeds no work that is short beside a submit', () => {
    for (let i = 0; i < 10; i++) {
      budget.submitted(++serial, 1e9);
      nowMs += 500;
      budget.completed(serial);
    }
    expect(budget.flops).toBe(5e9);
  });

  test('counts from the first submit that was not known complete', () => {
    budget.submitted(1, 5e9);
    budget.submitted(2, 5e9);
    nowMs += 50;
    budget.completed(1);
    nowMs += 50;
    // Submit 2 has run for 100 ms at most, and so has done 50 MFLOP per ms at least.
    budget.completed(2);
    expect(budget.flops).toBeCloseTo(3.75e9, -3);
  });

  test('stays where it was given', () => {
    budget = make({ fixedFlops: 7e9 });
    expect(settle(1e9)).toBe(7e9);
  });

  test('is asked for where nobody reads, one question at a time', () => {
    const asked: (() => void)[] = [];
    budget = make({ whenDone: (done) => void asked.push(done) });
    for (let i = 0; i < 6; i++) {
      budget.submitted(++serial, 5e9);
    }
    expect(asked).toHaveLength(1);
    nowMs += 20; // Four submits of 5 GFLOP are 1 TFLOP/s.
    asked[0]!();
    expect(budget.flops).toBe(10e9);
    for (let i = 0; i < 100; i++) {
      budget.submitted(++serial, 10e9);
    }
    expect(asked).toHaveLength(2);
    nowMs += 20;
    asked[1]!();
    expect(budget.flops).toBe(20e9);
  });

  test('is asked for by nobody who reads often enough', () => {
    const whenDone = vi.fn();
    budget = make({ whenDone });
    settle(1e9, { submits: 2 });
    expect(whenDone).not.toHaveBeenCalled();
  });
});

describe('a backend on a driver that computes nothing', () => {
  const [m, k] = [4096, 2048];
  const N = 2048;
  const FLOPS = 2 * m * N * k;
  let nowMs: number;
  let gpu: GPUDevice;
  beforeEach(async () => {
    nowMs = 5000;
    const adapter = await openNodeGpu({ flags: ['backend=null'] }).requestAdapter();
    gpu = await adapter!.requestDevice();
    vi.spyOn(performance, 'now').mockImplementation(() => nowMs);
  });
  afterEach(() => {
    vi.restoreAllMocks();
    gpu.destroy();
  });

  /** Makes a product, which by default is one of 34 GFLOP. */
  function productOf(backend: WebGpuBackend, n = N): KernelCalls['matmul'] {
    const read: BackendBuffer = backend.alloc(4 * Math.max(m, n) * k, 'read');
    const view = (size: number): View => ({ buffer: read, byteOffset: 0, dtype: 'f32', size });
    const out = { ...view(m * n), buffer: backend.alloc(4 * m * n, 'out') };
    const call = product({ m, n, k, transposeA: false, transposeB: false });
    return { a: view(m * k), b: view(k * n), out, bias: undefined, ...call };
  }

  /** Queues the product, and tells how many submits it took. */
  function multiply(backend: WebGpuBackend, call: KernelCalls['matmul']): number {
    const before = backend.statistics().submits;
    backend.run('matmul', call);
    backend.flush();
    return backend.statistics().submits - before;
  }

  test('cuts work by the speed at which waits end, and asks the queue nothing in Node', async () => {
    const asked = vi.spyOn(gpu.queue, 'onSubmittedWorkDone');
    const backend = await createWebGpuBackend({ device: gpu, kernelProfile: 'hardware' });
    const call = productOf(backend);
    const counts: number[] = [];
    for (let i = 0; i < 4; i++) {
      counts.push(multiply(backend, call));
      nowMs += FLOPS / 5e9; // This is a GPU of 5 TFLOP/s, which takes 7 ms for it.
      await backend.sync();
    }
    // 32 rows of tiles of 1.07 GFLOP are 8 submits of 5 GFLOP, 4 of 10, 2 of 20 and 1 of 40.
    expect(counts).toEqual([8, 4, 2, 1]);
    expect(asked).not.toHaveBeenCalled();
    await backend.dispose();
  });

  test('asks the queue in a page that reads nothing', async () => {
    const backend = new WebGpuBackend({
      device: gpu,
      info: { vendor: '', architecture: '', device: '', description: '' } as GPUAdapterInfo,
      ownsDevice: false,
      isPaced: false,
      maxBindingBytes: 2 ** 27,
      maxFlops: undefined,
      mayAskQueue: true,
      kernelProfile: 'hardware',
      tuningStore: undefined,
    });
    const call = productOf(backend);
    expect(multiply(backend, call)).toBe(8);
    nowMs += FLOPS / 5e9;
    // The answer comes in a turn of its own.
    await vi.waitFor(() => expect(multiply(backend, call)).toBeLessThan(8), {
      timeout: 10_000,
      interval: 1,
    });
    await backend.dispose();
  });

  test('plans the same whatever the measured speed is', async () => {
    const backend = await createWebGpuBackend({ device: gpu, kernelProfile: 'hardware' });
    const call = productOf(backend, 2 * N);
    const plan = () => {
      const found: PlannedDispatch[] = [];
      backend.onPlannedDispatch((dispatch) => found.push(dispatch));
      backend.planScratch('matmul', call, { take: () => call.out.buffer, give: () => {} });
      backend.onPlannedDispatch(undefined);
      return found;
    };
    const before = plan();
    expect(before).toHaveLength(2); // 69 GFLOP in parts of up to 50
    for (let i = 0; i < 4; i++) {
      multiply(backend, call);
      nowMs += (2 * FLOPS) / 5e9;
      await backend.sync();
    }
    expect(multiply(backend, call)).toBe(1);
    expect(plan()).toEqual(before);
    await backend.dispose();
  });
});
