// All-gather, direct: each rank sends its part to every other one. A rank sends W - 1 parts and
// gets as many, which are the bytes of a ring, in one hop.

import type { Call } from '../endpoint/call.js';
import { receiveHalves, sendHalves } from './message-halves.js';
import { type PartLayout, partOf } from './part-layout.js';

/** Fills `output` with each rank's part; `own` may be its place in `output` already. */
export async function allGather(
  call: Call,
  own: Uint8Array,
  output: Uint8Array,
  layout: PartLayout,
): Promise<void> {
  const moved = call.peers.flatMap((peer) => {
    const { head, all } = receiveHalves(call, peer, partOf(output, layout, peer), 0);
    return [all, sendHalves(call, peer, own, 0, head)];
  });
  await Promise.all([...moved, call.copy(partOf(output, layout, call.rank), own)]);
}
