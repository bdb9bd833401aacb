// What a rank sends to one peer through its ring: answers that the peer waits for, messages that
// begin, and the chunks of those that have begun. See shm-link.ts for the ways of a payload.

import { isPointToPoint } from '../../call-signature.js';
import type { MessageHeader } from '../../transport.js';
import { FRAME, HeaderEncoder } from './message-coding.js';
import { emptyHead, type RingWriter } from './ring.js';
import type { ShmLinkOptions } from './shm-link.js';

/**
 * A payload of up to this many bytes is copied twice, without waiting for an answer, which would
 * take longer than the copy.
 */
const INLINE_MAX_BYTES = 16 * 1024;

/**
 * The number of frames that are written or read at a time: chunks of a ring and a half, or 0.1 ms
 * of small messages.
 */
export const TURN_FRAMES = 16;

const EMPTY = new Uint8Array(0);

interface Outgoing {
  readonly header: MessageHeader;
  readonly payload: Uint8Array;
  readonly kind: number;
  readonly id: number;
  readonly onProgress: (() => void) | undefined;
  /** The number of bytes that have been put into the ring. */
  sent: number;
  /** Whether nothing reads the payload any more. */
  isDone: boolean;
  onDone: (() => void) | undefined;
}

export class RingSendQueue {
  readonly #options: ShmLinkOptions;
  readonly #writer: RingWriter;
  readonly #encoder = new HeaderEncoder();
  readonly #head = emptyHead();
  /** The answers that are to be written: the kind of each, and the message that it answers. */
  readonly #answers: { readonly kind: number; readonly id: number }[] = [];
  /** The messages that have not begun. */
  readonly #queue: Outgoing[] = [];
  /** The messages that have begun and were granted, in order: their chunks fill the ring. */
  readonly #streams: Outgoing[] = [];
  /** The messages that were offered or lent, by id; their receiver acts next. */
  readonly #waiting = new Map<number, Outgoing>();
  /** The description of the first message in the queue, where it has found no room yet. */
  #description: Uint8Array | undefined;
  #nextId = 1;
  #onFlushed: (() => void) | undefined;

  constructor(options: ShmLinkOptions) {
    this.#options = options;
    this.#writer = options.writer;
  }

  /** Whether `pump` has something to do. */
  get hasRoom(): boolean {
    const isIdle = this.#queue.length + this.#streams.length + this.#answers.length === 0;
    return !isIdle && !this.#writer.isFull;
  }

  /** See Transport.send. */
  send(
    header: MessageHeader,
    payload: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> | undefined {
    const kind = this.#kindOf(header, payload);
    const id = kind === FRAME.INLINE ? 0 : this.#nextId++ >>> 0;
    const state = { sent: 0, isDone: false, onDone: undefined };
    const job: Outgoing = { header, payload, kind, id, onProgress, ...state };
    this.#queue.push(job);
    this.pump();
    return job.isDone
      ? undefined
      : new Promise((resolve) => {
          job.onDone = resolve;
        });
  }

  /** Writes what there is room for, and wakes the peer if that was something; then true. */
  pump(): boolean {
    const hasWritten = this.#writeSome();
    if (hasWritten) {
      this.#options.wake();
      if (this.hasRoom) {
        this.#options.poller.lookSoon();
      }
    }
    const numLeft =
      this.#queue.length + this.#streams.length + this.#answers.length + this.#waiting.size;
    if (numLeft === 0) {
      this.#onFlushed?.();
    }
    return hasWritten;
  }

  /** Resolves when the peer has everything that was sent. */
  flushed(): Promise<void> {
    return new Promise((resolve) => {
      this.#onFlushed = resolve;
      this.pump();
    });
  }

  /** Answers a message of the peer. */
  answer(kind: number, id: number): void {
    this.#answers.push({ kind, id });
    this.pump();
  }

  /** Takes the peer's answer to a message, which it has granted or read. */
  onAnswer(kind: number, id: number): void {
    const job = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (job !== undefined && kind === FRAME.GRANT) {
      this.#streams.push(job);
      this.pump();
    } else if (job !== undefined) {
      job.onProgress?.();
      finish(job);
    }
  }

  /** Forgets everything. Sends resolve, because nothing depends on them. */
  drop(): void {
    for (const job of [...this.#queue, ...this.#streams, ...this.#waiting.values()]) {
      finish(job);
    }
    this.#queue.length = 0;
    this.#streams.length = 0;
    this.#answers.length = 0;
    this.#waiting.clear();
    this.#onFlushed?.();
  }

  #kindOf(header: MessageHeader, payload: Uint8Array): number {
    if (payload.byteLength <= Math.min(INLINE_MAX_BYTES, this.#writer.maxBodyBytes)) {
      return FRAME.INLINE;
    }
    if (this.#options.memory.idOf(payload.buffer) !== undefined) {
      return FRAME.LENT;
    }
    return isPointToPoint(header.call) ? FRAME.EAGER : FRAME.OFFER;
  }

  #writeSome(): boolean {
    let budget = TURN_FRAMES;
    while (budget > 0 && this.#writeNext()) {
      budget--;
    }
    return budget < TURN_FRAMES;
  }

  /**
   * Writes one frame. Answers come first, because a peer waits for them, then messages that begin,
   * then chunks.
   */
  #writeNext(): boolean {
    const answer = this.#answers[0];
    if (answer !== undefined) {
      this.#head.kind = answer.kind;
      this.#head.id = answer.id;
      if (!this.#writer.write(this.#head, EMPTY)) {
        return false;
      }
      this.#answers.shift();
      return true;
    }
    const job = this.#queue[0];
    if (job !== undefined) {
      return this.#begin(job);
    }
    const stream = this.#streams[0];
    return stream !== undefined && this.#continue(stream);
  }

  #begin(job: Outgoing): boolean {
    const head = this.#head;
    this.#description = this.#encoder.encode(job.header, head) ?? this.#description;
    if (this.#description !== undefined) {
      head.kind = FRAME.DESCRIBE;
      if (!this.#writer.write(head, this.#description)) {
        return false;
      }
      this.#description = undefined;
    }
    head.kind = job.kind;
    head.id = job.id;
    if (job.kind === FRAME.LENT) {
      head.bufferId = this.#options.memory.idOf(job.payload.buffer)!;
      head.offset = job.payload.byteOffset;
    }
    if (!this.#writer.write(head, job.kind === FRAME.INLINE ? job.payload : EMPTY)) {
      return false;
    }
    this.#queue.shift();
    if (job.kind === FRAME.INLINE) {
      finish(job);
    } else if (job.kind === FRAME.EAGER) {
      this.#streams.push(job);
    } else {
      this.#waiting.set(job.id, job);
    }
    return true;
  }

  #continue(job: Outgoing): boolean {
    const end = Math.min(job.sent + this.#writer.maxBodyBytes, job.payload.byteLength);
    this.#head.kind = FRAME.CHUNK;
    this.#head.id = job.id;
    if (!this.#writer.write(this.#head, job.payload.subarray(job.sent, end))) {
      return false;
    }
    job.sent = end;
    job.onProgress?.();
    if (end === job.payload.byteLength) {
      this.#streams.shift();
      finish(job);
    }
    return true;
  }
}

function finish(job: Outgoing): void {
  job.isDone = true;
  job.onDone?.();
}
