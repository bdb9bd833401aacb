// Conformance: parts of different sizes, and two sequences of calls beside each other.

import { byteSize } from '@shardweave/dtypes';
import type { ProcessGroup } from '../group/process-group.js';
import { allRanks } from './data-cases.js';
import { type ConformanceCase, checkBytes, onRanks } from './harness.js';
import { Expectations } from './patterns.js';

const MIB = 2 ** 20;

/** Counts of elements, from none to parts of many segments. */
function countsOf(worldSize: number): readonly (readonly number[])[] {
  const ranks = Array.from({ length: worldSize }, (_, r) => r);
  return [
    ranks.map(() => 0),
    ranks.map((r) => r),
    ranks.map((r) => (r === worldSize - 1 ? 1023 : 0)),
    ranks.map((r) => (r === 0 ? 3 * MIB : r * 7)),
  ];
}

export const unevenCases: readonly ConformanceCase[] = [
  {
    name: 'uneven parts are gathered and scattered, empty ones, too',
    worldSizes: [1, 2, 3, 4],
    run: (harness, worldSize) => {
      const expected = new Expectations();
      return onRanks(harness, worldSize, async (group) => {
        for (const counts of countsOf(worldSize)) {
          for (const dtype of ['bf16', 'u8'] as const) {
            await checkUneven(group, counts, dtype, expected);
          }
        }
      });
    },
  },
  {
    name: 'gathers and reductions in groups of their own stay independent, each in its order',
    worldSizes: [2, 3],
    run: (harness, worldSize) => {
      const expected = new Expectations();
      return onRanks(harness, worldSize, async (group) => {
        const reductions = await group.split(0);
        const isFirst = group.rank === 0;
        // Ranks wait for one sequence before they begin the other, but not all for the same one.
        const gather = new Uint8Array(40_000 * worldSize);
        const own = expected.bytes(group.rank, 40_000);
        if (isFirst) {
          await reductions.barrier();
        }
        const gathered = group.allGather(own, gather);
        if (!isFirst) {
          await reductions.barrier();
        }
        await gathered;
        await checkInterleaved(group, reductions, expected);
      });
    },
  },
];

async function checkUneven(
  group: ProcessGroup,
  counts: readonly number[],
  dtype: 'bf16' | 'u8',
  expected: Expectations,
): Promise<void> {
  const size = byteSize(dtype);
  const total = counts.reduce((sum, count) => sum + count, 0);
  const inputs = allRanks(group).map((r) => expected.elements(r, counts[r]!, dtype));
  const gathered = new Uint8Array(total * size);
  await group.allGather(inputs[group.rank]!, gathered, { dtype, counts });
  const starts = counts.map((_, r) => counts.slice(0, r).reduce((sum, count) => sum + count, 0));
  inputs.forEach((input, r) => {
    const part = gathered.subarray(starts[r]! * size, (starts[r]! + counts[r]!) * size);
    checkBytes(part, input, `part ${r} of [${counts}] ${dtype}`);
  });
  const op = 'sum';
  const sum = await expected.reduction(group.worldSize, total, { dtype, op });
  const part = new Uint8Array(counts[group.rank]! * size);
  await group.reduceScatter(expected.elements(group.rank, total, dtype), part, {
    dtype,
    op,
    counts,
  });
  const start = starts[group.rank]! * size;
  checkBytes(part, sum.subarray(start, start + part.length), `sum of [${counts}] ${dtype}`);
}

/**
 * Checks ten calls in flight, five in each sequence, begun in another order on each rank, and
 * awaited backwards.
 */
async function checkInterleaved(
  gathers: ProcessGroup,
  reductions: ProcessGroup,
  expected: Expectations,
): Promise<void> {
  const { rank, worldSize } = gathers;
  const sizes = [3, 70_000, 1, 300_000, 20];
  const gather = async (byteLength: number) => {
    const output = new Uint8Array(byteLength * worldSize);
    await gathers.allGather(expected.bytes(rank, byteLength), output);
    for (const r of allRanks(gathers)) {
      const part = output.subarray(r * byteLength, (r + 1) * byteLength);
      checkBytes(part, expected.bytes(r, byteLength), `gather of ${byteLength}, part ${r}`);
    }
  };
  const reduce = async (count: number) => {
    const options = { dtype: 'f32', op: 'sum' } as const;
    const output = new Uint8Array(count * 4);
    await reductions.allReduce(expected.elements(rank, count, 'f32'), output, options);
    const sum = await expected.reduction(worldSize, count, options);
    checkBytes(output, sum, `sum of ${count}`);
  };
  const begun: Promise<void>[] = [];
  const begin = [gather, reduce];
  if (rank % 2 === 0) {
    begun.push(...sizes.flatMap((size) => begin.map((call) => call(size))));
  } else {
    begun.push(...begin.reverse().flatMap((call) => sizes.map((size) => call(size))));
  }
  for (const call of begun.reverse()) {
    await call;
  }
}
