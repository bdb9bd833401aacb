// The seam: what moves messages between ranks. A transport knows ranks and bytes, nothing of groups
// or matching; those are the Endpoint's, its listener.
//
// Ordering. Messages from one rank to another begin in the order in which `send` was called, and the
// bytes of each arrive in order; nothing is said between different pairs, nor about which message
// ends first. Control messages may overtake payload. onPeerLeft comes after everything that the peer
// sent.
// Ownership. `send` lends the payload until its promise settles. A chunk given to a sink is lent for
// the duration of `write`. The sink takes exactly the header's byteLength.
// Failure. onPeerLost comes once per peer, in bounded time after it died or fell silent, and after
// it nothing of that peer. `send` to a peer that left or was lost may resolve or reject: nobody
// depends on it. After `close` or `terminate` the listener hears nothing, and no payload is read.

import type { CallSignature } from './endpoint/call-signature.js';
import type { Failure, PeerCall } from './failure.js';

export interface MessageHeader {
  /** Id of the group. */
  readonly group: string;
  /** The collective's number in the group; the channel of send and recv. */
  readonly sequence: number;
  /** Which of the sender's messages of this call: below 2 ** 16. */
  readonly phase: number;
  readonly call: CallSignature;
  /** Payload bytes that follow. */
  readonly byteLength: number;
}

/** Takes the payload of one message in chunks, in order. */
export interface MessageSink {
  /**
   * Undefined: write now. Else it resolves when the receiver has named its buffer: what is written
   * before is held in memory of ours and copied again, so a transport that can leave the payload
   * where it is (`isLending`) waits. It also resolves when nobody wants the message any more; then
   * `write` drops what it gets.
   */
  readonly posted: Promise<void> | undefined;
  /**
   * Where the receiver only reads the payload, and nothing was written yet: instead of writing, a
   * transport whose payload lies in memory that this thread can read may hand over that memory, all
   * of it at once. `release` is called when it has been read, maybe more than once; it returns false
   * where the sender had the memory back before, so that nothing is made of what was read. Look it up
   * after `posted`.
   */
  readonly lend?: ((memory: Uint8Array, release: () => boolean) => void) | undefined;
  /**
   * Memory that the payload's next bytes go to, where the receiver has named it: a transport may
   * have them written there by the system, at once, and say how many by `filled` instead of `write`.
   * It writes nothing there once it has been told to close.
   */
  readonly room?: Uint8Array | undefined;
  filled?(byteLength: number): void;
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
  /** What links this rank to some peers, and is no rank itself, died or fell silent. Then no onPeerLost of them comes. */
  onRelayLost(reason: string): void;
  /** The peer said goodbye and sends nothing more. */
  onPeerLeft(peer: number): void;
}

export interface Transport {
  /**
   * Payloads wait at the sender until `posted`, so large messages need no agreement before they
   * are sent. Equal on all ranks of a job. Default: false.
   */
  readonly isLending?: boolean;
  /**
   * Resolves when the payload may be changed; undefined where it may be at once. `to` is another rank than one's own. `onProgress` may
   * be called as bytes leave: a call's time limit counts from the last progress.
   */
  send(
    to: number,
    header: MessageHeader,
    payload: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> | undefined;
  /** Told when this rank's first running operation begins, and when its last one is over. */
  busy?(isBusy: boolean): void;
  /** Small, ahead of queued payload, best effort. */
  sendControl(to: number, message: ControlMessage): void;
  /**
   * Frees everything, in at most about a second. 'drain': sends what is queued, then goodbye.
   * 'drop': forgets queued payload; control messages sent before still go out.
   */
  close(how: 'drain' | 'drop'): Promise<void>;
  /** Frees everything at once, without a word: peers see this rank as lost. */
  terminate(): void;
  /** Memory that this transport moves fastest. Default: plain memory. */
  allocate?(byteLength: number): Uint8Array;
  /** Makes memory of the caller's known, so that it is moved as fast as what `allocate` gives. */
  register?(buffer: SharedArrayBuffer): void;
  /** Forgets what `allocate` gave or `register` was told. The caller has no call with it pending. */
  release?(memory: Uint8Array | ArrayBufferLike): void;
}
