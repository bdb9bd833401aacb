// A barrier. Few ranks tell each other directly, in one hop; more ranks tell rank 0, which tells
// all of them: 2 (W - 1) messages instead of W (W - 1).

import type { Call } from '../endpoint/call.js';
import { allGather } from './all-gather.js';
import { ROOTED_MIN_RANKS } from './all-reduce.js';
import { evenParts } from './part-layout.js';

const EMPTY = new Uint8Array(0);

/** Resolves when all ranks have called it. */
export async function barrier(call: Call): Promise<void> {
  if (call.worldSize < ROOTED_MIN_RANKS) {
    await allGather(call, EMPTY, EMPTY, evenParts(call.worldSize, 0));
  } else if (call.rank === 0) {
    await Promise.all(call.peers.map((peer) => call.receive(peer, EMPTY)));
    for (const peer of call.peers) {
      void call.send(peer, EMPTY, 1);
    }
  } else {
    await Promise.all([call.receive(0, EMPTY, 1), call.send(0, EMPTY)]);
  }
}
