// One running operation of one rank, as an algorithm sees it. In a call's own methods peers are
// group ranks; in the transport below they are world ranks. Nothing here rejects: a failure ends
// the job, and with it the call.

import type { ReduceOptions } from '@shardweave/dtypes';
import { type CallSignature, describeCall } from '../call-signature.js';
import type { Arrival } from './arrival.js';
import type { Borrowed } from './borrowed.js';
import { copyBytes } from './copy-bytes.js';
import type { HostPlan } from './host-plan.js';
import type { MessageRouter } from './message-router.js';
import { PendingSends } from './pending-sends.js';
import type { RankJob } from './rank-job.js';
import type { ScratchPool } from './scratch-pool.js';
import type { Turns } from './turns.js';

/** A call and the group in which it is made; `members` are world ranks in group order. */
export interface CallSpec {
  readonly group: string;
  readonly members: readonly number[];
  /** This rank's place in the group. */
  readonly rank: number;
  /**
   * The other group ranks, beginning after this one, so that not all ranks start with the same
   * peer.
   */
  readonly peers: readonly number[];
  readonly sequence: number;
  readonly signature: CallSignature;
  /** The counts that `signature.layout` is a hash of. */
  readonly counts?: readonly number[] | undefined;
  readonly identity?: string | undefined;
  /** See BarrierOptions. */
  readonly elseAbort?: string | undefined;
  /**
   * The plan of shared hosts, where sums are to be combined within hosts first.
   * @internal
   */
  readonly hosts?: HostPlan | undefined;
  /** See LayoutDetails. */
  readonly tree?: readonly number[] | undefined;
  /** The time without any progress after which the call fails. */
  readonly timeoutMs: number;
}

/** The result of `send` where the transport has taken a copy of the message. */
const SENT = Promise.resolve();

/**
 * One collective that runs on this rank, as algorithms and NativeCollectives see it: its place in
 * the group, the messages that it sends and receives, and the bytes that it counts.
 */
export class Call {
  readonly spec: CallSpec;
  /**
   * What was sent and has not left.
   * @internal
   */
  readonly sends: PendingSends;
  /** Notes that something moved, so that the time limit begins anew. */
  readonly progressed = () => {
    this.#lastProgressMs = this.#job.clock.now();
  };
  readonly #job: RankJob;
  readonly #router: MessageRouter;
  /** The messages that were asked for and are not complete, each with its sender. */
  readonly #pending = new Map<Arrival, number>();
  #lastProgressMs: number;
  #abort: AbortController | undefined;
  bytesSent = 0;
  bytesReceived = 0;
  /** Finds the world ranks that are late, for operations that don't go through `receive`. */
  late: (() => Promise<readonly number[]>) | undefined;
  /**
   * Ends the job because the call waits for a peer that has left.
   * @internal
   */
  onMissed: (peer: number) => void = () => {};

  /** @internal */
  constructor(spec: CallSpec, job: RankJob, router: MessageRouter) {
    this.spec = spec;
    this.#job = job;
    this.#router = router;
    this.sends = new PendingSends(job, this.progressed);
    this.#lastProgressMs = job.clock.now();
  }

  get rank(): number {
    return this.spec.rank;
  }

  get worldSize(): number {
    return this.spec.members.length;
  }

  /** @internal */
  get scratch(): ScratchPool {
    return this.#job.scratch;
  }

  /** @internal */
  get turns(): Turns {
    return this.#job.turns;
  }

  /** See Transport.isLending. */
  get isLending(): boolean {
    return this.#job.transport.isLending ?? false;
  }

  get description(): string {
    const { signature, sequence, counts, hosts, tree, identity } = this.spec;
    return describeCall(signature, sequence, { counts, hosts: hosts?.hostOf, tree, identity });
  }

  /** See CallSpec. */
  get peers(): readonly number[] {
    return this.spec.peers;
  }

  /** The milliseconds since a byte of this call last moved. */
  get idleMs(): number {
    return this.#job.clock.now() - this.#lastProgressMs;
  }

  /** Sends a message. Its payload is lent until the promise resolves. */
  send(peer: number, payload: Uint8Array, phase = 0): Promise<void> {
    const { group, sequence, signature, members } = this.spec;
    const { byteLength } = payload;
    const header = { group, sequence, phase, call: signature, byteLength };
    this.bytesSent += byteLength;
    const to = members[peer]!;
    const sent = this.#job.transport.send(to, header, payload, this.progressed);
    if (sent === undefined) {
      this.progressed();
      return SENT;
    }
    return this.sends.add(to, sent);
  }

  /** Resolves when the peer's message of this call and phase fills `target`. */
  receive(peer: number, target: Uint8Array, phase = 0): Promise<void> {
    return this.#receive(peer, target.byteLength, phase, (arrival) =>
      arrival.post(target, this.progressed),
    );
  }

  /**
   * Resolves with the peer's message for reading. That needs no buffer of the caller's, and no copy
   * where the transport can lend the bytes.
   * @internal
   */
  borrow(peer: number, byteLength: number, phase = 0): Promise<Borrowed> {
    return this.#receive(peer, byteLength, phase, (arrival) =>
      arrival.borrow(byteLength, this.progressed),
    );
  }

  /** Combines the parts of all ranks, in rank order, into `output`. */
  async reduce(
    parts: readonly Uint8Array[],
    output: Uint8Array,
    options: ReduceOptions,
  ): Promise<void> {
    await this.#job.combine(parts, output, options, this);
    this.progressed();
  }

  /** Copies within this rank, in slices, unless target and source are the same bytes already. */
  async copy(target: Uint8Array, source: Uint8Array): Promise<void> {
    // A view of the same bytes (a shard inside its full buffer) is common and needs no copy.
    if (target.buffer !== source.buffer || target.byteOffset !== source.byteOffset) {
      await copyBytes(target, source, this.turns, () => this.isOver);
    }
  }

  /** Whether the call has failed, with its job, so that its buffers are the caller's again. */
  get isOver(): boolean {
    return this.#job.failure !== undefined;
  }

  /** Aborted when the call has failed, after which nothing of the caller's is written any more. */
  get signal(): AbortSignal {
    if (this.#abort === undefined) {
      this.#abort = new AbortController();
      if (this.isOver) {
        this.#abort.abort();
      }
    }
    return this.#abort.signal;
  }

  /** The world ranks whose messages have been asked for and have not arrived. */
  waitingFor(): number[] {
    const missing = [...this.#pending].filter(([arrival]) => !arrival.hasArrived);
    return [...new Set(missing.map(([, from]) => from))].sort((a, b) => a - b);
  }

  /** Gives the caller's buffers back: nothing is written to them any more. */
  cancel(): void {
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
    const arrival = this.#router.arrivalOf(this, from, phase);
    this.bytesReceived += byteLength;
    this.#pending.set(arrival, from);
    let done: Promise<T>;
    try {
      done = post(arrival);
    } catch (error) {
      this.#job.lose(from, (error as Error).message);
      return await new Promise<never>(() => {}); // the job is over
    }
    if (this.#job.left.has(from) && !arrival.hasArrived) {
      this.onMissed(from);
    }
    const result = await done;
    this.#pending.delete(arrival);
    return result;
  }
}
