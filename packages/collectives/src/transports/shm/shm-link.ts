// The link to one peer: messages go out through a ring that this rank writes, and come in through
// one that it reads; large payloads the peer may read straight from registered memory.
//
// Small payloads travel in the frame of their header. A larger one stays where it is until the
// receiver has named its buffer. Then, where it lies in registered memory, the receiver copies it
// from there and confirms that (LENT, READ). Elsewhere the receiver asks for it (OFFER, GRANT), and
// it comes in chunks. A message that needs no receiver (send of a point-to-point call) is copied or
// comes in chunks at once.

import type { Turns } from '../../endpoint/turns.js';
import type { MessageSink, TransportListener } from '../../transport.js';
import { LentReader } from './lent-reader.js';
import { FRAME, HeaderDecoder } from './message-coding.js';
import type { Poller } from './poller.js';
import type { RingReader, RingWriter } from './ring.js';
import { RingSendQueue, TURN_FRAMES } from './ring-send-queue.js';
import { type OwnMemory, PeerBuffers } from './shared-buffers.js';

/** A link, and what it shares with the other links of its rank. */
export interface ShmLinkOptions {
  readonly peer: number;
  readonly writer: RingWriter;
  readonly reader: RingReader;
  readonly listener: TransportListener;
  readonly memory: OwnMemory;
  readonly turns: Turns;
  readonly poller: Poller;
  /** Wakes the peer where it sleeps. */
  wake(): void;
}

interface Incoming {
  readonly sink: MessageSink;
  missing: number;
}

export class ShmLink {
  readonly peer: number;
  readonly buffers = new PeerBuffers();
  readonly sends: RingSendQueue;
  readonly #lent: LentReader;
  readonly #options: ShmLinkOptions;
  readonly #reader: RingReader;
  readonly #decoder = new HeaderDecoder();
  readonly #incoming = new Map<number, Incoming>();
  #isOver = false;

  constructor(options: ShmLinkOptions) {
    this.peer = options.peer;
    this.sends = new RingSendQueue(options);
    this.#options = options;
    this.#reader = options.reader;
    this.#lent = new LentReader(options, this.buffers, options.reader);
  }

  /** Whether the peer is gone or given up, so that nothing of it counts any more. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** Says goodbye; the peer first reads what is in the ring. */
  leave(): void {
    this.#options.writer.leave();
    this.#options.wake();
  }

  /** Whether there is something to read or to write, or the peer has left. */
  get hasWork(): boolean {
    return !this.#isOver && (!this.#reader.isEmpty || this.#reader.hasLeft || this.sends.hasRoom);
  }

  /** Whether the peer said goodbye and everything before that has been read. */
  get hasPeerLeft(): boolean {
    return this.#reader.hasLeft && this.#reader.isEmpty;
  }

  /** Reads frames until there are none or a turn is long enough; false where there was none. */
  receive(): boolean {
    if (this.#reader.isEmpty) {
      return false;
    }
    let budget = TURN_FRAMES;
    while (budget-- > 0 && !this.#isOver && this.#reader.next()) {
      this.#take();
    }
    if (this.#reader.takeWaiting()) {
      this.#options.wake();
    }
    return true;
  }

  /** Gives the peer up. Sends to it resolve, because nothing depends on them. */
  drop(): void {
    this.#isOver = true;
    this.#lent.end();
    this.#options.writer.withdraw();
    this.sends.drop();
    this.#incoming.clear();
    this.buffers.clear();
  }

  /** Notes that a lent payload has been read. False where its owner took it back before that. */
  #endRead(id: number): boolean {
    const isWhole = !this.#reader.isWithdrawn;
    if (isWhole && !this.#isOver) {
      this.sends.answer(FRAME.READ, id);
    }
    return isWhole;
  }

  #take(): void {
    const { head, body } = this.#reader;
    switch (head.kind) {
      case FRAME.DESCRIBE:
        this.#decoder.define(head.description, body);
        return;
      case FRAME.INLINE: {
        const sink = this.#options.listener.onMessage(this.peer, this.#decoder.decode(head));
        if (body.byteLength > 0) {
          sink.write(body);
        }
        return;
      }
      case FRAME.EAGER:
      case FRAME.OFFER:
      case FRAME.LENT:
        this.#takeLarge();
        return;
      case FRAME.CHUNK: {
        const message = this.#incoming.get(head.id)!;
        message.missing -= body.byteLength;
        if (message.missing === 0) {
          this.#incoming.delete(head.id);
        }
        message.sink.write(body);
        return;
      }
      case FRAME.GRANT:
      case FRAME.READ:
        this.sends.onAnswer(head.kind, head.id);
        return;
    }
  }

  #takeLarge(): void {
    const { kind, id, bufferId, offset } = this.#reader.head;
    const header = this.#decoder.decode(this.#reader.head);
    const sink = this.#options.listener.onMessage(this.peer, header);
    if (kind === FRAME.LENT) {
      const place = { bufferId, offset, byteLength: header.byteLength };
      void this.#lent.read(sink, place, () => this.#endRead(id));
      return;
    }
    this.#incoming.set(id, { sink, missing: header.byteLength });
    if (kind === FRAME.EAGER) {
      return;
    }
    if (sink.posted === undefined) {
      this.sends.answer(FRAME.GRANT, id);
    } else {
      void sink.posted.then(() => this.sends.answer(FRAME.GRANT, id));
    }
  }
}
