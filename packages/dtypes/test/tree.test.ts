// A sum over the leaves of a tree is the same bit for bit, whoever adds which leaves first. The
// independent computation adds level by level: neighbors, then neighbors of those.

import { fromF32Array, RankSum, reducePartsPlain, toF32Array } from '@shardweave/dtypes';
import {
  dealLeaves,
  heldSums,
  type TreeNode,
  TreeSum,
  treeNodes,
  treeSums,
} from '@shardweave/dtypes/tree';
import fc from 'fast-check';
import { expect, it } from 'vitest';

const SUM = { dtype: 'f32', op: 'sum' } as const;

/** Numbers whose sum depends on the order of adding, by leaf. */
function partsOf(leaves: number, count: number): Float32Array[] {
  let state = leaves;
  const next = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state >>> 8;
  };
  return Array.from({ length: leaves }, () =>
    Float32Array.from(
      { length: count },
      () => ((next() % 2001) - 1000) * 2 ** ((next() % 40) - 20),
    ),
  );
}

function byLevels(parts: readonly Float32Array[]): Float32Array {
  if (parts.length === 1) {
    return parts[0]!;
  }
  const above: Float32Array[] = [];
  for (let i = 0; i < parts.length; i += 2) {
    const [left, right] = [parts[i]!, parts[i + 1]];
    above.push(right === undefined ? left : left.map((x, e) => Math.fround(x + right[e]!)));
  }
  return byLevels(above);
}

const bytesOf = (values: Float32Array) => fromF32Array(values, 'f32');
const shown = ({ first, end }: TreeNode) => `${first}-${end - 1}`;

/** Adds the parts of neighboring nodes; gives the sum of each node that they make. */
async function added(
  leaves: number,
  parts: readonly { readonly node: TreeNode; readonly bytes: Uint8Array }[],
  rankSum: RankSum,
) {
  const nodes = parts.map(({ node }) => node);
  const byteLength = parts[0]!.bytes.length;
  const memory = new Uint8Array(heldSums(leaves, nodes) * byteLength);
  const sum = new TreeSum({ leaves, byteLength, memory, rankSum });
  for (const { node, bytes } of parts) {
    await sum.push(node, bytes);
  }
  return sum.nodes.map((node, i) => ({
    node,
    bytes: sum.bytes.slice(i * byteLength, (i + 1) * byteLength),
  }));
}

it('cuts a run of leaves into its largest nodes', () => {
  const cut = (...run: [number, number, number]) =>
    treeNodes(...run)
      .map(shown)
      .join(' ');
  expect(cut(8, 0, 8)).toBe('0-7');
  expect(cut(8, 1, 6)).toBe('1-1 2-3 4-5 6-6');
  expect(cut(8, 3, 5)).toBe('3-3 4-7');
  expect(cut(7, 4, 3)).toBe('4-6'); // what has no right neighbor goes up as it is
  expect(cut(7, 0, 6)).toBe('0-3 4-5');
  expect(cut(5, 4, 1)).toBe('4-4');
  expect(cut(8, 3, 0)).toBe('');
});

it('tells in which order neighboring parts are added', () => {
  const parts = [treeNodes(8, 0, 3), treeNodes(8, 3, 4)].flat();
  expect(parts.map(shown)).toEqual(['0-1', '2-2', '3-3', '4-5', '6-6']);
  expect(treeSums(8, parts)).toEqual([
    { node: { first: 0, end: 4 }, numParts: 3, merges: [0, 0, 2] },
    { node: { first: 4, end: 6 }, numParts: 1, merges: [0] },
    { node: { first: 6, end: 7 }, numParts: 1, merges: [0] },
  ]);
});

it('deals leaves out as evenly as they go, the first ranks more', () => {
  expect(dealLeaves(8, 3)).toEqual([3, 3, 2]);
  expect(dealLeaves(2, 4)).toEqual([1, 1, 0, 0]);
  expect(dealLeaves(7, 7)).toEqual([1, 1, 1, 1, 1, 1, 1]);
});

it('any leaves, dealt out in any way, make the sum of one process', async () => {
  const rankSum = await RankSum.create();
  const deal = fc
    .integer({ min: 1, max: 40 })
    .chain((leaves) =>
      fc.tuple(
        fc.constant(leaves),
        fc.array(fc.integer({ min: 0, max: leaves }), { minLength: 0, maxLength: 8 }),
      ),
    );
  const property = fc.asyncProperty(deal, async ([leaves, cuts]) => {
    const parts = partsOf(leaves, 21);
    const edges = [0, ...cuts.sort((a, b) => a - b), leaves];
    const ofRanks = await Promise.all(
      edges.slice(1).map((end, rank) => {
        const first = edges[rank]!;
        const own = parts.slice(first, end).map((part, i) => {
          return { node: { first: first + i, end: first + i + 1 }, bytes: bytesOf(part) };
        });
        return own.length === 0 ? [] : added(leaves, own, rankSum);
      }),
    );
    ofRanks.forEach((own, rank) => {
      const nodes = treeNodes(leaves, edges[rank]!, edges[rank + 1]! - edges[rank]!);
      expect(own.map(({ node }) => node)).toEqual(nodes);
      expect(nodes.length).toBeLessThanOrEqual(2 * Math.ceil(Math.log2(leaves)) + 1);
    });
    const sent = ofRanks.flat();
    const [whole, ...others] = treeSums(
      leaves,
      sent.map(({ node }) => node),
    );
    expect(others).toEqual([]);
    const all = sent.map(({ bytes }) => bytes);
    const expected = bytesOf(byLevels(parts));
    for (const reduce of [rankSum.reduce.bind(rankSum), reducePartsPlain]) {
      const sum = new Uint8Array(expected.length);
      await reduce(all, sum, { ...SUM, merges: whole!.merges });
      expect(Buffer.compare(sum, expected)).toBe(0);
    }
    const [counted] = await added(leaves, sent, rankSum);
    expect(Buffer.compare(counted!.bytes, expected)).toBe(0);
  });
  await fc.assert(property, { numRuns: 80, seed: 1 });
});

it('adds parts of several slices, into one of them too', async () => {
  const rankSum = await RankSum.create();
  const parts = partsOf(6, 40_003);
  const all = parts.map(bytesOf);
  const [whole] = treeSums(6, leavesOf(6));
  await rankSum.reduce(all, all[2]!, { ...SUM, merges: whole!.merges });
  expect(Buffer.compare(all[2]!, bytesOf(byLevels(parts)))).toBe(0);
});

const leavesOf = (leaves: number) =>
  Array.from({ length: leaves }, (_, first) => ({ first, end: first + 1 }));

it('holds log2(n) + 1 sums at most, where a rank begins with the first leaf', () => {
  for (const leaves of [1, 2, 3, 8, 21, 64]) {
    const most = heldSums(leaves, leavesOf(leaves));
    expect(most).toBeLessThanOrEqual(Math.floor(Math.log2(leaves)) + 1);
  }
  expect(heldSums(8, leavesOf(8))).toBe(3); // the fourth is added as it comes
});

it('refuses parts out of order, and orders that are none', async () => {
  const rankSum = await RankSum.create();
  const memory = new Uint8Array(4);
  const sum = new TreeSum({ leaves: 4, byteLength: 4, memory, rankSum });
  const part = bytesOf(Float32Array.of(1));
  await sum.push({ first: 1, end: 2 }, part);
  await expect(sum.push({ first: 3, end: 4 }, part)).rejects.toThrow(
    /begins with leaf 2, got leaf 3/,
  );
  await expect(sum.push({ first: 2, end: 3 }, part)).rejects.toThrow(
    /memory for 2 sums of 4 bytes/,
  );
  expect([...toF32Array(sum.bytes, 'f32')]).toEqual([1]);
  const reduce = (merges: number[], options: object = SUM) =>
    reducePartsPlain([part, part], new Uint8Array(4), { ...SUM, ...options, merges });
  for (const merges of [[0], [0, 0], [1, 0], [0, 2], [0, 0.5]]) {
    expect(() => reduce(merges)).toThrow(/expected merges of 2 parts to one sum/);
  }
  expect(() => reduce([0, 1], { op: 'max' })).toThrow(
    /a sum of f32 in an order of its own, got max/,
  );
});
