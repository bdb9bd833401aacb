// Reduce-scatter and all-reduce of sums in the order of a tree: a rank holds the sums of some of
// its leaves, as one part or several, and sends each other rank that one's share of all of them. So
// results have the same bits whoever holds which leaves. It works as reduce-scatter.ts does, whose
// Note [rounds] applies here, too; a round has a message for each part.

import type { TreeNode, TreeSumPlan } from '@shardweave/dtypes/tree';
import { type Borrowed, giveBack } from '../endpoint/borrowed.js';
import type { Call } from '../endpoint/call.js';
import {
  balancedParts,
  type PartLayout,
  partOf,
  planSegments,
  type SegmentPlan,
  segmentOf,
} from './part-layout.js';

/** The same number as in reduce-scatter.ts. */
const AHEAD = 2;

const EMPTY = new Uint8Array(0);

/** What the ranks of a call hold of the tree, and what becomes of it. */
export interface TreeCall {
  /** The nodes whose sums each rank holds, in group order. */
  readonly nodes: readonly (readonly TreeNode[])[];
  /** The sums of all of these nodes. */
  readonly sums: readonly TreeSumPlan[];
  /** The leaves of the tree, the first leaf of the call, and the number of each rank's leaves. */
  readonly numbers: readonly number[];
}

/** The plan of a call's messages: each of the most parts of a rank has a phase in each round. */
function planTree(layout: PartLayout, { nodes }: TreeCall): SegmentPlan & { most: number } {
  const most = Math.max(1, ...nodes.map(({ length }) => length));
  return { ...planSegments(layout, most), most };
}

/**
 * Fills `output` with this rank's part of each sum, one after the other. `input` has this rank's
 * nodes, one after the other; it and `output` may begin at one place where `output` is one sum.
 */
export async function treeReduceScatter(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  layout: PartLayout,
  tree: TreeCall,
  onReduced: (segment: Uint8Array, round: number) => void = () => {},
): Promise<void> {
  const { nodes, sums } = tree;
  const plan = planTree(layout, tree);
  const wholeBytes = layout.offsets.at(-1)!;
  const own = nodes[call.rank]!.map((_, i) => input.subarray(i * wholeBytes, (i + 1) * wholeBytes));
  const shareOf = (whole: Uint8Array, rank: number, round: number) =>
    segmentOf(partOf(whole, layout, rank), plan, round);
  const sumBytes = output.byteLength / sums.length;
  const begin = (round: number): Promise<Borrowed[][]> => {
    const target = segmentOf(output.subarray(0, sumBytes), plan, round);
    const arriving = call.peers.map((peer) => {
      // A rank without a leaf sends an empty message, so that none gets ahead of it.
      const lengths = nodes[peer]!.length === 0 ? [0] : nodes[peer]!.map(() => target.byteLength);
      return Promise.all(
        lengths.map((byteLength, i) => call.borrow(peer, byteLength, round * plan.most + i)),
      );
    });
    for (const peer of call.peers) {
      const shares = own.length === 0 ? [EMPTY] : own.map((whole) => shareOf(whole, peer, round));
      for (const [i, share] of shares.entries()) {
        void call.send(peer, share, round * plan.most + i);
      }
    }
    return Promise.all(arriving);
  };
  const rounds = Array.from({ length: Math.min(AHEAD, plan.numRounds) }, (_, round) =>
    begin(round),
  );
  for (let round = 0; round < plan.numRounds; round++) {
    const borrowed = await rounds.shift()!;
    const ofRanks: Uint8Array[][] = [];
    ofRanks[call.rank] = own.map((whole) => shareOf(whole, call.rank, round));
    for (const [i, peer] of call.peers.entries()) {
      ofRanks[peer] = nodes[peer]!.map((_, node) => borrowed[i]![node]!.bytes);
    }
    const parts = ofRanks.flat();
    let from = 0;
    for (const [i, { numParts, merges }] of sums.entries()) {
      const sum = output.subarray(i * sumBytes, (i + 1) * sumBytes);
      const segment = segmentOf(sum, plan, round);
      if (segment.byteLength > 0) {
        const options = { dtype: 'f32', op: 'sum', merges } as const;
        await call.reduce(parts.slice(from, from + numParts), segment, options);
      }
      from += numParts;
    }
    await giveBack(borrowed.flat());
    const segment = segmentOf(output.subarray(0, sumBytes), plan, round);
    if (segment.byteLength > 0) {
      onReduced(segment, round);
    }
    if (round + AHEAD < plan.numRounds) {
      rounds.push(begin(round + AHEAD));
    }
  }
}

/**
 * Fills every `output` with the sum of all leaves. `input` has this rank's nodes, one after the
 * other, and may begin where `output` does: an owner sends a result only after it has read the
 * shares of it.
 */
export async function treeAllReduce(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  tree: TreeCall,
): Promise<void> {
  const layout = treeParts(call, output.byteLength);
  const plan = planTree(layout, tree);
  const results = plan.numRounds * plan.most; // the phase of the first result
  const gathered = call.peers.flatMap((peer) =>
    Array.from({ length: plan.numRounds }, (_, round) => {
      const segment = segmentOf(partOf(output, layout, peer), plan, round);
      return segment.byteLength > 0 ? call.receive(peer, segment, results + round) : undefined;
    }),
  );
  const part = partOf(output, layout, call.rank);
  await treeReduceScatter(call, input, part, layout, tree, (segment, round) => {
    for (const peer of call.peers) {
      void call.send(peer, segment, results + round);
    }
  });
  await Promise.all(gathered);
}

/** Who makes which part of an all-reduce's sum. */
export function treeParts({ worldSize }: Call, byteLength: number): PartLayout {
  return balancedParts(worldSize, byteLength, Float32Array.BYTES_PER_ELEMENT);
}
