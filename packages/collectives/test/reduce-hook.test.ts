// By the option `reduce` a caller provides the addition. These tests cover its results and its
// failures.

import { createMemoryGroup, type ReduceHook } from '@shardweave/collectives';
import { fromF32Array, RankSum, toF32Array } from '@shardweave/dtypes';
import { describe, expect, it } from 'vitest';

const turn = () => new Promise((resolve) => setImmediate(resolve));

describe('a reduce hook', () => {
  it('combines what arrives, small and in segments, with the bits of our own', async () => {
    const reducer = await RankSum.create();
    const calls: { parts: number; bytes: number; dtype: string; op: string }[] = [];
    const reduce: ReduceHook = async (parts, output, options) => {
      calls.push({
        parts: parts.length,
        bytes: output.byteLength,
        dtype: options.dtype,
        op: options.op,
      });
      expect(options.signal.aborted).toBe(false);
      await turn(); // A worker or a GPU would answer later like this.
      await reducer.reduce(parts, output, options);
    };
    for (const count of [3, 400_003]) {
      const results = await Promise.all(
        [{ reduce }, {}].map(async (options) => {
          const groups = createMemoryGroup(3, options);
          const sums = await Promise.all(
            groups.map(async (group) => {
              const values = Array.from({ length: count }, (_, i) => (i % 97) / (group.rank + 3));
              const buffer = fromF32Array(values, 'bf16');
              await group.allReduce(buffer, buffer, { dtype: 'bf16', op: 'mean' });
              return buffer;
            }),
          );
          await Promise.all(groups.map((group) => group.close()));
          return sums;
        }),
      );
      const [hooked, own] = results as [Uint8Array[], Uint8Array[]];
      expect(hooked.every((bytes) => Buffer.compare(bytes, own[0]!) === 0)).toBe(true);
    }
    expect(calls.every(({ parts, dtype, op }) => `${parts} ${dtype} ${op}` === '3 bf16 mean')).toBe(
      true,
    );
    expect(calls.filter(({ bytes }) => bytes === 6)).toHaveLength(3);
    expect(calls.filter(({ bytes }) => bytes > 6).length).toBeGreaterThanOrEqual(3);
  });

  it('gives the result itself: nothing is added afterwards', async () => {
    const reduce: ReduceHook = (_parts, output) => {
      output.set(fromF32Array([42], 'f32'));
    };
    const [group] = createMemoryGroup(1, { reduce });
    const output = new Uint8Array(4);
    await group!.allReduce(fromF32Array([1], 'f32'), output, { dtype: 'f32', op: 'sum' });
    expect([...toF32Array(output, 'f32')]).toEqual([42]);
    await group!.close();
  });

  it('a hook that rejects ends the job on all ranks, naming the rank and the reason', async () => {
    const reduce: ReduceHook = async () => {
      throw new Error('device lost');
    };
    const groups = createMemoryGroup(2, { reduce });
    const outcomes = await Promise.allSettled(
      groups.map((group) =>
        group.allReduce(new Uint8Array(8), new Uint8Array(8), { dtype: 'f32', op: 'sum' }),
      ),
    );
    for (const outcome of outcomes) {
      expect(outcome).toMatchObject({
        status: 'rejected',
        reason: { code: 'ABORTED', message: expect.stringMatching(/rank \d: device lost/) },
      });
    }
  });

  it('is told by its signal when the call has failed', async () => {
    const signals: AbortSignal[] = [];
    let release: () => void = () => {};
    const reduce: ReduceHook = async (_parts, _output, { signal }) => {
      signals.push(signal);
      await new Promise<void>((resolve) => {
        release = resolve;
      });
    };
    const [group] = createMemoryGroup(1, { reduce });
    const call = group!.allReduce(new Uint8Array(4), new Uint8Array(4), {
      dtype: 'f32',
      op: 'sum',
    });
    await turn();
    expect(signals.map((signal) => signal.aborted)).toEqual([false]);
    group!.abort('enough');
    await expect(call).rejects.toThrow(/enough/);
    expect(signals.map((signal) => signal.aborted)).toEqual([true]);
    release();
  });
});
