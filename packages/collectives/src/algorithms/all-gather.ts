// All-gather, direct: each rank sends its part to every other one. The bytes of a ring,
// (W - 1) / W of the output in and W - 1 parts out, in one hop.

import type { Call } from '../call.js';
import { type PartLayout, partOf } from './part-layout.js';

/** Fills `output` with each rank's part; `own` may be its place in `output` already. */
export async function allGather(
  call: Call,
  own: Uint8Array,
  output: Uint8Array,
  layout: PartLayout,
  phase = 0,
): Promise<void> {
  const received = call.peers.map((peer) =>
    call.receive(peer, partOf(output, layout, peer), phase),
  );
  const sent = call.peers.map((peer) => call.send(peer, own, phase));
  const place = partOf(output, layout, call.rank);
  // A view of the same bytes is common (a shard inside its full buffer) and needs no copy.
  if (place.buffer !== own.buffer || place.byteOffset !== own.byteOffset) {
    place.set(own);
  }
  await Promise.all([...received, ...sent]);
}
