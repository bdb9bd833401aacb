// These properties relate the ops that move and broadcast, over random shapes and dtypes, bit for
// bit.

import {
  add,
  broadcastTo,
  cat,
  Device,
  type DType,
  maximum,
  mul,
  reshape,
  slice,
  split,
  sub,
  sum,
  type Tensor,
  transpose,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

const device = new Device(createReferenceBackend());
const dtypes = fc.constantFrom<DType>('f32', 'f16', 'bf16', 'i32', 'u32');
const dim = fc.integer({ min: 1, max: 5 });
const shapes = fc.array(dim, { maxLength: 4 });
const nonEmptyShapes = fc.array(dim, { minLength: 1, maxLength: 4 });
const runs = { numRuns: 100, seed: 20261121 };

const sizeOf = (shape: readonly number[]) => shape.reduce((a, b) => a * b, 1);

/**
 * Makes a tensor of the whole numbers 0 to 250 in turn. They are exact in every dtype, and a
 * misplaced one shows.
 */
function counting(shape: readonly number[], dtype: DType): Tensor {
  const values = Array.from({ length: sizeOf(shape) }, (_, i) => i % 251);
  return device.tensor(values, shape, { dtype });
}

async function valuesOf(tensor: Tensor): Promise<number[]> {
  return [...(await tensor.toArray())];
}

/** Runs a check in a scope that must leave nothing behind. */
async function inScope(body: () => Promise<void>): Promise<void> {
  const before = device.memory().live.total;
  await device.scope(body);
  expect(device.memory().live.total).toBe(before);
}

describe('round trips', () => {
  test('reshape and back', () =>
    fc.assert(
      fc.asyncProperty(shapes, dtypes, fc.nat(), (shape, dtype, cut) =>
        inScope(async () => {
          const x = counting(shape, dtype);
          const at = cut % (shape.length + 1);
          const folded = reshape(x, [sizeOf(shape.slice(0, at)), -1]);
          expect(folded.shape).toEqual([sizeOf(shape.slice(0, at)), sizeOf(shape.slice(at))]);
          const back = reshape(folded, shape);
          expect(back.shape).toEqual(shape);
          expect(await valuesOf(back)).toEqual(await valuesOf(x));
        }),
      ),
      runs,
    ));

  test('transpose and its inverse; two transposes are their product', () =>
    fc.assert(
      fc.asyncProperty(
        nonEmptyShapes.chain((shape) => {
          const axes = shape.map((_, i) => i);
          const order = fc.shuffledSubarray(axes, { minLength: axes.length });
          return fc.tuple(fc.constant(shape), order, order);
        }),
        dtypes,
        ([shape, first, second], dtype) =>
          inScope(async () => {
            const x = counting(shape, dtype);
            const there = transpose(x, first);
            expect(there.shape).toEqual(first.map((axis) => shape[axis]));
            const back = transpose(
              there,
              first.map((_, i) => first.indexOf(i)),
            );
            expect(await valuesOf(back)).toEqual(await valuesOf(x));
            const product = transpose(
              x,
              second.map((axis) => first[axis]!),
            );
            expect(await valuesOf(transpose(there, second))).toEqual(await valuesOf(product));
          }),
      ),
      runs,
    ));

  test('split and cat, cat and slice', () =>
    fc.assert(
      fc.asyncProperty(
        nonEmptyShapes.chain((shape) =>
          fc.tuple(
            fc.constant(shape),
            fc.integer({ min: 0, max: shape.length - 1 }),
            fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 1, maxLength: 4 }),
          ),
        ),
        dtypes,
        ([shape, axis, lengths], dtype) =>
          inScope(async () => {
            const total = lengths.reduce((a, b) => a + b, 0);
            const x = counting(
              shape.map((size, i) => (i === axis ? total : size)),
              dtype,
            );
            const parts = split(x, { axis, lengths });
            expect(parts.map((part) => part.shape[axis])).toEqual(lengths);
            const joined = cat(parts, { axis: axis - shape.length });
            expect(joined.shape).toEqual(x.shape);
            expect(await valuesOf(joined)).toEqual(await valuesOf(x));
            let start = 0;
            for (const [i, length] of lengths.entries()) {
              const part = slice(joined, { axis, start, end: start + length });
              expect(await valuesOf(part)).toEqual(await valuesOf(parts[i]!));
              start += length;
            }
          }),
      ),
      runs,
    ));
});

describe('broadcasting', () => {
  /** Two shapes that broadcast. They are made from one, by dropping axes or setting them to 1. */
  const pairs = shapes.chain((shape) =>
    fc
      .tuple(
        fc.array(fc.boolean(), { minLength: shape.length, maxLength: shape.length }),
        fc.array(fc.boolean(), { minLength: shape.length, maxLength: shape.length }),
        fc.nat(shape.length),
      )
      .map(([left, right, dropped]) => ({
        a: shape.map((size, i) => (left[i] ? 1 : size)),
        b: shape.map((size, i) => (right[i] ? 1 : size)).slice(dropped),
      })),
  );

  test('equals expanding both operands first, and commutes', () =>
    fc.assert(
      fc.asyncProperty(pairs, dtypes, ({ a, b }, dtype) =>
        inScope(async () => {
          const [x, y] = [counting(a, dtype), counting(b, dtype)];
          const out = add(x, y);
          const expanded = add(broadcastTo(x, out.shape), broadcastTo(y, out.shape));
          expect(expanded.shape).toEqual(out.shape);
          expect(await valuesOf(out)).toEqual(await valuesOf(expanded));
          expect(await valuesOf(add(y, x))).toEqual(await valuesOf(out));
          expect(await valuesOf(maximum(y, x))).toEqual(await valuesOf(maximum(x, y)));
          // x + y - y is exactly x, since the numbers are small whole ones.
          const back = sub(out, y);
          expect(await valuesOf(back)).toEqual(await valuesOf(broadcastTo(x, out.shape)));
        }),
      ),
      runs,
    ));

  test('the gradient is the sum over what was repeated', () =>
    fc.assert(
      fc.asyncProperty(pairs, ({ a, b }) =>
        inScope(async () => {
          const x = counting(a, 'f32');
          x.requiresGrad = true;
          const y = counting(b, 'f32');
          const out = mul(x, y);
          await sum(out).backward();
          // The slope of each element of x is the sum of the y that it met.
          const repeated = broadcastTo(y, out.shape);
          const axes = a.flatMap((size, i) => (size === 1 && out.shape[i] !== 1 ? [i] : []));
          const want = axes.length > 0 ? sum(repeated, { axis: axes, keepDims: true }) : repeated;
          expect(await valuesOf(x.grad!)).toEqual(await valuesOf(want));
          x.grad!.dispose();
        }),
      ),
      runs,
    ));
});
