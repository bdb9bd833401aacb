// Reads a row of an operand with strides: where it lies (stride 1), as one repeated value (stride
// 0), or gathered into scratch.

import { loadFloat, widen } from './convert';

/**
 * Returns the address of n values as f32, read with a step: their own where they are f32 with a
 * step of 1, else in scratch.
 */
export function floats(base: usize, dtype: i32, at: u32, step: u32, n: i32, scratch: usize): usize {
  if (step == 1) {
    return widen(base, dtype, at, n, scratch);
  }
  if (step == 0) {
    const v = f32x4.splat(loadFloat(base, dtype, at));
    for (let i = 0; i < n; i += 4) {
      v128.store(scratch + (i << 2), v);
    }
    return scratch;
  }
  for (let i = 0; i < n; i++) {
    store<f32>(scratch + (i << 2), loadFloat(base, dtype, at));
    at += step;
  }
  return scratch;
}

/**
 * Returns the address of n words, read with a step: their own where the step is 1, else in scratch.
 */
export function words(base: usize, at: u32, step: u32, n: i32, scratch: usize): usize {
  if (step == 1) {
    return base + ((<usize>at) << 2);
  }
  for (let i = 0; i < n; i++) {
    store<u32>(scratch + (i << 2), load<u32>(base + ((<usize>at) << 2)));
    at += step;
  }
  return scratch;
}
