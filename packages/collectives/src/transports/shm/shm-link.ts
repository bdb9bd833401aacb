// The link to one peer: messages go out through a ring that this rank writes, and come in through
// one that it reads; large payloads the peer may read straight from registered memory.
//
// Small payloads travel in the frame of their header. A larger one stays where it is until the
// receiver has named its buffer. Then, where it lies in registered memory, the receiver copies it
// from there and confirms that (LENT, READ). Elsewhere the receiver asks for it (OFFER, GRANT), and
// it comes in chunks. A message that needs no receiver (send of a point-to-point call) is copied or
// comes in chunks at once.

import { isPointToPoint } from '../../call-signature.js';
import type { Turns } from '../../endpoint/turns.js';
import type { MessageHeader, MessageSink } from '../../transport.js';
import { LentReader } from './lent-reader.js';
import { HeaderDecoder, HeaderEncoder } from './message-coding.js';
import { emptyHead, type RingReader, type RingWriter } from './ring.js';
import { PeerBuffers } from './shared-buffers.js';
import type { SharedHeap } from './shared-heap.js';

/**
 * A payload of up to this many bytes is copied twice, without waiting for an answer, which would
 * take longer than the copy.
 */
const INLINE_MAX_BYTES = 16 * 1024;

/**
 * The number of frames that are written or read at a time: chunks of a ring and a half, or 0.1 ms
 * of small messages.
 */
const TURN_FRAMES = 16;

const DESCRIBE = 1; // the body is a group and signature, `description` its number
const INLINE = 2; // a message with its payload
const EAGER = 3; // a message whose chunks follow
const OFFER = 4; // a message whose chunks wait for GRANT
const LENT = 5; // a message whose payload the receiver may read at bufferId, offset
const CHUNK = 6; // the next bytes of message `id`
const GRANT = 7; // send the chunks of message `id`
const READ = 8; // message `id` has been read where it was

const EMPTY = new Uint8Array(0);

/** The part of its transport that a link needs. */
export interface LinkHost {
  readonly turns: Turns;
  readonly heap: SharedHeap | undefined;
  readonly isClosed: boolean;
  /** The number by which peers know this memory; undefined where they don't. */
  bufferIdOf(buffer: ArrayBufferLike): number | undefined;
  onMessage(from: number, header: MessageHeader): MessageSink;
  wake(peer: number): void;
  /** Makes `pump` and `receive` be called soon. */
  lookSoon(): void;
}

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

interface Incoming {
  readonly sink: MessageSink;
  missing: number;
}

export class ShmLink {
  readonly peer: number;
  readonly buffers = new PeerBuffers();
  readonly #lent: LentReader;
  readonly #host: LinkHost;
  readonly #writer: RingWriter;
  readonly #reader: RingReader;
  readonly #encoder = new HeaderEncoder();
  readonly #decoder = new HeaderDecoder();
  readonly #head = emptyHead();
  /** The answers that are to be written: the kind of each, and the message that it answers. */
  readonly #answers: { readonly kind: number; readonly id: number }[] = [];
  /** The messages that have not begun. */
  readonly #queue: Outgoing[] = [];
  /** The messages that have begun and were granted, in order: their chunks fill the ring. */
  readonly #streams: Outgoing[] = [];
  /** The messages that were offered or lent, by id; their receiver acts next. */
  readonly #waiting = new Map<number, Outgoing>();
  readonly #incoming = new Map<number, Incoming>();
  /** The description of the first message in the queue, where it has found no room yet. */
  #description: Uint8Array | undefined;
  #nextId = 1;
  #isOver = false;
  #onFlushed: (() => void) | undefined;

  constructor(peer: number, host: LinkHost, writer: RingWriter, reader: RingReader) {
    this.peer = peer;
    this.#host = host;
    this.#writer = writer;
    this.#reader = reader;
    this.#lent = new LentReader(host, this.buffers, reader);
  }

  get isFlushed(): boolean {
    return (
      this.#queue.length + this.#streams.length + this.#answers.length + this.#waiting.size === 0
    );
  }

  /** See Transport.send. */
  send(
    header: MessageHeader,
    payload: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> | undefined {
    const kind = this.#kindOf(header, payload);
    const id = kind === INLINE ? 0 : this.#nextId++ >>> 0;
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
      this.#host.wake(this.peer);
      if (this.hasRoom) {
        this.#host.lookSoon();
      }
    }
    if (this.#onFlushed !== undefined && this.isFlushed) {
      this.#onFlushed();
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

  /** Says goodbye; the peer first reads what is in the ring. */
  leave(): void {
    this.#writer.leave();
    this.#host.wake(this.peer);
  }

  /** Whether `pump` has something to do. */
  get hasRoom(): boolean {
    const isIdle = this.#queue.length + this.#streams.length + this.#answers.length === 0;
    return !isIdle && !this.#writer.isFull;
  }

  /** Whether `receive` has something to do. */
  get hasNews(): boolean {
    return !this.#reader.isEmpty;
  }

  /** Whether the peer said goodbye and everything before that has been read. */
  get hasPeerLeft(): boolean {
    return this.#reader.hasLeft && this.#reader.isEmpty;
  }

  /** Reads frames until there are none or a turn is long enough; false where there was none. */
  receive(): boolean {
    if (!this.hasNews) {
      return false;
    }
    let budget = TURN_FRAMES;
    while (budget-- > 0 && !this.#host.isClosed && this.#reader.next()) {
      this.#take();
    }
    if (this.#reader.takeWaiting()) {
      this.#host.wake(this.peer);
    }
    return true;
  }

  /** Gives the peer up. Sends to it resolve, because nothing depends on them. */
  drop(): void {
    this.#isOver = true;
    this.#lent.end();
    this.#writer.withdraw();
    for (const job of [...this.#queue, ...this.#streams, ...this.#waiting.values()]) {
      finish(job);
    }
    this.#queue.length = 0;
    this.#streams.length = 0;
    this.#answers.length = 0;
    this.#waiting.clear();
    this.#incoming.clear();
    this.buffers.clear();
    this.#onFlushed?.();
  }

  // ----------------------------------------------------------------------- out

  #kindOf(header: MessageHeader, payload: Uint8Array): number {
    if (payload.byteLength <= Math.min(INLINE_MAX_BYTES, this.#writer.maxBodyBytes)) {
      return INLINE;
    }
    if (this.#host.bufferIdOf(payload.buffer) !== undefined) {
      return LENT;
    }
    return isPointToPoint(header.call) ? EAGER : OFFER;
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
      head.kind = DESCRIBE;
      if (!this.#writer.write(head, this.#description)) {
        return false;
      }
      this.#description = undefined;
    }
    head.kind = job.kind;
    head.id = job.id;
    if (job.kind === LENT) {
      head.bufferId = this.#host.bufferIdOf(job.payload.buffer)!;
      head.offset = job.payload.byteOffset;
    }
    if (!this.#writer.write(head, job.kind === INLINE ? job.payload : EMPTY)) {
      return false;
    }
    this.#queue.shift();
    if (job.kind === INLINE) {
      finish(job);
    } else if (job.kind === EAGER) {
      this.#streams.push(job);
    } else {
      this.#waiting.set(job.id, job);
    }
    return true;
  }

  #continue(job: Outgoing): boolean {
    const end = Math.min(job.sent + this.#writer.maxBodyBytes, job.payload.byteLength);
    this.#head.kind = CHUNK;
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

  /** Notes that a lent payload has been read. False where its owner took it back before that. */
  #endRead(id: number): boolean {
    const isWhole = !this.#reader.isWithdrawn;
    if (isWhole && !this.#isOver) {
      this.#answer(READ, id);
    }
    return isWhole;
  }

  #answer(kind: number, id: number): void {
    this.#answers.push({ kind, id });
    this.pump();
  }

  // ------------------------------------------------------------------------ in

  #take(): void {
    const { head, body } = this.#reader;
    switch (head.kind) {
      case DESCRIBE:
        this.#decoder.define(head.description, body);
        return;
      case INLINE: {
        const sink = this.#host.onMessage(this.peer, this.#decoder.decode(head));
        if (body.byteLength > 0) {
          sink.write(body);
        }
        return;
      }
      case EAGER:
      case OFFER:
      case LENT:
        this.#takeLarge();
        return;
      case CHUNK: {
        const message = this.#incoming.get(head.id)!;
        message.missing -= body.byteLength;
        if (message.missing === 0) {
          this.#incoming.delete(head.id);
        }
        message.sink.write(body);
        return;
      }
      case GRANT:
      case READ: {
        const job = this.#waiting.get(head.id);
        this.#waiting.delete(head.id);
        if (job !== undefined && head.kind === GRANT) {
          this.#streams.push(job);
          this.pump();
        } else if (job !== undefined) {
          job.onProgress?.();
          finish(job);
        }
        return;
      }
    }
  }

  #takeLarge(): void {
    const { kind, id, bufferId, offset } = this.#reader.head;
    const header = this.#decoder.decode(this.#reader.head);
    const sink = this.#host.onMessage(this.peer, header);
    if (kind === LENT) {
      const place = { bufferId, offset, byteLength: header.byteLength };
      void this.#lent.read(sink, place, () => this.#endRead(id));
      return;
    }
    this.#incoming.set(id, { sink, missing: header.byteLength });
    if (kind === EAGER) {
      return;
    }
    if (sink.posted === undefined) {
      this.#answer(GRANT, id);
    } else {
      void sink.posted.then(() => this.#answer(GRANT, id));
    }
  }
}

function finish(job: Outgoing): void {
  job.isDone = true;
  job.onDone?.();
}
