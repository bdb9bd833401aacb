// Direct reduce-scatter: each rank sends every other one the part that the other owns, W - 1 parts
// out and W - 1 parts in, which is as many bytes as in a ring, but in one hop. The owner combines
// in rank order and rounds once, whatever arrives first.
//
// Note [rounds]
// Parts travel in segments, one round of them at a time, and each round is summed while the next
// ones arrive. A rank sends AHEAD rounds more than it has summed. So a peer that has sent it round
// k has received its round k - AHEAD, and nobody ever holds more than 2 AHEAD rounds, without any
// acknowledgements. For that reason each round has a message between every two ranks, even an empty
// one.

import type { ReduceOptions } from '@shardweave/dtypes';
import { type Borrowed, giveBack } from '../endpoint/borrowed.js';
import type { Call } from '../endpoint/call.js';
import { Hierarchical } from './hierarchical.js';
import {
  type PartLayout,
  partOf,
  planSegments,
  type SegmentPlan,
  segmentOf,
} from './part-layout.js';

/** The rounds that are on their way beside the one that is being summed: 2 MiB keep a link busy. */
const AHEAD = 2;

export interface ReduceScatterOptions {
  readonly reduce: ReduceOptions;
  /** Whether `output` gets what the only other rank has, to which the caller adds its own. */
  readonly isOtherAlone?: boolean;
  /** Called when this rank's segment of a round is in `output`. */
  onReduced?(segment: Uint8Array, round: number): void;
}

/**
 * Combines all ranks' shares of this rank's part into `output`, which may be that part of `input`.
 * Sends in phases 0 to `numRounds - 1`.
 */
export async function reduceScatterRounds(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  layout: PartLayout,
  plan: SegmentPlan,
  { reduce, isOtherAlone = false, onReduced }: ReduceScatterOptions,
): Promise<void> {
  const own = partOf(input, layout, call.rank);
  const begin = (round: number): Promise<Borrowed[]> => {
    const { byteLength } = segmentOf(own, plan, round);
    const arriving = call.peers.map((peer) => call.borrow(peer, byteLength, round));
    for (const peer of call.peers) {
      void call.send(peer, segmentOf(partOf(input, layout, peer), plan, round), round);
    }
    return Promise.all(arriving);
  };
  const rounds = Array.from({ length: Math.min(AHEAD, plan.numRounds) }, (_, round) =>
    begin(round),
  );
  for (let round = 0; round < plan.numRounds; round++) {
    const borrowed = await rounds.shift()!;
    const parts = inRankOrder(call, segmentOf(own, plan, round), borrowed);
    const segment = segmentOf(output, plan, round);
    if (segment.byteLength > 0) {
      await (isOtherAlone
        ? call.copy(segment, borrowed[0]!.bytes)
        : call.reduce(parts, segment, reduce));
    }
    const withdrawn = giveBack(borrowed);
    if (withdrawn !== undefined) {
      await withdrawn;
    }
    if (segment.byteLength > 0) {
      onReduced?.(segment, round);
    }
    if (round + AHEAD < plan.numRounds) {
      rounds.push(begin(round + AHEAD));
    }
  }
}

/**
 * Runs `reduceScatterRounds` as an operation of its own. With `addOwn`, which is called, the caller
 * adds this rank's part where only two numbers are added.
 */
export async function reduceScatter(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  layout: PartLayout,
  options: ReduceOptions,
  addOwn?: () => void,
): Promise<void> {
  if (call.spec.hosts !== undefined) {
    return new Hierarchical(call, call.spec.hosts, layout, options).reduceScatter(input, output);
  }
  const plan = planSegments(layout);
  const own = partOf(input, layout, call.rank);
  const isInPlace = own.buffer === output.buffer && own.byteOffset === output.byteOffset;
  const isOfTwo = call.worldSize === 2 && options.op === 'sum';
  const isOtherAlone = addOwn !== undefined && isOfTwo && !isInPlace;
  await reduceScatterRounds(call, input, output, layout, plan, { reduce: options, isOtherAlone });
  if (isOtherAlone) {
    addOwn();
  }
}

/** All ranks' shares in rank order, where `borrowed` is in the order of `call.peers`. */
function inRankOrder(call: Call, own: Uint8Array, borrowed: readonly Borrowed[]): Uint8Array[] {
  const parts: Uint8Array[] = [];
  parts[call.rank] = own;
  call.peers.forEach((peer, i) => {
    parts[peer] = borrowed[i]!.bytes;
  });
  return parts;
}
