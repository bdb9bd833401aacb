// All-reduce: a reduce-scatter to the owners of parts, who send their results to all ranks, segment
// by segment. Small buffers travel whole instead. With few ranks each one sends its buffer to all
// others, and every rank combines all of them (one hop). With more ranks they send theirs to rank
// 0, which sends the result back (fewer messages). The bits are the same every way, because each
// element is combined in rank order and rounded once.

import { byteSize, type ReduceOptions } from '@shardweave/dtypes';
import type { Call } from '../endpoint/call.js';
import { allReduceByHosts, reduceByHosts } from './hierarchical.js';
import { balancedParts, partOf, planSegments, segmentOf } from './part-layout.js';
import { reduceScatterRounds } from './reduce-scatter.js';

/**
 * Up to this many bytes it is cheaper to send whole buffers: fewer messages and hops outweigh the
 * bytes. At 32 KiB it depends on the transport
 * (bench/reports/2026-11-21-collectives-thresholds.md).
 */
export const GATHER_ALL_MAX_BYTES = 16 * 1024;

/**
 * From this many ranks on, a small buffer goes by way of rank 0: 2 (W - 1) messages in two hops
 * instead of W (W - 1) in one (bench/reports/2026-11-21-collectives-thresholds.md).
 */
export const ROOTED_MIN_RANKS = 4;

/** Combines all inputs into every `output`, which may be `input`. */
export async function allReduce(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  options: ReduceOptions,
): Promise<void> {
  if (input.byteLength <= GATHER_ALL_MAX_BYTES) {
    if (isReducedAtRoot(call)) {
      await reduceAtRoot(call, input, output, options);
      return;
    }
    await reduceEverywhere(call, input, output, options);
    return;
  }
  if (call.spec.hosts !== undefined) {
    await allReduceByHosts(call, call.spec.hosts, input, output, options);
    return;
  }
  const layout = balancedParts(call.worldSize, input.byteLength, byteSize(options.dtype));
  const plan = planSegments(layout);
  const { numRounds } = plan;
  // The results are asked for at once, though `output` may be `input`: an owner sends the result of
  // a segment only after it has read this rank's share of it.
  const gathered = call.peers.flatMap((peer) => {
    const part = partOf(output, layout, peer);
    return Array.from({ length: numRounds }, (_, round) => segmentOf(part, plan, round)).map(
      (segment, round) =>
        segment.byteLength > 0 ? call.receive(peer, segment, numRounds + round) : undefined,
    );
  });
  await reduceScatterRounds(call, input, partOf(output, layout, call.rank), layout, plan, {
    reduce: options,
    onReduced: (segment, round) => {
      for (const peer of call.peers) {
        void call.send(peer, segment, numRounds + round);
      }
    },
  });
  await Promise.all(gathered);
}

function isReducedAtRoot({ worldSize, spec }: Call): boolean {
  return worldSize >= ROOTED_MIN_RANKS && spec.hosts === undefined;
}

/**
 * The bytes that this rank sends for a buffer of up to GATHER_ALL_MAX_BYTES; it receives as many.
 */
export function smallAllReduceBytes(call: Call, byteLength: number): number {
  const isLeaf = isReducedAtRoot(call) && call.rank !== 0;
  return isLeaf ? byteLength : byteLength * (call.worldSize - 1);
}

async function reduceEverywhere(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  options: ReduceOptions,
): Promise<void> {
  const { all, parts } = takeParts(call, input);
  const received = call.peers.map((peer) => call.receive(peer, parts[peer]!));
  for (const peer of call.peers) {
    void call.send(peer, input);
  }
  await Promise.all(received);
  if (output.buffer === input.buffer) {
    await call.sends.settled(); // `output` may be `input`, and a peer may still be copying that
  }
  if (call.spec.hosts === undefined) {
    await call.reduce(parts, output, options);
  } else {
    await reduceByHosts(call, call.spec.hosts, parts, output, options);
  }
  call.scratch.give(all);
}

async function reduceAtRoot(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  options: ReduceOptions,
): Promise<void> {
  if (call.rank !== 0) {
    // `output` may be `input`: nothing arrives before rank 0 has read the input.
    await Promise.all([call.receive(0, output, 1), call.send(0, input)]);
    return;
  }
  const { all, parts } = takeParts(call, input);
  await Promise.all(call.peers.map((peer) => call.receive(peer, parts[peer]!)));
  await call.reduce(parts, output, options);
  for (const peer of call.peers) {
    void call.send(peer, output, 1);
  }
  call.scratch.give(all);
}

/** Buffers for all ranks' inputs, by rank: this rank's own, and scratch memory for the others. */
function takeParts(call: Call, own: Uint8Array): { all: Uint8Array; parts: Uint8Array[] } {
  const { byteLength } = own;
  const all = call.scratch.take(byteLength * call.worldSize);
  const parts: Uint8Array[] = [];
  for (let rank = 0; rank < call.worldSize; rank++) {
    const isOwn = rank === call.rank;
    parts.push(isOwn ? own : all.subarray(rank * byteLength, (rank + 1) * byteLength));
  }
  return { all, parts };
}
