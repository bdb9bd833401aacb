// Reduce-scatter, direct to the owner of each part: W - 1 parts out and W - 1 parts in, the bytes of
// a ring, in one hop. The owner combines in rank order and rounds once, whatever arrives first.

import type { ReduceOptions } from '@shardweave/dtypes';
import type { Call } from '../call.js';
import { type PartLayout, partOf } from './part-layout.js';

/** Combines all ranks' parts of this rank into `output`, which may be that part of `input`. */
export async function reduceScatter(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  layout: PartLayout,
  options: ReduceOptions,
): Promise<void> {
  const own = partOf(input, layout, call.rank);
  const parts = Array.from({ length: call.worldSize }, (_, rank) =>
    rank === call.rank ? own : call.scratch.take(own.byteLength),
  );
  const received = call.peers.map((peer) => call.receive(peer, parts[peer]!));
  const sent = call.peers.map((peer) => call.send(peer, partOf(input, layout, peer)));
  await Promise.all([...received, ...sent]);
  await call.reduce(parts, output, options);
  for (const peer of call.peers) {
    call.scratch.give(parts[peer]!);
  }
}
