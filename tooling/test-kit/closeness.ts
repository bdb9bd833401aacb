// How far values may be from those that they are compared with. It depends on no test runner.

import assert from 'node:assert/strict';

/**
 * How far losses and weights of a few steps may be from those of one process in f32, by the dtype
 * that computes. Steps are below a tenth. In f32 sums are rounded in another order, and every
 * device sums in f32. The 16-bit dtypes round each value to 11 and 8 bits.
 */
export const TOLERANCE = { f32: 2e-6, f16: 5e-4, bf16: 4e-3 } as const;

type Values = ArrayLike<number> | ReadonlyMap<string, ArrayLike<number>>;

/** Expects values, or maps of values by name, within an absolute tolerance of one another. */
export function expectClose(
  actual: Values,
  expected: Values,
  tolerance: number = TOLERANCE.f32,
  what = 'value',
): void {
  if ('length' in actual && 'length' in expected) {
    assert.equal(actual.length, expected.length, `${what}: how many`);
    for (let i = 0; i < actual.length; i++) {
      if (!(Math.abs(actual[i]! - expected[i]!) <= tolerance)) {
        assert.fail(`${what}[${i}]: expected ${expected[i]} +- ${tolerance}, got ${actual[i]}`);
      }
    }
  } else {
    const [found, wanted] = [namedIn(actual), namedIn(expected)];
    assert.deepEqual([...found.keys()].sort(), [...wanted.keys()].sort());
    for (const [name, values] of found) {
      expectClose(values, wanted.get(name)!, tolerance, name);
    }
  }
}

function namedIn(values: Values): ReadonlyMap<string, ArrayLike<number>> {
  return 'length' in values ? assert.fail('expected two maps, or two arrays') : values;
}

/** Returns the largest difference of two lists of values. */
export function largestDifference(a: ArrayLike<number>, b: ArrayLike<number>): number {
  return Array.from(a).reduce((most, value, i) => Math.max(most, Math.abs(value - b[i]!)), 0);
}
