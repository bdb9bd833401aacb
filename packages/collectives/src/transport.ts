// The seam: what moves messages between ranks. A transport knows ranks and bytes, nothing of groups
// or matching; those are the Endpoint's, its listener.
//
// Ordering. Messages from one rank to another begin in the order in which `send` was called, and the
// bytes of each arrive in order; nothing is said between different pairs. Control messages may
// overtake payload. onPeerLeft comes after everything that the peer sent.
// Ownership. `send` lends the payload until its promise settles. A chunk given to a sink is lent for
// the duration of `write`. The sink takes exactly the header's byteLength.
// Failure. onPeerLost comes once per peer, in bounded time after it died or fell silent, and after
// it nothing of that peer. `send` to a peer that left or was lost may resolve or reject: nobody
// depends on it. After `close` or `terminate` the listener hears nothing.

import type { CallSignature } from './call-signature.js';
import type { Failure, PeerCall } from './failure.js';

export interface MessageHeader {
  /** Id of the group. */
  readonly group: string;
  /** The collective's number in the group; the channel of send and recv. */
  readonly sequence: number;
  /** 0, or 1 for what an operation sends in its second half. */
  readonly phase: number;
  readonly call: CallSignature;
  /** Payload bytes that follow. */
  readonly byteLength: number;
}

/** Takes the payload of one message in chunks, in order. */
export interface MessageSink {
  write(chunk: Uint8Array): void;
}

export type ControlMessage =
  | { readonly type: 'failure'; readonly failure: Failure }
  | {
      readonly type: 'mismatch';
      readonly group: string;
      readonly sequence: number;
      /** World ranks of the group. */
      readonly members: readonly number[];
      readonly calls: readonly PeerCall[];
    };

export interface TransportListener {
  /** A message begins; the sink takes its payload. A message of 0 bytes is complete with this. */
  onMessage(from: number, header: MessageHeader): MessageSink;
  onControl(from: number, message: ControlMessage): void;
  onPeerLost(peer: number, reason: string): void;
  /** The peer said goodbye and sends nothing more. */
  onPeerLeft(peer: number): void;
}

export interface Transport {
  /** Resolves when the payload may be changed. `to` is another rank than one's own. */
  send(to: number, header: MessageHeader, payload: Uint8Array): Promise<void>;
  /** Small, ahead of queued payload, best effort. */
  sendControl(to: number, message: ControlMessage): void;
  /**
   * Frees everything, in at most about a second. 'drain': sends what is queued, then goodbye.
   * 'drop': forgets queued payload; control messages sent before still go out.
   */
  close(how: 'drain' | 'drop'): Promise<void>;
  /** Frees everything at once, without a word: peers see this rank as lost. */
  terminate(): void;
}
