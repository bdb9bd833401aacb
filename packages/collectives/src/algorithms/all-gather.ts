// Direct all-gather: each rank sends its part to every other rank. A rank sends W - 1 parts and
// receives as many, which is as many bytes as in a ring, but in one hop.

import type { Call } from '../endpoint/call.js';
import { receiveHalves, sendHalves } from './message-halves.js';
import { type PartLayout, partOf } from './part-layout.js';

/**
 * Fills `output` with each rank's part; `own` may already lie at its place in `output`. With
 * `placeOwn`, which is called, the caller brings it there.
 */
export async function allGather(
  call: Call,
  own: Uint8Array,
  output: Uint8Array,
  layout: PartLayout,
  placeOwn?: () => void,
): Promise<void> {
  const moved = call.peers.flatMap((peer) => {
    const { head, all } = receiveHalves(call, peer, partOf(output, layout, peer), 0);
    return [all, sendHalves(call, peer, own, 0, head)];
  });
  const placed =
    placeOwn === undefined ? call.copy(partOf(output, layout, call.rank), own) : placeOwn();
  await Promise.all([...moved, placed]);
}
