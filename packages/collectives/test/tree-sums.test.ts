// Sums in the order of a tree: what is refused, what ranks that disagree are told, and what
// travels. Their bits are cases of the conformance suite.

import {
  type CollectiveStats,
  CollectiveUsageError,
  createMemoryGroup,
  type ProcessGroup,
  type TreeOptions,
} from '@shardweave/collectives';
import { createDryGroup } from '@shardweave/collectives/dry';
import { treeNodes } from '@shardweave/dtypes/tree';
import { expect, it } from 'vitest';

const SUM = { dtype: 'f32', op: 'sum' } as const;
const FOUR = new Uint8Array(4);

it('refuses trees that can not be, before anything is sent', async () => {
  const groups = createMemoryGroup(2, { timeoutMs: 5000 });
  const [group] = groups as [ProcessGroup];
  const refusal = async (tree: unknown, options: object = {}, call = 'allReduce' as const) => {
    const all = { ...SUM, ...options, tree: tree as TreeOptions };
    const error: unknown = await group[call](FOUR, FOUR, all).catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(CollectiveUsageError);
    return (error as Error).message;
  };
  const counts = [1, 1];
  expect(await refusal(null)).toMatch(/a tree of at least one leaf .*, got undefined and 0/);
  expect(await refusal({ leaves: 0, counts })).toMatch(/at least one leaf .*, got 0 and 0/);
  expect(await refusal({ leaves: 2, first: -1, counts })).toMatch(/got 2 and -1/);
  expect(await refusal({ leaves: 2 })).toMatch(/counts of leaves for 2 ranks, got undefined/);
  expect(await refusal({ leaves: 2, counts: [2] })).toMatch(/for 2 ranks, got \[2\]/);
  expect(await refusal({ leaves: 2, counts: [1, 2] })).toMatch(
    /some of the 2 leaves of the tree from 0 on, got 3 in counts \[1, 2\]/,
  );
  expect(await refusal({ leaves: 2, counts: [0, 0] })).toMatch(/got 0 in counts/);
  expect(await refusal({ leaves: 3, counts })).toMatch(
    /all 3 leaves of the tree, got 2\. .*reduceS/,
  );
  const tree = { leaves: 2, counts };
  expect(await refusal(tree, { dtype: 'bf16' })).toMatch(
    /exact sum of f32 with a tree, got sum bf16/,
  );
  expect(await refusal(tree, { op: 'mean' })).toMatch(/with a tree, got mean f32/);
  expect(await refusal(tree, { wire: 'f16' })).toMatch(/with a tree, got sum f32 wire f16/);
  const two = new Uint8Array(8);
  await expect(group.allReduce(two, FOUR, { ...SUM, tree })).rejects.toThrow(
    /expected an input of 4 bytes for 2 ranks, got 8/,
  );
  await expect(
    group.reduceScatter(two, FOUR, { ...SUM, tree: { leaves: 3, first: 1, counts } }),
  ).rejects.toThrow(/whole f32 elements, got 2 bytes/); // leaves 1 and 2 are two sums // leaves 1 and 2 are two sums
  await expect(group.reduceScatter(two, two.subarray(0, 4), { ...SUM, tree })).rejects.toThrow(
    /input and output overlap, expected none with a tree/,
  );
  await Promise.all(groups.map((each) => each.barrier()));
  await Promise.all(groups.map((each) => each.close()));
});

it('tells ranks that deal leaves out in different ways what each has called', async () => {
  const groups = createMemoryGroup(2, { timeoutMs: 5000 });
  const calls = groups.map((group) => {
    const counts = group.rank === 0 ? [2, 2] : [1, 3];
    const numNodes = treeNodes(4, group.rank * counts[0]!, counts[group.rank]!).length;
    const tree = { leaves: 4, counts };
    return group.allReduce(new Uint8Array(4 * numNodes), new Uint8Array(4), { ...SUM, tree });
  });
  for (const outcome of await Promise.allSettled(calls)) {
    expect(outcome).toMatchObject({
      status: 'rejected',
      reason: {
        code: 'MISMATCH',
        message: expect.stringMatching(/allReduce sum f32 4 bytes tree \[4,0,(2,2|1,3)\]/),
      },
    });
  }
});

/** Makes calls of both kinds, large and small. */
async function callAll(group: ProcessGroup): Promise<CollectiveStats> {
  const { rank, worldSize } = group;
  const counts = Array.from({ length: worldSize }, (_, r): number => (r === 1 ? 0 : 3));
  const leaves = counts.reduce((sum, count) => sum + count, 0);
  const first = counts.slice(0, rank).reduce((sum, count) => sum + count, 0);
  const numNodes = treeNodes(leaves, first, counts[rank]!).length;
  for (const n of [20, 80_000]) {
    const options = { ...SUM, tree: { leaves, counts } };
    await group.allReduce(new Uint8Array(n * numNodes), new Uint8Array(n), options);
    const whole = new Uint8Array(n * worldSize * numNodes);
    await group.reduceScatter(whole, new Uint8Array(n), options);
  }
  const stats = group.stats();
  await group.close();
  return stats;
}

it.each([1, 3, 5])('a dry group of %i counts what is sent of each node', async (worldSize) => {
  const real = await Promise.all(createMemoryGroup(worldSize).map(callAll));
  for (let rank = 0; rank < worldSize; rank++) {
    expect(await callAll(createDryGroup(worldSize, { rank }))).toEqual(real[rank]);
  }
});

it('hosts and a wire of the group leave such sums alone', async () => {
  const groups = createMemoryGroup(4, { hosts: [0, 0, 1, 1], wire: 'bf16' });
  const sums = await Promise.all(
    groups.map(async (group) => {
      const own = Float32Array.of([2 ** 24, 1, 1, 3][group.rank]!);
      const sum = new Float32Array(1);
      const [input, output] = [new Uint8Array(own.buffer), new Uint8Array(sum.buffer)];
      // (2^24 + 1) + (1 + 3) keeps the 4; in rank order, or as bf16, it would not.
      await group.allReduce(input, output, { ...SUM, tree: { leaves: 4, counts: [1, 1, 1, 1] } });
      return sum[0];
    }),
  );
  expect(sums).toEqual(Array(4).fill(2 ** 24 + 4));
  await Promise.all(groups.map((group) => group.close()));
});
