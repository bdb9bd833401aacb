// Ranks of one process lend memory to each other. The owner doesn't get it back while another rank
// reads it.

import { createMemoryGroup, type ReduceHook } from '@shardweave/collectives';
import { describe, expect, it } from 'vitest';

const turn = () => new Promise((resolve) => setImmediate(resolve));

it('the own part of a sum is left to its caller, where two ranks take one that is not compressed', async () => {
  const cases = [
    [2, { op: 'sum' }],
    [2, { op: 'mean' }],
    [2, { op: 'sum', wire: 'bf16' }],
    [3, { op: 'sum' }],
    [2, { op: 'sum' }, 'in place'],
  ] as const;
  const seen = [];
  for (const [n, options, place] of cases) {
    const ofRanks = createMemoryGroup(n).map(async (group) => {
      const input = new Float32Array(n).fill(group.rank + 1);
      const { rank } = group;
      const output = place ? input.subarray(rank, rank + 1) : new Float32Array(1);
      let called = 0;
      const addOwn = () => void called++;
      const own = { dtype: 'f32', ...options, addOwn } as const;
      await group.reduceScatter(bytesOf(input), bytesOf(output), own);
      await group.close();
      return [called, output[0]];
    });
    seen.push(await Promise.all(ofRanks));
  }
  const [sum, mean, compressed, three, inPlace] = seen;
  expect(sum).toEqual([
    [1, 2],
    [1, 1],
  ]);
  expect(mean).toEqual(Array(2).fill([0, 1.5]));
  expect(compressed).toEqual(Array(2).fill([0, 3]));
  expect(three).toEqual(Array(3).fill([0, 6]));
  expect(inPlace).toEqual(Array(2).fill([0, 3]));
});

it('the own part of a gather is left to its caller, except for a compressed one', async () => {
  const seen = await Promise.all(
    createMemoryGroup(2).map(async (group) => {
      const own = new Uint8Array(Float32Array.of(group.rank + 1).buffer);
      const called: string[] = [];
      const gather = async (wire: 'exact' | 'bf16') => {
        const all = new Float32Array(2);
        const placeOwn = () => void called.push(wire);
        const options = { dtype: 'f32', wire, placeOwn } as const;
        await group.allGather(own, new Uint8Array(all.buffer), options);
        return [...all];
      };
      const results = [await gather('exact'), await gather('bf16')];
      await group.close();
      return { called, results };
    }),
  );
  const called = ['exact'];
  const whole = [1, 2];
  expect(seen).toEqual([
    { called, results: [[0, 2], whole] },
    { called, results: [[1, 0], whole] },
  ]);
});

describe('close with a call pending', () => {
  it('rejects the call when no peer reads its input any more', async () => {
    const length = 100_000;
    const seen: number[] = [];
    // Rank 0 reads what rank 1 has lent only after rank 1 has closed.
    let release: () => void = () => {};
    const reduce: ReduceHook = async (parts) => {
      await new Promise<void>((resolve) => {
        release = resolve;
      });
      seen.push(parts[1]![length - 1]!);
    };
    const [first, second] = createMemoryGroup(2, { reduce });
    const input = new Uint8Array(length * 2).fill(7);
    const counts = [length, 0];
    const options = { dtype: 'u8', op: 'sum', counts } as const;
    const sum = first!.reduceScatter(input.subarray(0, length), new Uint8Array(length), options);
    const given = input.subarray(0, length).slice();
    const pending = second!.reduceScatter(given, new Uint8Array(0), options);
    const later = second!.barrier(); // This keeps a call of rank 1 pending.
    await turn();
    await turn();
    const closed = second!.close();
    const rejected = later.catch(() => given.fill(0)); // The memory is the caller's again.
    await turn();
    release();
    await Promise.allSettled([sum, pending, closed, rejected]);
    expect(seen).toEqual([7]);
    await first!.close();
  });
});

const bytesOf = ({ buffer, byteOffset, byteLength }: Float32Array) =>
  new Uint8Array(buffer, byteOffset, byteLength);
