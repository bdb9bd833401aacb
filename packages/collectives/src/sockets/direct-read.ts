// Reads a TCP connection into memory that the caller chooses, without a new buffer for each read
// and without a copy. Node has this as the option `onread` of connections that it opens. Here it is
// set on a connection that is open already, accepted or not, by means of the private fields that
// the option sets. The fields were checked on the versions of CHECKED_NODE_VERSIONS. Where a
// version has other fields, `start` gives up, and Node's own, slower reads are used.

import type { Socket } from 'node:net';

export interface ReadEvents {
  /**
   * The memory for the next bytes. Where it is undefined they go to memory of this module, which is
   * lent to `onRead`.
   */
  room(): Uint8Array | undefined;
  /** Called when so many bytes were written to the room. */
  filled(byteLength: number): void;
  onRead(bytes: Uint8Array): void;
}

/** The size of Node's own reads. A read takes what is there, so a smaller size gains nothing. */
const OWN_BYTES = 64 * 1024;

/** A room smaller than this is not used: a read that also takes what follows is cheaper. */
const MIN_ROOM_BYTES = 32 * 1024;

/**
 * The most that is read at once. libuv reads up to 32 times before other work gets its turn, and 4
 * MiB for each connection keep turns of 64 MiB collectives below 20 ms. Reads of 512 KiB would cost
 * a tenth less.
 */
const MAX_READ_BYTES = 128 * 1024;

/**
 * The memory that all connections of this thread read into; what was read is taken from it before
 * the next read begins. It is made when the first connection begins to read.
 */
let shared: Uint8Array | undefined;

interface Handle {
  useUserBuffer?(buffer: Uint8Array): void;
}

/** The versions of Node on which test/direct-read.test.ts has seen the fields work. */
export const CHECKED_NODE_VERSIONS = ['20.20.2', '22.23.3', '24.21.0'];

/** The fields of the option `onread`, by their symbols' names. */
const FIELDS = ['kBuffer', 'kBufferCb', 'kBufferGen'] as const;

export class DirectRead {
  readonly #events: ReadEvents;
  readonly #own: Uint8Array;
  #room: Uint8Array | undefined;
  #isOver = false;
  readonly #use: (buffer: Uint8Array) => void;

  private constructor(events: ReadEvents, use: (buffer: Uint8Array) => void) {
    this.#events = events;
    this.#use = use;
    shared ??= new Uint8Array(OWN_BYTES);
    this.#own = shared;
  }

  /**
   * Begins to read. Undefined where this version of Node can't do it, or this connection can't
   * because it speaks TLS.
   */
  static start(connection: Socket, events: ReadEvents): DirectRead | undefined {
    const fields = Object.getOwnPropertySymbols(connection);
    const [buffer, callback, generator] = FIELDS.map((name) =>
      fields.find(({ description }) => description === name),
    );
    const fielded = connection as unknown as Record<symbol, unknown> & { _handle?: Handle | null };
    const isPlain = !('encrypted' in connection);
    const isAble = typeof fielded._handle?.useUserBuffer === 'function';
    if (!buffer || !callback || !generator || !isPlain || !isAble) {
      return undefined;
    }
    const direct = new DirectRead(events, (memory) => {
      fielded[buffer] = memory;
      fielded._handle?.useUserBuffer?.(memory);
    });
    fielded[callback] = (byteLength: number) => direct.#onRead(byteLength);
    fielded[generator] = () => direct.#next();
    direct.#use(direct.#own);
    return direct;
  }

  /** Stops writing to the room. */
  stop(): void {
    this.#isOver = true;
    if (this.#room !== undefined) {
      this.#room = undefined;
      this.#use(this.#own);
    }
  }

  #next(): Uint8Array {
    const room = this.#isOver ? undefined : this.#events.room();
    const isUsable = room !== undefined && room.length >= MIN_ROOM_BYTES;
    this.#room = isUsable ? room.subarray(0, MAX_READ_BYTES) : undefined;
    return this.#room ?? this.#own;
  }

  #onRead(byteLength: number): void {
    if (this.#room === undefined) {
      this.#events.onRead(this.#own.subarray(0, byteLength));
    } else {
      this.#events.filled(byteLength);
    }
  }
}
