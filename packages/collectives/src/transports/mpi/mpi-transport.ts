// The transport over MPI: messages of send, recv and subgroups, control messages, and leaving.
// Whole collectives go by MpiCollectives, which groups are given beside it. A dead rank is not
// noticed here, because MPI then ends the whole job.
//
// Ranks agree on leaving: each rank says goodbye, goes on moving MPI for the others, and ends MPI
// when all have said it. Ranks can't leave one by one, because mpirun takes a rank that ends
// without MPI_Finalize for dead, and that call waits for all ranks.

import type { Endpoint } from '../../endpoint/endpoint.js';
import { within } from '../../time-limit.js';
import type { ControlMessage, MessageHeader, MessageSink, Transport } from '../../transport.js';
import { type Envelope, type EnvelopeKind, Envelopes, MAX_HEAD_BYTES } from './envelopes.js';
import { decodeHead, encodeHead, INLINE_MAX_BYTES } from './message-head.js';
import type { MpiHandle } from './mpi-abi.js';
import type { MpiEngine, Question, Unserved } from './mpi-engine.js';
import type { MpiLibrary } from './mpi-library.js';
import type { Progress } from './progress.js';

/** The time for this rank's own messages to leave before the goodbye. */
const DRAIN_MS = 1000;

/** The time to wait, after a failure, for peers that don't say goodbye; then this rank may end. */
const FAREWELL_MS = 5000;

/** The time for answers. A rank whose event loop turns answers at once. */
const ANSWER_MS = 300;

export interface MpiTransportOptions {
  readonly mpi: MpiLibrary;
  readonly comm: MpiHandle;
  readonly progress: Progress;
  readonly endpoint: Endpoint;
  readonly engine: MpiEngine;
  /** Called when all ranks have left, and nothing of this job is used any more. */
  onEnd(): void;
}

export class MpiTransport implements Transport {
  readonly isLending = true;
  readonly #engine: MpiEngine;
  readonly #progress: Progress;
  readonly #endpoint: Endpoint;
  readonly #envelopes: Envelopes;
  readonly #onEnd: () => void;
  readonly #numArriving: number[];
  /** What the peers that have said goodbye leave undone. */
  readonly #farewells = new Map<number, Unserved>();
  readonly #answers = new Map<number, (from: number, hasCalled: boolean) => void>();
  #numQuestions = 0;
  #isClosed = false;
  #hasSaidGoodbye = false;
  #ended: () => void = () => {};

  constructor(options: MpiTransportOptions) {
    this.#engine = options.engine;
    this.#progress = options.progress;
    this.#endpoint = options.endpoint;
    this.#onEnd = options.onEnd;
    this.#numArriving = new Array(options.endpoint.worldSize).fill(0);
    this.#envelopes = new Envelopes(options, (envelope) => this.#onEnvelope(envelope));
  }

  busy(isBusy: boolean): void {
    this.#progress.isBusy = isBusy;
  }

  async send(
    to: number,
    header: MessageHeader,
    payload: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> {
    if (!this.#isClosed && !this.#farewells.has(to)) {
      const bulk = payload.byteLength > INLINE_MAX_BYTES ? payload : undefined;
      await this.#envelopes.send(to, 'message', encodeHead(header, payload), bulk, onProgress);
    }
  }

  sendControl(to: number, message: ControlMessage): void {
    if (!this.#farewells.has(to)) {
      void this.#sendText(to, 'control', message);
    }
  }

  /** The world ranks among `members` that have not called yet, or don't answer. */
  async ask(members: readonly number[], question: Question): Promise<readonly number[]> {
    const late = new Set(members.filter((member) => member !== this.#endpoint.rank));
    const id = this.#numQuestions++;
    let timer: ReturnType<typeof setTimeout> | undefined;
    await new Promise<void>((resolve) => {
      const unheard = new Set(late);
      timer = setTimeout(resolve, ANSWER_MS);
      this.#answers.set(id, (from, hasCalled) => {
        unheard.delete(from);
        if (hasCalled) {
          late.delete(from);
        }
        if (unheard.size === 0) {
          resolve();
        }
      });
      for (const peer of unheard) {
        void this.#sendText(peer, 'question', { id, ...question });
      }
    });
    clearTimeout(timer);
    this.#answers.delete(id);
    return [...late].sort((a, b) => a - b);
  }

  /**
   * Resolves when all ranks have left, or after a while, in which case the others go on without
   * this one.
   */
  async close(how: 'drain' | 'drop'): Promise<void> {
    if (this.#isClosed) {
      return;
    }
    this.#isClosed = true;
    const unserved = this.#engine.close();
    if (how === 'drain') {
      await within(DRAIN_MS, this.#envelopes.drained(), () => {});
    }
    const { rank, worldSize } = this.#endpoint;
    const peers = Array.from({ length: worldSize }, (_, peer) => peer);
    const told = peers
      .filter((peer) => peer !== rank)
      .map((peer) => this.#sendText(peer, 'goodbye', unserved));
    const ended = new Promise<void>((resolve) => {
      this.#ended = resolve;
    });
    void Promise.all(told).then(() => {
      this.#hasSaidGoodbye = true;
      this.#endIfAllLeft();
    });
    if (how === 'drain') {
      await ended;
      return;
    }
    await within(FAREWELL_MS, ended, () => {});
    this.#progress.stop(); // where a peer hangs, this rank's end tells mpirun to end it
  }

  terminate(): void {
    this.#isClosed = true;
    this.#engine.close();
    this.#progress.stop();
  }

  #onEnvelope(envelope: Envelope): void {
    const { kind, from } = envelope;
    if (kind === 'message') {
      this.#onMessage(envelope);
      return;
    }
    const { length, text } = decodeText(envelope.head);
    if (text !== undefined) {
      this.#onText(kind, from, JSON.parse(text));
      return;
    }
    const bytes = new Uint8Array(length);
    let at = 0;
    void this.#envelopes
      .receiveBulk(envelope, length, (chunk) => {
        bytes.set(chunk, at);
        at += chunk.byteLength;
      })
      .then(() => this.#onText(kind, from, JSON.parse(new TextDecoder().decode(bytes))));
  }

  #onMessage(envelope: Envelope): void {
    const { head, from } = envelope;
    const { header, inline } = decodeHead(head);
    const sink = this.#endpoint.onMessage(from, header);
    if (header.byteLength > INLINE_MAX_BYTES) {
      void this.#receive(envelope, header.byteLength, sink);
    } else if (inline.byteLength > 0) {
      sink.write(inline);
    }
  }

  async #receive(envelope: Envelope, byteLength: number, sink: MessageSink): Promise<void> {
    this.#numArriving[envelope.from]!++;
    if (sink.posted !== undefined) {
      await sink.posted;
    }
    await this.#envelopes.receiveBulk(envelope, byteLength, (chunk) => sink.write(chunk));
    this.#numArriving[envelope.from]!--;
    this.#tellIfLeft(envelope.from);
  }

  #onText(kind: EnvelopeKind, from: number, value: unknown): void {
    if (kind === 'control') {
      this.#endpoint.onControl(from, value as ControlMessage);
    } else if (kind === 'question') {
      const { id, ...question } = value as Question & { readonly id: number };
      const hasCalled = this.#engine.hasCalled(question);
      void this.#sendText(from, 'answer', { id, hasCalled });
    } else if (kind === 'answer') {
      const { id, hasCalled } = value as { readonly id: number; readonly hasCalled: boolean };
      this.#answers.get(id)?.(from, hasCalled);
    } else {
      this.#farewells.set(from, value as Unserved);
      this.#tellIfLeft(from);
      this.#endIfAllLeft();
    }
  }

  #tellIfLeft(peer: number): void {
    const unserved = this.#farewells.get(peer);
    if (unserved !== undefined && this.#numArriving[peer] === 0 && !this.#isClosed) {
      this.#endpoint.onPeerLeft(peer);
      this.#engine.onPeerLeft(peer, unserved);
    }
  }

  #endIfAllLeft(): void {
    if (this.#hasSaidGoodbye && this.#farewells.size === this.#endpoint.worldSize - 1) {
      this.#envelopes.close();
      this.#progress.stop();
      this.#onEnd();
      this.#ended();
    }
  }

  #sendText(to: number, kind: EnvelopeKind, value: unknown): Promise<void> {
    const text = Buffer.from(JSON.stringify(value));
    const isLong = text.byteLength > MAX_HEAD_BYTES - LENGTH_BYTES;
    const head = Buffer.alloc(LENGTH_BYTES + (isLong ? 0 : text.byteLength));
    head.writeUInt32LE(text.byteLength);
    if (!isLong) {
      text.copy(head, LENGTH_BYTES);
    }
    return this.#envelopes.send(to, kind, head, isLong ? text : undefined);
  }
}

/**
 * The length of a text stands before it in an envelope. A text that doesn't fit in the head is the
 * bulk.
 */
const LENGTH_BYTES = 4;

function decodeText(head: Uint8Array): { length: number; text: string | undefined } {
  const bytes = Buffer.from(head.buffer, head.byteOffset, head.byteLength);
  const isThere = bytes.byteLength > LENGTH_BYTES;
  const text = isThere ? bytes.toString('utf8', LENGTH_BYTES) : undefined;
  return { length: bytes.readUInt32LE(), text };
}
