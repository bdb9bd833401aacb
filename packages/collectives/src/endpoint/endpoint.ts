// One rank's end of a job, shared by all its groups: runs calls, hands what arrives to the inbox, and
// spreads failures.
//
// Note [one failure]: the first failure wins and ends all groups of the rank; it is sent to every
// peer, so that nobody waits for a rank that has given up.

import { Reducer } from '@shardweave/dtypes';
import { type Clock, systemClock } from '../clock.js';
import { type CollectiveError, CollectiveUsageError, errorOfFailure } from '../errors.js';
import type { Failure } from '../failure.js';
import type { NativeCollectives } from '../group/native-collectives.js';
import { LONGEST_TIMER_MS } from '../long-timer.js';
import type {
  ControlMessage,
  MessageHeader,
  MessageSink,
  Transport,
  TransportListener,
} from '../transport.js';
import type { Arrival } from './arrival.js';
import { Call, type CallServices, type CallSpec } from './call.js';
import { isPointToPoint } from './call-signature.js';
import { Matching } from './matching.js';
import { MessageRouter } from './message-router.js';
import { MismatchCheck } from './mismatch-check.js';
import {
  combineByHook,
  combineInThread,
  type PartReducer,
  type ReduceHook,
} from './reduce-hook.js';
import { ScratchPool } from './scratch-pool.js';
import { Turns } from './turns.js';

/** Ten minutes: longer than any step we run, shorter than a night lost to a hang. */
export const DEFAULT_TIMEOUT_MS = 600_000;

export interface EndpointOptions {
  readonly rank: number;
  readonly worldSize: number;
  /** Combines parts. Default: our wasm, in this thread. */
  readonly reduce?: ReduceHook;
  /** Shares one wasm reducer among the ranks of a process. Default: its own, made at first use. */
  readonly reducer?: () => Promise<PartReducer>;
  /**
   * Of one peer's messages that nobody here has asked for yet; a peer that sends more is lost.
   * Default: 512 MiB.
   */
  readonly maxUnclaimedBytes?: number;
  /** Default: the system's. */
  readonly clock?: Clock;
  /** Shared by ranks of one event loop. Default: its own. */
  readonly turns?: Turns;
}

/**
 * What a proven peer may cost. Collectives hold a MiB each, and a rank is some tens of them behind at most: of
 * 25 MiB gradient buckets this is 12 GiB. What `send` sends before its `recv` counts whole.
 */
const MAX_UNCLAIMED_BYTES = 512 * 2 ** 20;

/** For onPeerLost to come after a rejected send. The transport's links end at the same moment. */
const SEND_GRACE_MS = 1000;

export class Endpoint implements TransportListener {
  readonly rank: number;
  readonly worldSize: number;
  /** Resolves once, when the job has failed or this rank has closed. */
  readonly failed: Promise<Failure>;
  readonly clock: Clock;
  readonly #scratch = new ScratchPool();
  readonly #matching: Matching;
  readonly #mismatchCheck: MismatchCheck;
  readonly #router: MessageRouter;
  readonly #active = new Map<Call, (error: CollectiveError) => void>();
  readonly #left = new Set<number>();
  readonly #services: CallServices;
  #transport: Transport | undefined;
  #failure: Failure | undefined;
  /** Until the transport has said what there was to say, and freed everything. */
  #closing: Promise<void> | undefined;
  #onFailed: (failure: Failure) => void = () => {};

  constructor(options: EndpointOptions) {
    this.rank = options.rank;
    this.worldSize = options.worldSize;
    this.clock = options.clock ?? systemClock;
    this.failed = new Promise((resolve) => {
      this.#onFailed = resolve;
    });
    const turns = options.turns ?? new Turns(this.clock);
    const scratch = this.#scratch;
    this.#matching = new Matching(
      { scratch, turns },
      options.maxUnclaimedBytes ?? MAX_UNCLAIMED_BYTES,
    );
    this.#mismatchCheck = new MismatchCheck({
      rank: this.rank,
      matching: this.#matching,
      clock: this.clock,
      hasFailed: () => this.#failure !== undefined,
      sendControl: (to, message) => this.#transport!.sendControl(to, message),
      fail: (failure) => this.fail(failure),
    });
    this.#router = new MessageRouter({
      rank: this.rank,
      matching: this.#matching,
      mismatchCheck: this.#mismatchCheck,
      arrivals: { scratch, turns },
      isLending: () => this.#transport!.isLending ?? false,
      hasFailed: () => this.#failure !== undefined,
      fail: (failure) => this.fail(failure),
    });
    const endpoint = this;
    this.#services = {
      get transport() {
        return endpoint.#transport!;
      },
      scratch,
      turns,
      combine: options.reduce
        ? combineByHook(options.reduce)
        : combineInThread(options.reducer ?? Reducer.create, turns),
      now: () => this.clock.now(),
      arrivalOf: (call, from, phase) => this.#router.arrivalOf(call, from, phase),
      afterPost: (from, arrival) => this.#afterPost(from, arrival),
      afterSendFailed: (call, to, error) => this.#afterSendFailed(call, to, error),
      onBadMessage: (from, error) => this.#lose(from, (error as Error).message),
    };
  }

  get failure(): Failure | undefined {
    return this.#failure;
  }

  /** Names the transport; it must not deliver before. */
  attach(transport: Transport): void {
    this.#transport = transport;
  }

  /**
   * Runs an operation: `body` is entered at once, so messages leave in program order, and the call
   * is over when all that it sent has left, too. Rejects with the job's failure, at the latest when
   * nothing has moved for the call's timeout.
   */
  run(spec: CallSpec, body: (call: Call) => Promise<void>): Promise<Call> {
    const call = new Call(spec, this.#services);
    if (this.#failure !== undefined) {
      return Promise.reject(this.#errorFor(call, this.#failure));
    }
    return new Promise((resolve, reject) => {
      const stopWatching = this.#watch(call);
      const finish = () => {
        stopWatching();
        this.#active.delete(call);
        if (this.#active.size === 0) {
          this.#transport!.busy?.(false);
        }
        if (!isPointToPoint(spec.signature)) {
          this.#matching.finish(spec);
        }
      };
      if (this.#active.size === 0) {
        this.#transport!.busy?.(true);
      }
      this.#active.set(call, (error) => {
        finish();
        reject(error);
      });
      if (!isPointToPoint(spec.signature) && !this.#mismatchCheck.admit(call)) {
        return; // it rejects when the inquiry ends
      }
      this.#start(call, body).then(
        () => {
          // Cancelled: what it waited for never came, though its body went on to its end.
          if (this.#active.has(call) && !call.isOver) {
            finish();
            resolve(call);
          }
        },
        (error) => this.#onBodyFailed(call, error),
      );
    });
  }

  /**
   * Ends all groups, here and (unless it came from there) on all peers. See Note [one failure].
   * `ownReason` is what errors of this rank say, where that is more than the peers are told.
   */
  fail(failure: Failure, ownReason = failure.reason): void {
    if (this.#failure !== undefined) {
      return;
    }
    this.#end({ ...failure, reason: ownReason });
    for (let peer = 0; peer < this.worldSize; peer++) {
      if (peer !== this.rank && !this.#left.has(peer)) {
        this.#transport!.sendControl(peer, { type: 'failure', failure });
      }
    }
    this.#closing = this.#transport!.close('drop');
  }

  /**
   * Leaves the job: later calls reject at once, pending ones when what they have sent is out, since
   * it is read until then. Peers fail only if they need this rank. After a failure it resolves when the
   * peers have heard of it, or take too long.
   */
  async close(): Promise<void> {
    if (this.#failure === undefined) {
      const rejectAll = this.#stop({ kind: 'closed', origin: this.rank, reason: 'closed' });
      this.#closing = this.#transport!.close('drain').then(rejectAll);
    }
    await this.#closing;
  }

  /** See Transport.allocate. */
  allocate(byteLength: number): Uint8Array {
    return this.#transport!.allocate?.(byteLength) ?? new Uint8Array(byteLength);
  }

  /** See Transport.register. */
  register(buffer: SharedArrayBuffer): void {
    this.#transport!.register?.(buffer);
  }

  /** See Transport.release. */
  release(memory: Uint8Array | ArrayBufferLike): void {
    this.#transport!.release?.(memory);
  }

  /** The engine that runs this group's collectives, where the transport has one. */
  nativeFor(group: string): NativeCollectives | undefined {
    const native = this.#transport!.collectives;
    return native?.serves(group) ? native : undefined;
  }

  /** Buffers for parts on their way: how many were made, and the most bytes in use at one time. */
  scratchStats(): { readonly numAllocations: number; readonly peakBytes: number } {
    return this.#scratch.stats();
  }

  /** Drops all links without a word, as a killed process would. For tests. */
  terminate(): void {
    this.#end({ kind: 'closed', origin: this.rank, reason: 'terminated' });
    this.#transport!.terminate();
  }

  onMessage(from: number, header: MessageHeader): MessageSink {
    return this.#router.onMessage(from, header);
  }

  onControl(from: number, message: ControlMessage): void {
    if (this.#failure !== undefined) {
      return;
    }
    if (message.type === 'failure') {
      this.#onToldFailure(from, message.failure);
    } else {
      this.#mismatchCheck.onSaid(message);
    }
  }

  onPeerLost(peer: number, reason: string): void {
    this.#lose(peer, reason);
  }

  onRelayLost(reason: string): void {
    this.fail({ kind: 'relay-lost', origin: this.rank, reason });
  }

  onPeerLeft(peer: number): void {
    this.#left.add(peer);
    for (const call of this.#active.keys()) {
      if (call.waitingFor().includes(peer)) {
        this.#lose(peer, 'it closed the group');
        return;
      }
    }
  }

  /**
   * Anybody may say that he has lost a peer, this rank included. What a rank has done itself it knows
   * itself: a peer that says so of this rank is at fault. Of third ranks it is passed on, with who said so.
   */
  #onToldFailure(from: number, failure: Failure): void {
    const { kind, origin, reason } = failure;
    if (kind !== 'peer-lost' && origin === this.rank) {
      const what = `it says that rank ${origin} failed (${kind}: ${reason}), which did not`;
      this.fail({ kind: 'peer-lost', origin: from, reason: what });
    } else if (origin === from || kind === 'mismatch' || kind === 'peer-lost') {
      this.fail(failure);
    } else {
      this.fail(failure, `${reason} (told by rank ${from})`);
    }
  }

  #afterPost(from: number, arrival: Arrival): void {
    if (this.#left.has(from) && !arrival.hasArrived) {
      this.#lose(from, 'it closed the group');
    }
  }

  // ------------------------------------------------------------------ failures

  async #start(call: Call, body: (call: Call) => Promise<void>): Promise<void> {
    await body(call);
    await call.sent();
  }

  /** Fails the job when nothing has moved for the call's time limit. Returns what ends that. */
  #watch(call: Call): () => void {
    const { timeoutMs } = call.spec;
    let cancel = () => {};
    const check = () => {
      const leftMs = timeoutMs - call.idleMs;
      if (leftMs <= 0) {
        void this.#onTimeout(call);
      } else {
        cancel = this.clock.setTimer(Math.min(leftMs, LONGEST_TIMER_MS), check);
      }
    };
    cancel = this.clock.setTimer(Math.min(timeoutMs, LONGEST_TIMER_MS), check);
    return () => cancel();
  }

  #lose(peer: number, reason: string): void {
    this.fail({ kind: 'peer-lost', origin: peer, reason });
  }

  async #onTimeout(call: Call): Promise<void> {
    const { elseAbort } = call.spec;
    if (elseAbort !== undefined) {
      this.fail({ kind: 'aborted', origin: this.rank, reason: elseAbort });
      return;
    }
    const waitingFor = call.late === undefined ? call.waitingFor() : await call.late();
    const whom = waitingFor.length === 0 ? 'its own sends' : `ranks ${waitingFor.join(', ')}`;
    const limit = `${call.spec.timeoutMs} ms without progress`;
    const reason = `${call.description} timed out after ${limit}, waiting for ${whom}`;
    this.fail({ kind: 'timeout', origin: this.rank, reason, waitingFor });
  }

  /**
   * A transport that can't send either knows why and says so (onPeerLost, onPeerLeft), soon before or
   * after; then that counts. Else it is a bug, which ends the job, too.
   */
  async #afterSendFailed(call: Call, to: number, error: unknown): Promise<void> {
    if (!this.#left.has(to)) {
      await new Promise<void>((resolve) => this.clock.setTimer(SEND_GRACE_MS, resolve));
    }
    if (!this.#left.has(to)) {
      this.#onBodyFailed(call, error);
    }
  }

  /** A reduce hook rejected, or a bug: each ends the job. */
  #onBodyFailed(call: Call, error: unknown): void {
    if (!this.#active.has(call)) {
      return;
    }
    const reason = error instanceof Error ? error.message : String(error);
    this.fail({ kind: 'aborted', origin: this.rank, reason });
  }

  #end(failure: Failure): void {
    if (this.#failure === undefined) {
      this.#stop(failure)();
    }
  }

  /** Nothing is received any more, nothing begins; what it returns rejects what was pending. */
  #stop(failure: Failure): () => void {
    this.#failure = failure;
    this.#mismatchCheck.stop();
    const active = [...this.#active];
    for (const [call] of active) {
      call.cancel();
    }
    this.#matching.clear();
    this.#scratch.clear();
    this.#onFailed(failure);
    return () => {
      for (const [call, reject] of active) {
        if (this.#active.has(call)) {
          reject(this.#errorFor(call, failure));
        }
      }
    };
  }

  #errorFor(call: Call, failure: Failure): CollectiveError {
    return errorOfFailure(failure, this.#placeOf(call.spec));
  }

  /** For arguments that are wrong in themselves. */
  usageError(call: string, message: string): CollectiveUsageError {
    return new CollectiveUsageError({ rank: this.rank, worldSize: this.worldSize, call }, message);
  }

  #placeOf(spec: CallSpec) {
    const number = isPointToPoint(spec.signature) ? 'channel ' : '#';
    const group = spec.group === 'world' ? '' : ` in group ${spec.group}`;
    const call = `${spec.signature.operation} ${number}${spec.sequence}${group}`;
    return { rank: this.rank, worldSize: this.worldSize, call };
  }
}
