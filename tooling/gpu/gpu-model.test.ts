// The model by which reports predict what a GPU takes that nobody ran.

import { expect, it } from 'vitest';
import { CHIPS, GUESSES, secondsOf } from '../../bench/kernels/gpu-model.mjs';

const FLOPS = 1e10; // of a workgroup, so that the fixed time of a dispatch is next to nothing

/** The seconds of a product with so many tiles. */
function product(workgroups: number, chip = CHIPS.H100, guess = GUESSES.likely) {
  const dispatch = {
    kernel: 'matmul NN f32 f32 to f32 wide a b out shared 128x128x8/8',
    ...{ workgroups, invocations: 256 * workgroups, flops: FLOPS * workgroups },
    ...{ bytesRead: 0, bytesWritten: 0 },
  };
  return secondsOf(dispatch, chip, guess);
}

it('a product reaches its share of the peak where all rounds of workgroups are full', () => {
  const share = (264 * FLOPS) / product(264) / (132 * 128 * 2 * 1.98e9);
  expect(share).toBeCloseTo(0.55, 4);
  expect(product(528) / product(264)).toBeCloseTo(2, 4);
});

it('a workgroup of the last round that has a processor for itself takes more than half a round', () => {
  expect(product(384) / product(264)).toBeCloseTo(1 + 0.5 / 0.79, 3);
  expect(product(400) / product(264)).toBeCloseTo(2, 3);
});

it('the range goes from the best guess to the worst, and more memory does not help a product', () => {
  expect(product(264, CHIPS.H100, GUESSES.best)).toBeLessThan(product(264));
  expect(product(264, CHIPS.H100, GUESSES.worst)).toBeGreaterThan(product(264));
  expect(product(264, CHIPS.H200)).toBe(product(264));
});
