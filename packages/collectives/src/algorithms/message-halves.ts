// Splits a message of which a part may be sent before its receiver has called. The rest waits for a
// sign from the receiver, so a late rank never holds much of what others send.

import type { Call } from '../endpoint/call.js';

/**
 * The most that a late rank holds of each peer; on the wire it covers the time that the sign takes.
 */
const EAGER_BYTES = 2 ** 20;

/** A message's two halves, as views; `rest` is empty where all of it may be sent at once. */
export interface Halves {
  readonly head: Uint8Array;
  readonly rest: Uint8Array;
}

/**
 * Splits a payload in the same way at its sender and at its receiver, because only the length
 * decides.
 */
function halve(call: Call, payload: Uint8Array): Halves {
  const at = call.isLending ? payload.byteLength : EAGER_BYTES;
  return { head: payload.subarray(0, at), rest: payload.subarray(at) };
}

/** Sends the head as `phase` at once, and the rest as `phase + 1` when `called` resolves. */
export function sendHalves(
  call: Call,
  peer: number,
  payload: Uint8Array,
  phase: number,
  called: Promise<unknown>,
): Promise<void> {
  const { head, rest } = halve(call, payload);
  const sent = call.send(peer, head, phase);
  if (rest.byteLength === 0) {
    return sent;
  }
  return called.then(() => call.send(peer, rest, phase + 1));
}

/**
 * Asks for both halves at once. `head` resolves with the first one, which shows that the peer has
 * called.
 */
export function receiveHalves(
  call: Call,
  peer: number,
  target: Uint8Array,
  phase: number,
): { readonly head: Promise<void>; readonly all: Promise<unknown> } {
  const { head, rest } = halve(call, target);
  const first = call.receive(peer, head, phase);
  if (rest.byteLength === 0) {
    return { head: first, all: first };
  }
  return { head: first, all: Promise.all([first, call.receive(peer, rest, phase + 1)]) };
}
