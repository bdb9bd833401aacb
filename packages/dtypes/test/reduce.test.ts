// Reductions in rank order are compared with float64 loops, and WebAssembly with plain JavaScript
// bit for bit. Further tests check time slices.

import { setImmediate as turn } from 'node:timers/promises';
import {
  byteSize,
  fromF32Array,
  IN_PLACE_SCRATCH_BYTES,
  isFloat,
  RankSum,
  type ReduceDType,
  type ReduceOp,
  type ReduceOptions,
  reducePartsPlain,
  toF32Array,
} from '@shardweave/dtypes';
import { describe, expect, it, vi } from 'vitest';

const DTYPES: readonly ReduceDType[] = ['f32', 'f16', 'bf16', 'i32', 'u32', 'u8'];
const OPS: readonly ReduceOp[] = ['sum', 'mean', 'max', 'min'];

/** Returns bytes with any bit pattern, from a seeded 32-bit generator. */
function randomBytes(seed: number, byteLength: number): Uint8Array {
  const bytes = new Uint8Array(byteLength);
  let state = seed;
  for (let i = 0; i < byteLength; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    bytes[i] = state >>> 24;
  }
  return bytes;
}

/**
 * Returns the bytes with every NaN replaced by one pattern, since a NaN's payload is unspecified.
 */
function withOneNan(bytes: Uint8Array, dtype: ReduceDType): Uint8Array {
  if (!isFloat(dtype)) {
    return bytes;
  }
  const values = toF32Array(bytes, dtype);
  const size = byteSize(dtype);
  const copy = bytes.slice();
  for (let i = 0; i < values.length; i++) {
    if (Number.isNaN(values[i])) {
      copy.fill(0xff, i * size, (i + 1) * size);
    }
  }
  return copy;
}

describe('reducePartsPlain', () => {
  it('adds in rank order in f32 and rounds once', () => {
    // In f32 the order shows: (2^24 + 1) + 1 stays 2^24, and (1 + 1) + 2^24 does not.
    const parts = [[2 ** 24], [1], [1]].map((part) => fromF32Array(part, 'f32'));
    const sum = (order: readonly number[]) => {
      const output = new Uint8Array(4);
      reducePartsPlain(
        order.map((rank) => parts[rank]!),
        output,
        { dtype: 'f32', op: 'sum' },
      );
      return toF32Array(output, 'f32')[0];
    };
    expect(sum([0, 1, 2])).toBe(2 ** 24);
    expect(sum([1, 2, 0])).toBe(2 ** 24 + 2);
    // In bf16, 256 + 1 alone is rounded back to 256. Added in f32 and rounded once, 256 + 4 * 1 =
    // 260.
    const half = [[256], [1], [1], [1], [1]].map((part) => fromF32Array(part, 'bf16'));
    const output = new Uint8Array(2);
    reducePartsPlain(half, output, { dtype: 'bf16', op: 'sum' });
    expect(toF32Array(output, 'bf16')[0]).toBe(260);
  });

  it.each(['f32', 'f16', 'bf16'] as const)('is near a float64 loop in %s', (dtype) => {
    const rows = [0, 1, 2].map((rank) =>
      Array.from({ length: 9 }, (_, i) => Math.sin(rank * 9 + i)),
    );
    const parts = rows.map((row) => fromF32Array(row, dtype));
    const inputs = parts.map((part) => toF32Array(part, dtype));
    const tolerance = { f32: 2 ** -22, f16: 2 ** -10, bf16: 2 ** -7 }[dtype];
    const exact = {
      sum: (x: number[]) => x[0]! + x[1]! + x[2]!,
      mean: (x: number[]) => (x[0]! + x[1]! + x[2]!) / 3,
      max: (x: number[]) => Math.max(...x),
      min: (x: number[]) => Math.min(...x),
    };
    for (const op of OPS) {
      const output = new Uint8Array(parts[0]!.length);
      reducePartsPlain(parts, output, { dtype, op });
      toF32Array(output, dtype).forEach((value, i) => {
        const reference = exact[op](inputs.map((input) => input[i]!));
        expect(Math.abs(value - reference)).toBeLessThanOrEqual(tolerance);
      });
    }
  });

  it('wraps integer sums and truncates their mean', () => {
    const reduce = (dtype: 'i32' | 'u32', op: ReduceOp, values: number[]) => {
      const output = new Uint32Array(1);
      const parts = values.map((x) => new Uint8Array(Uint32Array.of(x).buffer));
      reducePartsPlain(parts, new Uint8Array(output.buffer), { dtype, op });
      return dtype === 'i32' ? output[0]! | 0 : output[0]!;
    };
    expect(reduce('i32', 'sum', [2147483647, 1])).toBe(-2147483648);
    expect(reduce('u32', 'sum', [4294967295, 3])).toBe(2);
    expect(reduce('i32', 'mean', [-3, 0])).toBe(-1);
    expect(reduce('u32', 'mean', [4294967294, 0])).toBe(2147483647);
    expect(reduce('u32', 'max', [4294967295, 3])).toBe(4294967295);
    expect(reduce('i32', 'max', [-1, 3])).toBe(3);
  });

  it('wraps sums of bytes modulo 256', () => {
    const reduce = (op: ReduceOp, values: readonly number[]) => {
      const output = new Uint8Array(1);
      const parts = values.map((x) => Uint8Array.of(x));
      reducePartsPlain(parts, output, { dtype: 'u8', op });
      return output[0];
    };
    expect(reduce('sum', [200, 100, 5])).toBe(49);
    // The wrapped sum is divided, as for all integers.
    expect(reduce('mean', [200, 100, 5])).toBe(16);
    expect(reduce('max', [200, 100])).toBe(200);
    expect(reduce('min', [200, 100])).toBe(100);
  });
});

describe('RankSum', () => {
  // These count elements, and the last spans two slices.
  const SIZES = [0, 1, 7, 8, 1023, 16 * 1024 + 5];

  it.each(DTYPES)('equals the plain version bit for bit in %s', async (dtype) => {
    const rankSum = await RankSum.create();
    for (const op of OPS) {
      for (const worldSize of [1, 2, 3, 8]) {
        for (const size of SIZES) {
          const byteLength = size * byteSize(dtype);
          const parts = Array.from({ length: worldSize }, (_, rank) =>
            randomBytes(size * 100 + rank, byteLength),
          );
          const expected = new Uint8Array(byteLength);
          reducePartsPlain(parts, expected, { dtype, op });
          const output = new Uint8Array(byteLength);
          await rankSum.reduce(parts, output, { dtype, op });
          const same = Buffer.compare(withOneNan(output, dtype), withOneNan(expected, dtype));
          expect(same, `${op} of ${worldSize} x ${size}`).toBe(0);
        }
      }
    }
  });

  it.each(['f16', 'bf16'] as const)('equals it on all 65,536 patterns of %s', async (dtype) => {
    const all = new Uint8Array(Uint16Array.from({ length: 65536 }, (_, i) => i).buffer);
    const zero = new Uint8Array(all.length).fill(0);
    const rankSum = await RankSum.create();
    for (const [parts, op] of [
      [[all], 'sum'],
      [[all, zero], 'sum'],
      [[all, all, zero], 'mean'],
    ] as const) {
      const expected = new Uint8Array(all.length);
      reducePartsPlain(parts, expected, { dtype, op });
      const output = new Uint8Array(all.length);
      await rankSum.reduce(parts, output, { dtype, op });
      expect(Buffer.compare(withOneNan(output, dtype), withOneNan(expected, dtype))).toBe(0);
    }
  });

  it.each(['f16', 'bf16'] as const)('rounds sums of sums in %s once', async (dtype) => {
    const rankSum = await RankSum.create();
    const count = 2 * 16 * 1024 + 7; // This makes three slices.
    const random = randomBytes(5, 4 * count * 4);
    const parts = Array.from({ length: 4 }, (_, rank) =>
      fromF32Array(
        Array.from({ length: count }, (_, i) => random[rank * count + i]! * 2 ** (i % 9)),
        dtype,
      ),
    );
    const sums = await Promise.all(
      [parts.slice(0, 2), parts.slice(2)].map(async (pair) => {
        const sum = new Uint8Array(count * 4);
        await rankSum.reduce(pair, sum, { dtype: 'f32', inputDtype: dtype, op: 'sum' });
        return sum;
      }),
    );
    const mean = new Uint8Array(count * 2);
    await rankSum.reduce(sums, mean, { dtype, inputDtype: 'f32', op: 'mean', divisor: 4 });
    const plain = new Uint8Array(count * 2);
    reducePartsPlain(sums, plain, { dtype, inputDtype: 'f32', op: 'mean', divisor: 4 });
    expect(Buffer.compare(mean, plain)).toBe(0);
    // Sums of four bytes times powers of two are exact in f32, so the order doesn't show either.
    const direct = new Uint8Array(count * 2);
    await rankSum.reduce(parts, direct, { dtype, op: 'mean' });
    expect(Buffer.compare(mean, direct)).toBe(0);
  });

  it('refuses integers of one dtype and sums of another', async () => {
    const rankSum = await RankSum.create();
    const options = { dtype: 'f32', inputDtype: 'i32', op: 'sum' } as const;
    await expect(rankSum.reduce([new Uint8Array(4)], new Uint8Array(4), options)).rejects.toThrow(
      /expected floats or one dtype, got i32 and f32/,
    );
  });

  it('refuses unknown operations and dtypes, and invalid divisors', async () => {
    const rankSum = await RankSum.create();
    const wrong: readonly (readonly [object, RegExp])[] = [
      [{ op: 'avg' }, /expected one of sum, mean, max, min, got 'avg'/],
      [{ op: 'product' }, /got 'product'/],
      [{ dtype: 'f64' }, /expected one of f32, f16, bf16, i32, u32, u8, got 'f64'/],
      [{ inputDtype: 'fp16' }, /expected floats or one dtype, got fp16/],
      ...[0, -1, 0.5, 2.5, Number.NaN, 2 ** 24 + 1].map(
        (divisor) => [{ op: 'mean', divisor }, /whole divisor from 1 to 16777216, got /] as const,
      ),
    ];
    for (const [option, message] of wrong) {
      const options = { dtype: 'f32', op: 'sum', ...option } as ReduceOptions;
      const parts = [new Uint8Array(8), new Uint8Array(8)];
      const output = new Uint8Array(8);
      await expect(rankSum.reduce(parts, output, options)).rejects.toThrow(message);
      expect(() => reducePartsPlain(parts, output, options)).toThrow(message);
    }
  });

  it('writes over one of its parts', async () => {
    const rankSum = await RankSum.create();
    const parts = [1, 2, 3].map((x) => fromF32Array(new Float32Array(40_000).fill(x), 'f32'));
    await rankSum.reduce(parts, parts[1]!, { dtype: 'f32', op: 'sum' });
    expect(new Set(toF32Array(parts[1]!, 'f32'))).toEqual(new Set([6]));
  });

  it('gives the event loop a turn after every 8 ms of work', async () => {
    const rankSum = await RankSum.create();
    const count = 30 * 16 * 1024; // This makes thirty slices.
    const parts = [1, 2].map((x) => fromF32Array(new Float32Array(count).fill(x), 'f32'));
    const output = new Float32Array(count);
    // The clock says 3 ms for each slice, so the work of a slice and its time don't depend on luck.
    let now = 0;
    const clock = vi.spyOn(performance, 'now').mockImplementation(() => {
      now += 3;
      return now;
    });
    const slicesDone: number[] = [];
    try {
      let isDone = false;
      const bytes = new Uint8Array(output.buffer);
      const work = rankSum.reduce(parts, bytes, { dtype: 'f32', op: 'sum' }).then(() => {
        isDone = true;
      });
      while (!isDone) {
        const end = output.indexOf(0);
        slicesDone.push((end < 0 ? count : end) / (16 * 1024));
        await turn();
      }
      await work;
    } finally {
      clock.mockRestore();
    }
    // The clock is read between slices, and one more slice follows each turn.
    expect(slicesDone).toEqual([3, 6, 9, 12, 15, 18, 21, 24, 27]);
    expect(new Set(output)).toEqual(new Set([3]));
  });

  it('refuses parts of different lengths', async () => {
    const rankSum = await RankSum.create();
    const parts = [new Uint8Array(8), new Uint8Array(4)];
    await expect(
      rankSum.reduce(parts, new Uint8Array(8), { dtype: 'f32', op: 'sum' }),
    ).rejects.toThrow(/expected parts of 8 bytes, got 4/);
  });
});

describe('RankSum over shared memory', () => {
  // These count elements, and the last spans two slices.
  const SIZES = [0, 1, 7, 16, 1023, 16 * 1024 + 37];

  /**
   * Makes a RankSum, and views one after the other in its memory, with `gap` bytes between them.
   */
  async function createShared() {
    const memory = new WebAssembly.Memory({ initial: 32, maximum: 64, shared: true });
    const buffer = memory.buffer;
    const holds = (other: ArrayBufferLike) => other === buffer;
    const rankSum = await RankSum.create({ memory, holds, scratch: 64 });
    let end = 64 + IN_PLACE_SCRATCH_BYTES;
    const place = (bytes: Uint8Array, gap = 4) => {
      const view = new Uint8Array(buffer, end + gap, bytes.byteLength);
      view.set(bytes);
      end += gap + bytes.byteLength;
      return view;
    };
    return { rankSum, place, everything: new Uint8Array(buffer) };
  }

  it.each(DTYPES)(
    'equals the plain version bit for bit in %s, and writes nothing else',
    async (dtype) => {
      for (const op of OPS) {
        for (const worldSize of [1, 5]) {
          for (const size of SIZES) {
            const { rankSum, place, everything } = await createShared();
            const byteLength = size * byteSize(dtype);
            const parts = Array.from({ length: worldSize }, (_, rank) =>
              randomBytes(size * 100 + rank, byteLength),
            );
            const expected = new Uint8Array(byteLength);
            reducePartsPlain(parts, expected, { dtype, op });
            const placed = parts.map((part) => place(part));
            const output = place(new Uint8Array(byteLength));
            const behind = output.byteOffset + byteLength;
            everything.fill(0xee, behind);
            await rankSum.reduce(placed, output, { dtype, op });
            const what = `${op} of ${worldSize} x ${size}`;
            const got = output.slice();
            expect(Buffer.compare(withOneNan(got, dtype), withOneNan(expected, dtype)), what).toBe(
              0,
            );
            expect(Buffer.compare(placed[0]!, parts[0]!), what).toBe(0);
            expect(everything[behind], what).toBe(0xee);
          }
        }
      }
    },
  );

  it.each([0, 1, 2])('writes over part %i', async (own) => {
    const { rankSum, place } = await createShared();
    const parts = [1, 2, 4].map((x) =>
      place(fromF32Array(new Float32Array(20_001).fill(x), 'f32')),
    );
    await rankSum.reduce(parts, parts[own]!, { dtype: 'f32', op: 'sum' });
    expect(new Set(toF32Array(parts[own]!.slice(), 'f32'))).toEqual(new Set([7]));
  });

  it('takes parts from elsewhere, too', async () => {
    const { rankSum, place } = await createShared();
    const outside = fromF32Array(new Float32Array(40).fill(1), 'f32');
    const inside = place(fromF32Array(new Float32Array(40).fill(10), 'f32'));
    const output = place(new Uint8Array(160));
    await rankSum.reduce([outside, inside], output, { dtype: 'f32', op: 'sum' });
    expect(new Set(toF32Array(output.slice(), 'f32'))).toEqual(new Set([11]));
    await rankSum.reduce([inside, inside], outside, { dtype: 'f32', op: 'sum' });
    expect(new Set(toF32Array(outside, 'f32'))).toEqual(new Set([20]));
  });

  it('sums sums of 16-bit parts in f32, and rounds them once', async () => {
    const { rankSum, place } = await createShared();
    // The values differ from slice to slice and within a slice.
    const count = 2 * 16 * 1024 + 21;
    const small = Float32Array.from({ length: count }, (_, i) => 1 + (Math.floor(i / 100) % 128));
    const parts = [small, new Float32Array(count).fill(2 ** -9)].map((values) =>
      place(fromF32Array(values, 'bf16')),
    );
    const sum = place(new Uint8Array(4 * count));
    await rankSum.reduce(parts, sum, { dtype: 'f32', inputDtype: 'bf16', op: 'sum' });
    const expected = small.map((value) => value + 2 ** -9);
    expect(Buffer.compare(sum.slice(), new Uint8Array(expected.buffer))).toBe(0);
    const mean = place(new Uint8Array(2 * count));
    const options = { dtype: 'bf16', inputDtype: 'f32', op: 'mean', divisor: 4 } as const;
    await rankSum.reduce([sum, sum], mean, options);
    const halves = fromF32Array(
      expected.map((value) => value / 2),
      'bf16',
    );
    expect(Buffer.compare(mean.slice(), halves)).toBe(0);
  });
});
