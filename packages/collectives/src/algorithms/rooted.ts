// Gather, and broadcast of small or lent buffers: messages go directly between the root and every
// other rank. In the other direction goes an empty message, by which ranks that disagree about the
// call or its root notice it, and which tells that a rank has called.

import type { Call } from '../endpoint/call.js';
import { receiveHalves, sendHalves } from './message-halves.js';
import { evenParts, partOf } from './part-layout.js';
import { isScattered, scatterBroadcast } from './scatter-broadcast.js';

const EMPTY = new Uint8Array(0);

/** Sends the root's `buffer` to all other ranks. */
export async function broadcast(call: Call, buffer: Uint8Array, root: number): Promise<void> {
  if (isScattered(call, buffer.byteLength)) {
    await scatterBroadcast(call, buffer, root);
  } else if (call.rank === root) {
    const sent = call.peers.map((peer) => {
      const called = call.receive(peer, EMPTY);
      return Promise.all([called, sendHalves(call, peer, buffer, 0, called)]);
    });
    await Promise.all(sent);
  } else {
    const received = receiveHalves(call, root, buffer, 0).all;
    await Promise.all([received, call.send(root, EMPTY)]);
  }
}

/** Sends each rank's `input` to its place in the root's `output`. */
export async function gather(
  call: Call,
  input: Uint8Array,
  output: Uint8Array | null,
  root: number,
): Promise<void> {
  if (call.rank !== root || output === null) {
    const called = call.receive(root, EMPTY);
    await Promise.all([called, sendHalves(call, root, input, 0, called)]);
    return;
  }
  const layout = evenParts(call.worldSize, input.byteLength);
  const received = call.peers.map(
    (peer) => receiveHalves(call, peer, partOf(output, layout, peer), 0).all,
  );
  const told = call.peers.map((peer) => call.send(peer, EMPTY));
  await Promise.all([...received, ...told, call.copy(partOf(output, layout, root), input)]);
}
