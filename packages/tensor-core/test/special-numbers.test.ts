// Powers, quotients, logarithms and ties of special numbers, and arithmetic of integers, are equal
// on every device; and a kernel of a kind that does not exist is refused before a device sees it.

import {
  add,
  type Backend,
  Device,
  div,
  type KernelCalls,
  log,
  maximum,
  minimum,
  mul,
  neg,
  OptionError,
  pow,
  sub,
  type Tensor,
} from '@shardweave/tensor-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { testedBackends } from './support/backends.js';

const { NaN: NAN, POSITIVE_INFINITY: INF } = Number;

/** Rows of base, exponent and power, as the C standard lists them (F.10.4.4). */
const POWERS: readonly (readonly [a: number, b: number, power: number])[] = [
  [NAN, 0, 1],
  [NAN, -0, 1],
  [INF, 0, 1],
  [1, NAN, 1],
  [1, INF, 1],
  [1, -INF, 1],
  [-1, INF, 1],
  [-1, -INF, 1],
  [-1, NAN, NAN],
  [NAN, 1, NAN],
  [2, NAN, NAN],
  [0.5, -INF, INF],
  [-0.5, INF, 0],
  [2, -INF, 0],
  [-3, INF, INF],
  [0, -3, INF],
  [-0, -3, -INF],
  [-0, -2, INF],
  [0, 3, 0],
  [-0, 3, -0],
  [-0, 0.5, 0],
  [-INF, -3, -0],
  [-INF, -0.5, 0],
  [-INF, 3, -INF],
  [-INF, 0.5, INF],
  [-INF, 2, INF],
  [INF, 0.5, INF],
  [INF, -2, 0],
  [-2, 0.5, NAN],
  [-2, 3, -8],
  [-2, 2, 4],
];

describe.each(await testedBackends())('special numbers on $name', ({ reason, open }) => {
  describe.skipIf(reason !== undefined)('of one backend', () => {
    let backend: Backend;
    let device: Device;
    beforeAll(async () => {
      backend = await open();
      device = new Device(backend);
    });
    afterAll(() => backend.dispose());

    /** Returns a function's value of leaves, and the gradients of the sum of its elements. */
    const slopes = (f: (...leaves: Tensor[]) => Tensor, ...inputs: readonly number[][]) =>
      device.scope(async () => {
        const leaves = inputs.map((each) =>
          device.tensor(each, [each.length], { requiresGrad: true }),
        );
        const out = f(...leaves);
        await out.backward({ gradient: device.full(out.shape, 1) });
        const gradients = await Promise.all(leaves.map(({ grad }) => grad!.toArray()));
        for (const leaf of leaves) {
          leaf.grad!.dispose();
        }
        return [await out.toArray(), ...gradients].map((each) => Array.from(each));
      });

    test('powers are those of C', async () => {
      await device.scope(async () => {
        const [a, b] = [0, 1].map((i) => device.tensor(POWERS.map((row) => row[i]!)));
        const found = Array.from(await pow(a!, b!).toArray());
        const rounded = (value: number) =>
          Object.is(value, -0) ? -0 : Number(value.toPrecision(6));
        const text = (a: number, b: number, power: number) =>
          `${Object.is(a, -0) ? '-0' : a}^${b} = ${Object.is(power, -0) ? '-0' : power}`;
        expect(POWERS.map(([a, b], i) => text(a, b, rounded(found[i]!)))).toEqual(
          POWERS.map((row) => text(...row)),
        );
        expect(await pow(a!, 0).toArray()).toEqual(new Float32Array(POWERS.length).fill(1));
      });
    });

    test('gradients of powers are those of PyTorch at 0', async () => {
      expect(await slopes((x) => pow(x!, 0), [0, 3, NAN])).toEqual([
        [1, 1, 1],
        [0, 0, 0],
      ]);
      const [value, toBase, toExponent] = await slopes(
        (a, b) => pow(a!, b!),
        [0, 0, 0, 0, 3],
        [0, 2, 1, -1, 0],
      );
      expect(value).toEqual([1, 0, 0, INF, 1]);
      expect(toBase).toEqual([0, 0, 1, -INF, 0]);
      expect(toExponent).toEqual([0, 0, 0, -INF, expect.closeTo(Math.log(3), 5)]);
    });

    test('equal infinities share a gradient, and NaN stays in it', async () => {
      const [a, b] = [
        [INF, -INF, 2, INF, -INF, NAN, 1],
        [INF, -INF, 2, 1, INF, 1, NAN],
      ];
      const most = await slopes((x, y) => maximum(x!, y!), a!, b!);
      expect(most[1]).toEqual([0.5, 0.5, 0.5, 1, 0, NAN, NAN]);
      expect(most[2]).toEqual([0.5, 0.5, 0.5, 0, 1, NAN, NAN]);
      const least = await slopes((x, y) => minimum(x!, y!), a!, b!);
      expect(least[1]).toEqual([0.5, 0.5, 0.5, 0, 1, NAN, NAN]);
    });

    test('quotients by numbers whose reciprocal is no normal f32 keep their digits', async () => {
      const tiny = await slopes((x) => div(x!, 1e-40), [2 ** -120, 0, -(2 ** -126), 1]);
      const expected = [2 ** -120 / 1e-40, 0, -(2 ** -126) / 1e-40, INF];
      expect(tiny[0]!.map((value, i) => value / (expected[i] || 1))).toEqual([
        expect.closeTo(1, 6),
        0,
        expect.closeTo(1, 6),
        NAN, // infinity over itself
      ]);
      const [huge] = await slopes((x) => div(x!, -2e38), [2e38, 1e38, INF]);
      expect(huge).toEqual([expect.closeTo(-1, 6), expect.closeTo(-0.5, 6), -INF]);
      await device.scope(async () => {
        const half = device.tensor([2 ** -14, 1], [2], { dtype: 'f16' });
        expect(Array.from(await div(half, 1e-40).toArray())).toEqual([INF, INF]);
      });
    });

    test('logarithms of the smallest numbers have all their digits', async () => {
      await device.scope(async () => {
        const x = device.tensor([1e-37, 1e-40, 2 ** -149, 0, -1e-40]);
        expect(Array.from(await log(x).toArray())).toEqual([
          expect.closeTo(Math.log(1e-37), 4),
          expect.closeTo(Math.log(1e-40), 4),
          expect.closeTo(-149 * Math.LN2, 4),
          -INF,
          NAN,
        ]);
      });
    });

    test.each([
      ['i32', [5, -7, 2 ** 31 - 1, -(2 ** 31)], (value: number) => value | 0],
      ['u32', [5, 7, 2 ** 32 - 1, 0], (value: number) => value >>> 0],
    ] as const)('%s with numbers wraps around', async (dtype, values, wrap) => {
      await device.scope(async () => {
        const x = device.tensor(values, [4], { dtype });
        const found = async (y: Tensor) => {
          expect(y.dtype).toBe(dtype);
          return Array.from(await y.toArray());
        };
        expect(await found(add(x, 1))).toEqual(values.map((value) => wrap(value + 1)));
        expect(await found(sub(x, 3))).toEqual(values.map((value) => wrap(value - 3)));
        expect(await found(mul(x, 2 ** 30))).toEqual(
          values.map((value) => wrap(Math.imul(value, 2 ** 30))),
        );
        expect(await found(neg(x))).toEqual(values.map((value) => wrap(-value)));
      });
      expect(device.memory().live.total).toBe(0);
    });

    test('a kind without an entry is refused, and the device works on', async () => {
      await device.scope(async () => {
        const [x, y] = [device.tensor([4, 9]), device.empty([2])];
        const ids = device.tensor(Int32Array.of(1, 2));
        const kind = 'cube' as never;
        const [from, out] = [x.view(), y.view()];
        const pair = { a: from, b: from, out, shape: [2], aStrides: [1], bStrides: [1] };
        const rows = { gate: from, up: from, rows: 1, cols: 2, row: 2 };
        const run = <K extends keyof KernelCalls>(kernel: K, call: KernelCalls[K]) =>
          expect(() => device.run(kernel, call), kernel).toThrow(OptionError);
        run('unary', { kind, x: from, out });
        run('unaryBackward', { kind, x: from, dy: from, out });
        run('gated', { kind, ...rows, out });
        run('gatedBackward', { kind, of: 'gate', ...rows, dy: from, out });
        run('binary', { kind, ...pair });
        run('binary', { ...pair, kind: 'toString' as never });
        run('compare', { kind, ...pair });
        run('reduce', { kind, x: from, out, outer: 2, dim: 1, inner: 1 });
        expect(() => device.run('unary', { kind, x: from, out })).toThrow(
          /^unary: expected a kind among .*geluTanh.*, got "cube"\.$/,
        );
        expect(Array.from(await add(x, 1).toArray())).toEqual([5, 10]);
        expect(Array.from(await add(ids, 1).toArray())).toEqual([2, 3]);
      });
    });
  });
});
