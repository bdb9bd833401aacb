// Broadcast and gather, direct between the root and every other rank. The other direction carries
// an empty message: so that ranks which disagree about the call or its root meet and notice.

import type { Call } from '../call.js';
import { evenParts, partOf } from './part-layout.js';

const EMPTY = new Uint8Array(0);

/** `buffer` of the root to all. */
export async function broadcast(call: Call, buffer: Uint8Array, root: number): Promise<void> {
  if (call.rank === root) {
    const heard = call.peers.map((peer) => call.receive(peer, EMPTY));
    await Promise.all([...heard, ...call.peers.map((peer) => call.send(peer, buffer))]);
  } else {
    await Promise.all([call.receive(root, buffer), call.send(root, EMPTY)]);
  }
}

/** Each rank's `input` into its place in the root's `output`. */
export async function gather(
  call: Call,
  input: Uint8Array,
  output: Uint8Array | null,
  root: number,
): Promise<void> {
  if (call.rank !== root || output === null) {
    await Promise.all([call.receive(root, EMPTY), call.send(root, input)]);
    return;
  }
  const layout = evenParts(call.worldSize, input.byteLength);
  const received = call.peers.map((peer) => call.receive(peer, partOf(output, layout, peer)));
  const told = call.peers.map((peer) => call.send(peer, EMPTY));
  partOf(output, layout, root).set(input);
  await Promise.all([...received, ...told]);
}
