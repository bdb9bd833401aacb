// The seam: what moves messages between ranks. A transport knows ranks and bytes. It knows nothing
// of groups or of matching, which are the business of its listener, the Endpoint.
//
// - Ordering: messages from one rank to another begin in the order in which `send` was called, and
//   the bytes of each arrive in order. Messages between different pairs of ranks come in any order,
//   and a message may end before one that began earlier. Control messages may overtake payload.
//   onPeerLeft comes after everything that the peer sent.
// - Ownership: `send` lends the payload until its promise settles. A chunk that a sink is given is
//   lent for the duration of `write`. A sink takes exactly as many bytes as the header says:
//   `write` throws on more, and with fewer the receiver waits until its call's time limit.
// - Failure: onPeerLost comes once per peer, in bounded time after it died or fell silent, and
//   nothing of that peer comes after it. `send` to a peer that left or was lost may resolve or
//   reject; nothing depends on which. After `close` or `terminate` the listener hears nothing, and
//   no payload is read.
// - Data: headers and control messages are plain objects of strings, numbers, arrays and null,
//   which JSON and structured clone carry as they are. A payload is any view of the caller's: a
//   part of a larger buffer, of a SharedArrayBuffer, or a Buffer of Node. It is never transferred.

import type { CallSignature } from './call-signature.js';
import type { Failure, PeerCall } from './failure.js';

/**
 * What goes before the payload of a message and tells its receiver which call it is part of. The
 * first message of an all-gather of 12 bytes a rank has
 * `{ group: 'world', sequence: 0, phase: 0, byteLength: 12, call: { operation: 'allGather',
 * dtype: 'u8', reduceOp: null, byteLength: 12, root: -1, layout: 0 } }`.
 */
export interface MessageHeader {
  /** The id of the group, such as 'world'. */
  readonly group: string;
  /** The number of the collective in its group; for send and recv, their channel. */
  readonly sequence: number;
  /** Tells the sender's messages of one call apart; below 2 ** 16. */
  readonly phase: number;
  readonly call: CallSignature;
  /** The number of bytes of payload that follow. */
  readonly byteLength: number;
}

/** Takes the payload of one message in chunks, in order. */
export interface MessageSink {
  /**
   * Undefined where the payload may be written at once. Otherwise it resolves when the receiver has
   * named its buffer. What is written before that is held in the endpoint's memory and copied
   * again, so a transport that can leave the payload where it is (`isLending`) waits. It also
   * resolves when nobody wants the message any more; then `write` drops what it gets.
   */
  readonly posted: Promise<void> | undefined;
  /**
   * Present where the receiver only reads the payload, and nothing was written yet. Instead of
   * writing, a transport whose payload lies in memory that this thread can read may hand over that
   * memory, all of it at once. `release` is called when the memory has been read, perhaps more than
   * once. It returns false where the sender took the memory back before, in which case the receiver
   * discards what it has read. A transport looks this up after `posted`.
   */
  readonly lend?: ((memory: Uint8Array, release: () => boolean) => void) | undefined;
  /**
   * The memory for the payload's next bytes, where the receiver has named it. A transport may have
   * the system write them there, and tell how many by `filled` instead of `write`. It writes
   * nothing there once it has been told to close.
   */
  readonly room?: Uint8Array | undefined;
  filled?(byteLength: number): void;
  write(chunk: Uint8Array): void;
}

/**
 * A small message about the job itself: a failure that all ranks have to learn, or the calls of
 * ranks that disagree.
 */
export type ControlMessage =
  | { readonly type: 'failure'; readonly failure: Failure }
  | {
      readonly type: 'mismatch';
      readonly group: string;
      readonly sequence: number;
      /** The world ranks of the group. */
      readonly members: readonly number[];
      readonly calls: readonly PeerCall[];
    }
  /** A question to a rank on which this one may be waiting, and the answer. */
  | { readonly type: 'have you called'; readonly group: string; readonly sequence: number }
  | {
      readonly type: 'has called';
      readonly group: string;
      readonly sequence: number;
      readonly hasCalled: boolean;
      /** What it has called there; undefined where it does not remember it. */
      readonly call?: string | undefined;
    };

/**
 * What a transport tells its rank; the Endpoint implements it. After `close` or `terminate` of the
 * transport nothing of this is called.
 */
export interface TransportListener {
  /**
   * Called when a message begins; the sink takes its payload. A message of 0 bytes is complete with
   * this.
   */
  onMessage(from: number, header: MessageHeader): MessageSink;
  onControl(from: number, message: ControlMessage): void;
  /**
   * Called when a peer is lost. `lost` has all that are dead or cut off, where the transport can
   * tell; it lacks a peer that only gave up, for a reason that is not known here.
   */
  onPeerLost(peer: number, reason: string, lost?: readonly number[]): void;
  /**
   * Called when a process that links this rank to some peers, without being a rank itself, died or
   * fell silent. onPeerLost is then not called for those peers.
   */
  onRelayLost(reason: string): void;
  /** Called when the peer has said goodbye; it sends nothing more. */
  onPeerLeft(peer: number): void;
}

/**
 * Moves messages between the ranks of a job; ranks are those of the world. The head of this file
 * states what an implementation keeps on ordering, ownership and failure, and `conformanceCases` of
 * the entry `testing` checks it.
 */
export interface Transport {
  /**
   * Whether payloads wait at the sender until `posted`, so that large messages need no agreement
   * before they are sent. It is equal on all ranks of a job. Default: false.
   */
  readonly isLending?: boolean;
  /**
   * Sends a message. Resolves when the payload may be changed; undefined where it may be changed at
   * once. `to` is never the sender itself. `onProgress` may be called as bytes leave: a call's time
   * limit counts from the last progress.
   */
  send(
    to: number,
    header: MessageHeader,
    payload: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> | undefined;
  /**
   * Called when this rank's first running operation begins, and when its last one is over. A
   * transport keeps its process alive in between, for example by `ref` and `unref` of its ports.
   */
  busy?(isBusy: boolean): void;
  /** Sends a small message ahead of queued payload, as far as the link still works. */
  sendControl(to: number, message: ControlMessage): void;
  /**
   * Frees everything, in at most about a second. 'drain' sends what is queued, and then a goodbye.
   * 'drop', after a failure, forgets queued payload; control messages that were sent before still
   * go out and tell the peers why. Whether the peers then see this rank as lost makes no
   * difference.
   */
  close(how: 'drain' | 'drop'): Promise<void>;
  /** Frees everything at once, without a word: peers see this rank as lost. */
  terminate(): void;
  /** Allocates memory of the kind that this transport moves fastest. Default: plain memory. */
  allocate?(byteLength: number): Uint8Array;
  /**
   * Tells the transport about memory of the caller's, so that it moves that as fast as what
   * `allocate` gives.
   */
  register?(buffer: SharedArrayBuffer): void;
  /**
   * Forgets what `allocate` gave or `register` was told. The caller has no call with it pending.
   */
  release?(memory: Uint8Array | ArrayBufferLike): void;
}
