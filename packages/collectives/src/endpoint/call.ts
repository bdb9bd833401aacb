// One running operation of one rank: what an algorithm sees of the wire. Peers are group ranks here
// and world ranks below. Nothing here rejects: a failure ends the job, and with it the call.

import type { ReduceOptions } from '@shardweave/dtypes';
import type { HostPlan } from '../algorithms/host-plan.js';
import type { Transport } from '../transport.js';
import type { Arrival, Borrowed } from './arrival.js';
import { type CallSignature, describeCall } from './call-signature.js';
import { copyBytes } from './copy-bytes.js';
import type { Combine } from './reduce-hook.js';
import type { ScratchPool } from './scratch-pool.js';
import type { Turns } from './turns.js';

/** A call and its place; `members` are world ranks in group order. */
export interface CallSpec {
  readonly group: string;
  readonly members: readonly number[];
  /** Group rank. */
  readonly rank: number;
  readonly sequence: number;
  readonly signature: CallSignature;
  /** What `signature.layout` is a hash of. */
  readonly counts?: readonly number[] | undefined;
  readonly identity?: string | undefined;
  /** BarrierOptions.elseAbort. */
  readonly elseAbort?: string | undefined;
  /** Where ranks share hosts, and sums are to be combined by them. */
  readonly hosts?: HostPlan | undefined;
  /** Without progress. */
  readonly timeoutMs: number;
}

/** What a call needs of its endpoint. */
export interface CallServices {
  readonly transport: Transport;
  readonly scratch: ScratchPool;
  readonly turns: Turns;
  readonly combine: Combine;
  now(): number;
  /** The meeting point of a message from a world rank with its receiver. */
  arrivalOf(call: Call, from: number, phase: number): Arrival;
  /** Told after each `receive`: the peer may have left already. */
  afterPost(from: number, arrival: Arrival): void;
  /** Told where a transport could not send; resolves if nobody needed it. */
  afterSendFailed(call: Call, to: number, error: unknown): Promise<void>;
  /** Told where a message is not what its header promised. */
  onBadMessage(from: number, error: unknown): void;
}

/** Of messages that left at once. */
const SENT = Promise.resolve();

export class Call {
  readonly spec: CallSpec;
  readonly #services: CallServices;
  /** What has been asked for and is not complete, by its sender. */
  readonly #pending = new Map<Arrival, number>();
  readonly #progressed = () => this.progressed();
  #peers: readonly number[] | undefined;
  #lastProgressMs: number;
  #isOver = false;
  #abort: AbortController | undefined;
  #numUnsent = 0;
  #onSent: (() => void) | undefined;
  bytesSent = 0;
  bytesReceived = 0;
  /** Who is late, for operations that don't go through `receive`. World ranks. */
  late: (() => Promise<readonly number[]>) | undefined;

  constructor(spec: CallSpec, services: CallServices) {
    this.spec = spec;
    this.#services = services;
    this.#lastProgressMs = services.now();
  }

  get rank(): number {
    return this.spec.rank;
  }

  get worldSize(): number {
    return this.spec.members.length;
  }

  get scratch(): ScratchPool {
    return this.#services.scratch;
  }

  get turns(): Turns {
    return this.#services.turns;
  }

  get hosts(): HostPlan | undefined {
    return this.spec.hosts;
  }

  /** See Transport.isLending. */
  get isLending(): boolean {
    return this.#services.transport.isLending ?? false;
  }

  get description(): string {
    const { signature, sequence, counts, hosts, identity } = this.spec;
    return describeCall(signature, sequence, { counts, hosts: hosts?.hostOf, identity });
  }

  /** Other group ranks, beginning after one's own, so that not all start with the same. */
  get peers(): readonly number[] {
    if (this.#peers === undefined) {
      const peers = [];
      for (let i = 1; i < this.worldSize; i++) {
        peers.push((this.rank + i) % this.worldSize);
      }
      this.#peers = peers;
    }
    return this.#peers;
  }

  /** Milliseconds since a byte of this call moved. */
  get idleMs(): number {
    return this.#services.now() - this.#lastProgressMs;
  }

  /** Something moved: the time limit begins anew. */
  progressed(): void {
    this.#lastProgressMs = this.#services.now();
  }

  /** Lends `payload` until it resolves. */
  send(peer: number, payload: Uint8Array, phase = 0): Promise<void> {
    const { group, sequence, signature, members } = this.spec;
    const { byteLength } = payload;
    const header = { group, sequence, phase, call: signature, byteLength };
    this.bytesSent += byteLength;
    const to = members[peer]!;
    const sent = this.#services.transport.send(to, header, payload, this.#progressed);
    if (sent === undefined) {
      this.progressed();
      return SENT;
    }
    this.#numUnsent++;
    return this.#untilSent(to, sent);
  }

  async #untilSent(to: number, sent: Promise<void>): Promise<void> {
    try {
      await sent;
    } catch (error) {
      await this.#services.afterSendFailed(this, to, error);
    }
    this.progressed();
    this.#numUnsent--;
    if (this.#numUnsent === 0) {
      this.#onSent?.();
    }
  }

  /** Resolves when all that was sent may be changed. */
  async sent(): Promise<void> {
    if (this.#numUnsent > 0) {
      await new Promise<void>((resolve) => {
        this.#onSent = resolve;
      });
    }
  }

  /** Resolves when the peer's message of this call and phase fills `target`. */
  receive(peer: number, target: Uint8Array, phase = 0): Promise<void> {
    return this.#receive(peer, target.byteLength, phase, (arrival) =>
      arrival.post(target, this.#progressed),
    );
  }

  /** The peer's message, to be read: no buffer of the caller's is needed, nor a copy where it can be lent. */
  borrow(peer: number, byteLength: number, phase = 0): Promise<Borrowed> {
    return this.#receive(peer, byteLength, phase, (arrival) =>
      arrival.borrow(byteLength, this.#progressed),
    );
  }

  /** Combines parts of all ranks, in rank order, into `output`. */
  async reduce(
    parts: readonly Uint8Array[],
    output: Uint8Array,
    options: ReduceOptions,
  ): Promise<void> {
    await this.#services.combine(parts, output, options, this);
    this.progressed();
  }

  /** Copies within this rank, in slices, unless they are the same bytes already. */
  async copy(target: Uint8Array, source: Uint8Array): Promise<void> {
    // A view of the same bytes is common (a shard inside its full buffer) and needs no copy.
    if (target.buffer !== source.buffer || target.byteOffset !== source.byteOffset) {
      await copyBytes(target, source, this.turns, () => this.#isOver);
    }
  }

  /** It has failed: its buffers are the caller's again. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** Aborted when the call has failed: nothing of the caller's is written any more. */
  get signal(): AbortSignal {
    if (this.#abort === undefined) {
      this.#abort = new AbortController();
      if (this.#isOver) {
        this.#abort.abort();
      }
    }
    return this.#abort.signal;
  }

  /** World ranks whose messages have been asked for and have not arrived. */
  waitingFor(): number[] {
    const missing = [...this.#pending].filter(([arrival]) => !arrival.hasArrived);
    return [...new Set(missing.map(([, from]) => from))].sort((a, b) => a - b);
  }

  /** Gives the caller's buffers back: nothing is written to them any more. */
  cancel(): void {
    this.#isOver = true;
    this.#abort?.abort();
    for (const arrival of this.#pending.keys()) {
      arrival.cancel();
    }
    this.#pending.clear();
  }

  async #receive<T>(
    peer: number,
    byteLength: number,
    phase: number,
    post: (arrival: Arrival) => Promise<T>,
  ): Promise<T> {
    const from = this.spec.members[peer]!;
    const arrival = this.#services.arrivalOf(this, from, phase);
    this.bytesReceived += byteLength;
    this.#pending.set(arrival, from);
    let done: Promise<T>;
    try {
      done = post(arrival);
    } catch (error) {
      this.#services.onBadMessage(from, error);
      return await new Promise<never>(() => {}); // the job is over
    }
    this.#services.afterPost(from, arrival);
    const result = await done;
    this.#pending.delete(arrival);
    return result;
  }
}
