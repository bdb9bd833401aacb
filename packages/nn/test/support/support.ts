// The tests of nn share devices on the float64 reference backend, functions that read values, and
// gradients by central differences.

import { Device, type DeviceOptions, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect } from 'vitest';

export function makeDevice(options: DeviceOptions = {}): Device {
  return new Device(createReferenceBackend(), options);
}

/** Returns values in (-1, 1) that depend on nothing but the seed. */
export function values(count: number, seed = 1): number[] {
  let state = seed >>> 0;
  return Array.from({ length: count }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.fround((state / 2 ** 31 - 1) * 0.999);
  });
}

export async function read(tensor: Tensor): Promise<number[]> {
  return [...(await tensor.toArray())];
}

/** Expects every element to be within absolute + relative tolerance of the expected one. */
export function expectClose(
  actual: ArrayLike<number>,
  expected: ArrayLike<number>,
  tolerance = 1e-5,
): void {
  expect(actual.length).toBe(expected.length);
  for (let i = 0; i < expected.length; i++) {
    const error = Math.abs(actual[i]! - expected[i]!) / (1 + Math.abs(expected[i]!));
    if (!(error <= tolerance)) {
      expect.fail(`element ${i}: expected ${expected[i]}, got ${actual[i]} (error ${error})`);
    }
  }
}

/**
 * Compares the gradients that backward of `loss()` leaves in `leaves` with central differences. The
 * loss is stored in f32 and so rounded, which is why step and tolerance are wide.
 */
export async function expectGradients(
  leaves: readonly Tensor[],
  loss: () => Promise<Tensor>,
  options: { readonly step?: number; readonly tolerance?: number } = {},
): Promise<void> {
  const { step = 1e-2, tolerance = 2e-3 } = options;
  const { device } = leaves[0]!;
  await device.scope(async () => device.backward(await loss()));
  for (const leaf of leaves) {
    expect(leaf.grad, `gradient of ${leaf.name}`).toBeDefined();
    const gradient = await read(leaf.grad!);
    const start = Float32Array.from(await leaf.toArray());
    const at = async (index: number, delta: number): Promise<number> => {
      const moved = start.slice();
      moved[index]! += delta;
      leaf.storage.write(new Uint8Array(moved.buffer), leaf.offset * 4);
      return device.noGrad(() => device.scope(async () => (await loss()).item()));
    };
    const numeric: number[] = [];
    for (let i = 0; i < start.length; i++) {
      numeric.push(((await at(i, step)) - (await at(i, -step))) / (2 * step));
    }
    leaf.storage.write(new Uint8Array(start.buffer), leaf.offset * 4);
    expectClose(gradient, numeric, tolerance);
  }
}
