// Reads payloads that a peer has lent where they lie, in the job's heap or in a buffer that the
// peer has registered, once their receiver wants them.

import type { Turns } from '../../endpoint/turns.js';
import type { MessageSink } from '../../transport.js';
import type { RingReader } from './ring.js';
import { HEAP_ID, type OwnMemory, type PeerBuffers } from './shared-buffers.js';

/** The bytes that are copied between two looks at the clock, in about 0.1 ms. */
const SLICE_BYTES = 2 ** 20;

/** The place of a lent payload. */
export interface LentPlace {
  readonly bufferId: number;
  readonly offset: number;
  readonly byteLength: number;
}

interface LentReaderHost {
  readonly turns: Turns;
  readonly memory: OwnMemory;
}

export class LentReader {
  readonly #host: LentReaderHost;
  readonly #buffers: PeerBuffers;
  readonly #reader: RingReader;
  #isOver = false;

  constructor(host: LentReaderHost, buffers: PeerBuffers, reader: RingReader) {
    this.#host = host;
    this.#buffers = buffers;
    this.#reader = reader;
  }

  /** Stops reading, because the peer or this rank has left: the memory may hold anything by now. */
  end(): void {
    this.#isOver = true;
  }

  /**
   * Hands the payload over, or copies it, and then calls `onRead`, unless the payload was no longer
   * the peer's to lend.
   */
  async read(sink: MessageSink, place: LentPlace, onRead: () => boolean): Promise<void> {
    const lent = this.#payloadAt(place);
    const payload = lent instanceof Promise ? await lent : lent;
    const { posted } = sink;
    if (posted !== undefined) {
      await posted;
    }
    if (this.#isOver) {
      return;
    }
    if (sink.lend !== undefined) {
      sink.lend(payload, onRead);
      return;
    }
    const { turns } = this.#host;
    for (let at = 0; at < payload.byteLength; at += SLICE_BYTES) {
      if (turns.next() !== undefined) {
        await turns.wait();
      }
      if (this.#isOver) {
        return;
      }
      if (!this.#copy(payload.subarray(at, at + SLICE_BYTES), sink)) {
        return; // its failure is on its way
      }
    }
    onRead();
  }

  /**
   * Copies a slice. The receiver learns of it only when it is certain that the slice was still
   * lent.
   */
  #copy(slice: Uint8Array, sink: MessageSink): boolean {
    const { room } = sink;
    if (room === undefined) {
      const isWhole = !this.#reader.isWithdrawn;
      if (isWhole) {
        sink.write(slice); // nobody wants it any more, or nobody has asked for it yet
      }
      return isWhole;
    }
    room.set(slice);
    const isWhole = !this.#reader.isWithdrawn;
    if (isWhole) {
      sink.filled!(slice.byteLength);
    }
    return isWhole;
  }

  /** The payload; a promise where the peer's buffer has not been announced yet. */
  #payloadAt({ bufferId, offset, byteLength }: LentPlace): Uint8Array | Promise<Uint8Array> {
    if (bufferId === HEAP_ID) {
      return this.#host.memory.heap!.view(offset, byteLength);
    }
    const viewOf = (buffer: SharedArrayBuffer) => new Uint8Array(buffer, offset, byteLength);
    const buffer = this.#buffers.get(bufferId);
    return buffer instanceof Promise ? buffer.then(viewOf) : viewOf(buffer);
  }
}
