// Splits a message where it may leave before its receiver has called. The rest waits for a sign of
// the receiver, so what a late rank must hold of others stays small.

import type { Call } from '../endpoint/call.js';

/** A late rank holds this much of each peer; on the wire it covers the time that the sign takes. */
const EAGER_BYTES = 2 ** 20;

/** A message's two halves, as views; `rest` is empty where it all may leave at once. */
export interface Halves {
  readonly head: Uint8Array;
  readonly rest: Uint8Array;
}

/** Splits a payload alike at its sender and its receiver, since it goes by the length alone. */
export function halve(call: Call, payload: Uint8Array): Halves {
  const at = call.isLending ? payload.byteLength : EAGER_BYTES;
  return { head: payload.subarray(0, at), rest: payload.subarray(at) };
}

/** Sends the head as `phase` now, and the rest as `phase + 1` when `called` says so. */
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

/** Asks for both halves at once. `head` resolves with the first: the peer has called. */
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
