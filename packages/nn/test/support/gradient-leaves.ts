import type { Device, Tensor } from '@shardweave/tensor-core';
import { values } from './support.js';

/** Returns three leaves with 6, 3 and 1 elements. */
export function leaves(device: Device): Tensor[] {
  return [[2, 3], [3], [1]].map((shape, i) => {
    const count = shape.reduce((a, b) => a * b);
    return device.tensor(values(count, 10 + i), shape, { requiresGrad: true });
  });
}

/** Returns a gradient that is different in each step, so that moving averages matter. */
export function gradientAt(step: number, leaf: number, size: number): number[] {
  return values(size, 100 * step + leaf + 1);
}

export function setGradients(params: readonly Tensor[], step: number): void {
  params.forEach((param, i) => {
    param.grad?.dispose();
    const tag = { tag: 'gradient' } as const;
    param.grad = param.device.tensor(gradientAt(step, i, param.size), param.shape, tag);
  });
}
