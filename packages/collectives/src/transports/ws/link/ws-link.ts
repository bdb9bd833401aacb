// One socket between two ranks: the queue of what goes out, and the state of the message that is
// coming in. Control text overtakes queued payload.

import { type Clock, systemClock } from '../../../clock.js';
import type { WireHandler, WireSocket } from '../../../sockets/wire-socket.js';
import type { ControlMessage, MessageHeader, MessageSink } from '../../../transport.js';
import { FrameCodec } from './frame.js';
import { SendQueue } from './send-queue.js';

/** The milliseconds that a polite ending may take before the socket is destroyed. */
const CLOSE_MS = 1000;

/** The close code of a rank that leaves in peace; any other end means that it is lost. */
const LEFT_CODE = 4000;

/** The close code of a rank whose job has failed, by itself or by another one. */
export const DROPPED_CODE = 4001;

/** Stands for a close code where no close frame came. */
const CUT_CODE = 1006;

/**
 * A text message of a link: a ControlMessage, or what only ranks of this transport tell each other.
 */
export type LinkMessage =
  | ControlMessage
  | { readonly type: 'alive' }
  /**
   * The port on which the sender's heartbeat worker listens for peers that can't listen; 0 where it
   * doesn't.
   */
  | { readonly type: 'heartbeat port'; readonly port: number };

export interface LinkEvents {
  onMessage(from: number, header: MessageHeader): MessageSink;
  /** Called with a text. Throws where it can't be read. */
  onText(from: number, text: string): void;
  onLost(peer: number, reason: string, end?: LinkEnd): void;
  onLeft(peer: number): void;
}

/** What the end of a link tells beside its reason. */
export interface LinkEnd {
  /** Whether the peer has given up, so that the cause is elsewhere and may be on its way. */
  readonly hasFailed: boolean;
  /**
   * Whether no close frame came, so that the other end of this connection is gone, which may be a
   * relay's.
   */
  readonly isCut: boolean;
}

export class WsLink implements WireHandler {
  readonly peer: number;
  /** Set by whatever arrives, for the watch over the peer's silence. */
  hasSpoken = true;
  readonly #socket: WireSocket;
  readonly #events: LinkEvents;
  readonly #codec = new FrameCodec();
  readonly #sends: SendQueue;
  #sink: MessageSink | undefined;
  #remaining = 0;
  #hasEnded = false;
  /**
   * Whether nothing counts that the peer sends, because it can't be read. The peer may still be
   * told.
   */
  #isDeaf = false;
  readonly #closed: Promise<void>;
  #onClosed: () => void = () => {};

  constructor(socket: WireSocket, peer: number, events: LinkEvents) {
    this.peer = peer;
    this.#socket = socket;
    this.#events = events;
    this.#sends = new SendQueue(socket, this.#codec, ({ message }) =>
      this.#end(message, { hasFailed: false, isCut: true }),
    );
    this.#closed = new Promise((resolve) => {
      this.#onClosed = resolve;
    });
  }

  /** Begins to receive. The link is known to its transport by then. */
  start(): void {
    this.#socket.setHandler(this);
  }

  /** See Transport.send. */
  send(
    header: MessageHeader,
    payload: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> | undefined {
    if (this.#hasEnded) {
      return Promise.reject(new Error(`the link to rank ${this.peer} is closed`));
    }
    return this.#sends.send(header, payload, onProgress);
  }

  sendControl(message: LinkMessage): void {
    if (!this.#hasEnded) {
      this.#socket.sendText(JSON.stringify(message));
    }
  }

  /** See Transport.close. */
  async close(how: 'drain' | 'drop', clock: Clock = systemClock): Promise<void> {
    this.#socket.stopFilling?.(); // the buffers belong to their receivers again
    const stopTimer = clock.setTimer(CLOSE_MS, () => this.#socket.terminate());
    if (how === 'drain' && !this.#sends.isDrained && !this.#hasEnded) {
      await this.#sends.drained();
    }
    this.#hasEnded = true;
    this.#sends.drop(new Error(`the link to rank ${this.peer} was closed`));
    this.#socket.close(how === 'drain' ? LEFT_CODE : DROPPED_CODE, '');
    await this.#closed;
    stopTimer();
  }

  terminate(): void {
    this.#hasEnded = true;
    this.#sends.drop(new Error(`the link to rank ${this.peer} was terminated`));
    this.#socket.terminate();
  }

  onText(text: string): void {
    this.hasSpoken = true;
    if (!this.#hasEnded && !this.#isDeaf) {
      try {
        this.#events.onText(this.peer, text);
      } catch (error) {
        this.#onUnreadable(error);
      }
    }
  }

  room(): Uint8Array | undefined {
    const isHeard = !this.#hasEnded && !this.#isDeaf;
    return this.#remaining > 0 && isHeard ? this.#sink!.room : undefined;
  }

  filled(byteLength: number): void {
    this.hasSpoken = true;
    this.#remaining -= byteLength;
    this.#sink!.filled!(byteLength);
  }

  onBinary(data: Uint8Array): void {
    this.hasSpoken = true;
    if (this.#hasEnded || this.#isDeaf) {
      return;
    }
    try {
      if (this.#remaining > 0) {
        this.#take(data);
        return;
      }
      const { header, inline } = this.#codec.decode(data);
      this.#sink = this.#events.onMessage(this.peer, header);
      this.#remaining = header.byteLength;
      if (inline.length > 0) {
        this.#take(inline);
      }
    } catch (error) {
      this.#onUnreadable(error);
    }
  }

  onClose(code: number, reason: string): void {
    this.#onClosed();
    if (code === LEFT_CODE) {
      this.#leave();
    } else {
      const hasFailed = code === DROPPED_CODE;
      const told = hasFailed ? 'it has failed, and could not say why' : `code ${code}`;
      this.#end(reason || `its connection closed, ${told}`, {
        hasFailed,
        isCut: code === CUT_CODE,
      });
    }
  }

  #onUnreadable(error: unknown): void {
    this.#isDeaf = true;
    const reason = `it sent what can't be read: ${(error as Error).message}`;
    this.#events.onLost(this.peer, reason, { hasFailed: false, isCut: false });
  }

  #take(chunk: Uint8Array): void {
    if (chunk.length > this.#remaining) {
      throw new RangeError(`${chunk.length} bytes where ${this.#remaining} were missing`);
    }
    this.#remaining -= chunk.length;
    this.#sink!.write(chunk);
  }

  #leave(): void {
    if (!this.#hasEnded) {
      this.#hasEnded = true;
      this.#sends.drop(); // a peer that leaves in peace did not need what it has not read
      this.#events.onLeft(this.peer);
    }
  }

  #end(reason: string, end: LinkEnd): void {
    if (!this.#hasEnded) {
      this.#hasEnded = true;
      if (!this.#isDeaf) {
        this.#events.onLost(this.peer, reason, end);
      }
      this.#sends.drop(new Error(`the link to rank ${this.peer} broke: ${reason}`));
      this.#socket.terminate();
    }
  }
}
