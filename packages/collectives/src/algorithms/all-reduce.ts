// All-reduce: a reduce-scatter to the owners, whose results go to all, segment by segment. Small
// buffers are gathered whole and combined everywhere instead: one hop, and the same bits, since each
// element is combined in rank order and rounded once either way.

import { byteSize, type ReduceOptions } from '@shardweave/dtypes';
import type { Call } from '../call.js';
import { allReduceByHosts, reduceByHosts } from './hierarchical.js';
import { balancedParts, partOf, planSegments, segmentOf } from './part-layout.js';
import { reduceScatterRounds } from './reduce-scatter.js';

/** Up to here, gathering whole buffers is faster: half the hops outweigh the bytes. */
export const GATHER_ALL_MAX_BYTES = 16 * 1024;

/** Combines all inputs into every `output`, which may be `input`. */
export async function allReduce(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  options: ReduceOptions,
): Promise<void> {
  if (input.byteLength <= GATHER_ALL_MAX_BYTES) {
    await reduceEverywhere(call, input, output, options);
    return;
  }
  if (call.hosts !== undefined) {
    await allReduceByHosts(call, call.hosts, input, output, options);
    return;
  }
  const layout = balancedParts(call.worldSize, input.byteLength, byteSize(options.dtype));
  const plan = planSegments(layout);
  const { numRounds } = plan;
  // Asked for at once, though `output` may be `input`: an owner answers a segment only when it has
  // read this rank's share of it.
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

async function reduceEverywhere(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  options: ReduceOptions,
): Promise<void> {
  const { byteLength } = input;
  const all = call.scratch.take(byteLength * call.worldSize);
  const parts = Array.from({ length: call.worldSize }, (_, rank) =>
    rank === call.rank ? input : all.subarray(rank * byteLength, (rank + 1) * byteLength),
  );
  const received = call.peers.map((peer) => call.receive(peer, parts[peer]!));
  for (const peer of call.peers) {
    void call.send(peer, input);
  }
  await Promise.all(received);
  if (output.buffer === input.buffer) {
    await call.sent(); // `output` may be `input`, and a peer may still be copying that
  }
  if (call.hosts === undefined) {
    await call.reduce(parts, output, options);
  } else {
    await reduceByHosts(call, call.hosts, parts, output, options);
  }
  call.scratch.give(all);
}
