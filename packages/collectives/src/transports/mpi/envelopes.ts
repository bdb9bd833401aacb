// Messages between ranks over MPI: an envelope of bounded size that any rank may send at any time.
// Where it has a bulk, that follows in chunks under a tag of its own, so that bulks can be received
// in any order, or left with their sender until they are wanted.
//
// The envelope: 0 kind u8 | 1 zero u24 | 4 sender u32 | 8 bytes of the head u32 | 12 tag of the
// bulk u32 | 16 head.

import type { MpiHandle } from './mpi-abi.js';
import type { MpiLibrary } from './mpi-library.js';
import type { Progress } from './progress.js';

export type EnvelopeKind = 'message' | 'control' | 'question' | 'answer' | 'goodbye';

export interface Envelope {
  readonly kind: EnvelopeKind;
  readonly from: number;
  /** The head, which is lent while it is handled. */
  readonly head: Uint8Array;
  /** The tag of the bulk, for `receiveBulk`. */
  readonly tag: number;
}

const KINDS: readonly EnvelopeKind[] = ['message', 'control', 'question', 'answer', 'goodbye'];
const FIXED_BYTES = 16;

/** The longest head: 16 KiB of payload, and a header that grows with the names of groups. */
export const MAX_HEAD_BYTES = 24 * 1024;

/** The number of receives that wait for envelopes; MPI itself holds further ones that come. */
const NUM_POSTED = 8;

const ENVELOPE_TAG = 0;

/** The standard guarantees tags below this. */
const NUM_TAGS = 32767;

/**
 * The bytes of a chunk. An arriving message holds two of them, until they are copied to where they
 * belong.
 */
const CHUNK_BYTES = 2 ** 20;

/** The number of chunks of one bulk that are under way at once. */
const WINDOW = 2;

export class Envelopes {
  readonly #mpi: MpiLibrary;
  readonly #comm: MpiHandle;
  readonly #rank: number;
  readonly #progress: Progress;
  readonly #onEnvelope: (envelope: Envelope) => void;
  /** The receives that are posted; `place` is that of a receive while it waits. */
  readonly #posted: { readonly bytes: Uint8Array; place: number | undefined }[] = [];
  #next = 0;
  #tag = 0;
  #spare: Uint8Array[] = [];
  #isClosed = false;
  #sending = new Set<Promise<void>>();

  constructor(
    options: {
      readonly mpi: MpiLibrary;
      readonly comm: MpiHandle;
      readonly progress: Progress;
      readonly endpoint: { readonly rank: number };
    },
    onEnvelope: (envelope: Envelope) => void,
  ) {
    this.#mpi = options.mpi;
    this.#comm = options.comm;
    this.#rank = options.endpoint.rank;
    this.#progress = options.progress;
    this.#onEnvelope = onEnvelope;
    for (let i = 0; i < NUM_POSTED; i++) {
      this.#posted.push({
        bytes: new Uint8Array(FIXED_BYTES + MAX_HEAD_BYTES),
        place: undefined,
      });
      this.#post(i);
    }
  }

  /**
   * Resolves when MPI has taken the envelope and, where it has a bulk, when the receiver has taken
   * that; see `receiveBulk`.
   */
  async send(
    to: number,
    kind: EnvelopeKind,
    head: Uint8Array,
    bulk?: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> {
    const done = this.#send(to, kind, head, bulk, onProgress);
    this.#sending.add(done);
    await done;
    this.#sending.delete(done);
  }

  /** Resolves when everything that was sent before has been taken. */
  async drained(): Promise<void> {
    await Promise.all(this.#sending);
  }

  /** Receives the bulk of an envelope, in chunks that are lent to `take` in order. */
  async receiveBulk(
    { from, tag }: Envelope,
    byteLength: number,
    take: (chunk: Uint8Array) => void,
  ): Promise<void> {
    const running: Promise<void>[] = [];
    for (let at = 0; at < byteLength; at += CHUNK_BYTES) {
      await running[running.length - WINDOW];
      const buffer = this.#spare.pop() ?? new Uint8Array(CHUNK_BYTES);
      const chunk = buffer.subarray(0, Math.min(CHUNK_BYTES, byteLength - at));
      const received = this.#progress.run(
        (place) => this.#mpi.irecv(chunk, from, tag, this.#comm, place),
        buffer,
      );
      const before = running.at(-1);
      running.push(
        Promise.all([received, before]).then(() => {
          take(chunk);
          this.#spare.push(buffer);
        }),
      );
    }
    await Promise.all(running);
  }

  /** Stops receiving. */
  close(): void {
    this.#isClosed = true;
    for (const { place } of this.#posted) {
      if (place !== undefined) {
        this.#progress.cancel(place);
      }
    }
  }

  async #send(
    to: number,
    kind: EnvelopeKind,
    head: Uint8Array,
    bulk?: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> {
    if (bulk !== undefined) {
      this.#tag = (this.#tag % NUM_TAGS) + 1;
    }
    const tag = this.#tag;
    const envelope = Buffer.allocUnsafe(FIXED_BYTES + head.byteLength);
    envelope.writeUInt32LE(KINDS.indexOf(kind), 0);
    envelope.writeUInt32LE(this.#rank, 4);
    envelope.writeUInt32LE(head.byteLength, 8);
    envelope.writeUInt32LE(tag, 12);
    envelope.set(head, FIXED_BYTES);
    const running = [
      this.#progress.run(
        (place) => this.#mpi.isend(envelope, to, ENVELOPE_TAG, this.#comm, place),
        envelope,
      ),
    ];
    const byteLength = bulk?.byteLength ?? 0;
    for (let at = 0; at < byteLength; at += CHUNK_BYTES) {
      await running[running.length - WINDOW];
      const chunk = bulk!.subarray(at, at + CHUNK_BYTES);
      const sent = this.#progress.run(
        (place) => this.#mpi.isend(chunk, to, tag, this.#comm, place),
        bulk,
      );
      running.push(sent.then(onProgress));
    }
    await Promise.all(running);
  }

  #post(index: number): void {
    const posted = this.#posted[index]!;
    const { bytes } = posted;
    posted.place = this.#progress.listen({
      begin: (place) =>
        this.#mpi.irecv(bytes, this.#mpi.abi.anySource, ENVELOPE_TAG, this.#comm, place),
      done: () => {
        posted.place = undefined;
        this.#handleFull();
      },
      keep: bytes,
    });
  }

  /**
   * Handles envelopes in the order in which the receives were posted, which is the order in which
   * they are filled; they may end in another order.
   */
  #handleFull(): void {
    while (!this.#isClosed && this.#posted[this.#next]!.place === undefined) {
      const index = this.#next;
      this.#next = (index + 1) % NUM_POSTED;
      const { bytes } = this.#posted[index]!;
      const fields = new DataView(bytes.buffer, bytes.byteOffset);
      this.#onEnvelope({
        kind: KINDS[fields.getUint32(0, true)]!,
        from: fields.getUint32(4, true),
        head: bytes.subarray(FIXED_BYTES, FIXED_BYTES + fields.getUint32(8, true)),
        tag: fields.getUint32(12, true),
      });
      if (!this.#isClosed) {
        this.#post(index);
      }
    }
  }
}
