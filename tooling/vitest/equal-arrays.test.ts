import { expect, it } from 'vitest';
import { equalArrays } from './equal-arrays.ts';

const floats = (...values: readonly number[]) => Float32Array.from(values);

it.each([
  [floats(1, Number.NaN, -0), floats(1, Number.NaN, -0), true],
  [floats(0), floats(-0), false],
  [floats(1), floats(1, 2), false],
  [floats(1, 2), floats(1), false],
  [floats(1), Float64Array.of(1), undefined],
  [floats(1), [1], undefined],
  [Buffer.of(7), Uint8Array.of(7), true],
  [[1, 'a', undefined], [1, 'a', undefined], true],
  [[{}], [{}], undefined],
  [[1], [2], undefined],
  [new DataView(new ArrayBuffer(1)), new DataView(new ArrayBuffer(1)), undefined],
  [{}, {}, undefined],
])('%o beside %o: %s', (a, b, isEqual) => {
  expect(equalArrays(a, b)).toBe(isEqual);
});

it('vitest compares arrays of numbers by their elements alone', () => {
  expect({ a: Object.assign(floats(1), { more: 2 }) }).toEqual({ a: floats(1) });
});
