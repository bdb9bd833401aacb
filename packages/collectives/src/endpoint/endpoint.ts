// One rank's end of a job, shared by all its groups: it runs calls, hands what arrives to the
// router, and tells apart the peers that leave, that are lost and that have failed.

import { isPointToPoint } from '../call-signature.js';
import type { Clock } from '../clock.js';
import { type CollectiveError, CollectiveUsageError, errorOfFailure } from '../errors.js';
import type { Failure } from '../failure.js';
import type {
  ControlMessage,
  MessageHeader,
  MessageSink,
  Transport,
  TransportListener,
} from '../transport.js';
import { Call, type CallSpec } from './call.js';
import { CallWatchdog } from './call-watchdog.js';
import { LateInquiry } from './late-inquiry.js';
import { Matching } from './matching.js';
import { MessageRouter } from './message-router.js';
import { MismatchCheck } from './mismatch-check.js';
import { RankJob } from './rank-job.js';
import type { PartReducer, ReduceHook } from './reduce-hook.js';
import type { Turns } from './turns.js';

/** Ten minutes: longer than any step that we run, and shorter than a night lost to a hang. */
export const DEFAULT_TIMEOUT_MS = 600_000;

/** The limits, the clock and the reduce hook of a rank's calls. */
export interface EndpointOptions {
  /** Combines parts. Default: the package's wasm, in this thread. */
  readonly reduce?: ReduceHook;
  /**
   * The most bytes of one peer's messages that nobody on this rank has asked for yet; a peer that
   * sends more is lost. Default: 512 MiB.
   */
  readonly maxUnclaimedBytes?: number;
  /** Default: the system's. */
  readonly clock?: Clock;
}

/** What the ranks of a process share. Each rank without it has its own. */
export interface ProcessServices {
  /** Gives the wasm reducer, which is made at first use. */
  readonly reducer?: () => Promise<PartReducer>;
  /**
   * The turns of the event loop.
   * @internal
   */
  readonly turns?: Turns;
}

/**
 * The memory that an authenticated peer may take. Collectives hold a MiB each, and a rank is at
 * most some tens of them behind. Messages of `send` count in full before their `recv`: with
 * gradient buckets of 25 MiB that makes up to 12 GiB.
 */
const MAX_UNCLAIMED_BYTES = 512 * 2 ** 20;

/** The most characters of a call's identity in an error: what called it stands first. */
const MAX_IDENTITY_LENGTH = 80;

/**
 * One rank's end of a job, which all its groups share. It runs their calls over a transport,
 * matches arriving messages with calls, and spreads failures: after the first one, all pending and
 * later calls of the rank reject. Those who write a transport make one, `attach` the transport and
 * give it to `createWorldGroup`.
 */
export class Endpoint implements TransportListener {
  readonly #job: RankJob;
  readonly #matching: Matching;
  readonly #mismatchCheck: MismatchCheck;
  readonly #watchdog: CallWatchdog;
  readonly #router: MessageRouter;
  readonly #active = new Map<Call, (error: CollectiveError) => void>();

  constructor(
    rank: number,
    worldSize: number,
    options: EndpointOptions = {},
    services: ProcessServices = {},
  ) {
    const job = new RankJob(rank, worldSize, options, services);
    this.#job = job;
    this.#matching = new Matching(job, options.maxUnclaimedBytes ?? MAX_UNCLAIMED_BYTES);
    this.#mismatchCheck = new MismatchCheck(job, this.#matching);
    const lateInquiry = new LateInquiry(job, this.#matching);
    this.#watchdog = new CallWatchdog(job, lateInquiry, this.#active);
    this.#router = new MessageRouter(job, this.#matching, this.#mismatchCheck);
    job.onEnd((failure) => this.#stop(failure));
  }

  get rank(): number {
    return this.#job.rank;
  }

  get worldSize(): number {
    return this.#job.worldSize;
  }

  get clock(): Clock {
    return this.#job.clock;
  }

  /** Resolves once, when the job has failed or this rank has closed. */
  get failed(): Promise<Failure> {
    return this.#job.failed;
  }

  get failure(): Failure | undefined {
    return this.#job.failure;
  }

  /** Attaches the transport, which must not deliver anything before that. */
  attach(transport: Transport): void {
    this.#job.attach(transport);
  }

  /**
   * Runs an operation. `body` is entered at once, so messages are sent in program order, and the
   * call is over when everything that it sent has left, too. Rejects with the job's failure, and
   * makes the job fail where nothing has moved for the call's timeout.
   */
  run(spec: CallSpec, body: (call: Call) => Promise<void>): Promise<Call> {
    const call = new Call(spec, this.#job, this.#router);
    call.onMissed = (peer) => void this.#watchdog.onMissed(call, peer);
    if (this.failure !== undefined) {
      return Promise.reject(this.#errorFor(call, this.failure));
    }
    return new Promise((resolve, reject) => {
      const stopWatching = this.#watchdog.watch(call);
      const finish = () => {
        stopWatching();
        this.#active.delete(call);
        if (this.#active.size === 0) {
          this.#job.transport.busy?.(false);
        }
        if (!isPointToPoint(spec.signature)) {
          this.#matching.finish(spec);
        }
      };
      if (this.#active.size === 0) {
        this.#job.transport.busy?.(true);
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
        (error) => {
          if (this.#active.has(call)) {
            this.#job.abort(error); // only a failed reduce hook or a bug causes that
          }
        },
      );
    });
  }

  /** Ends all groups, here and on all peers. See Note [one failure] in rank-job.ts. */
  fail(failure: Failure, ownReason?: string): void {
    this.#job.fail(failure, ownReason);
  }

  /**
   * Leaves the job: later calls reject at once. Pending calls reject when what they have sent is
   * out, because their buffers are read until then. Peers fail only if they need this rank. After a
   * failure it resolves when the peers have heard of it, or take too long.
   */
  close(): Promise<void> {
    return this.#job.close();
  }

  /** See Transport.allocate. */
  allocate(byteLength: number): Uint8Array {
    return this.#job.transport.allocate?.(byteLength) ?? new Uint8Array(byteLength);
  }

  /** See Transport.register. */
  register(buffer: SharedArrayBuffer): void {
    this.#job.transport.register?.(buffer);
  }

  /** See Transport.release. */
  release(memory: Uint8Array | ArrayBufferLike): void {
    this.#job.transport.release?.(memory);
  }

  /** The number of buffers made for parts on their way, and the most bytes in use at one time. */
  scratchStats(): { readonly numAllocations: number; readonly peakBytes: number } {
    return this.#job.scratch.stats();
  }

  /** Drops all links without a word, as a killed process would. It is for tests. */
  terminate(): void {
    this.#job.terminate();
  }

  onMessage(from: number, header: MessageHeader): MessageSink {
    return this.#router.onMessage(from, header);
  }

  onControl(from: number, message: ControlMessage): void {
    if (this.failure !== undefined) {
      return;
    }
    if (message.type === 'failure') {
      this.#onToldFailure(from, message.failure);
    } else if (message.type === 'mismatch') {
      this.#mismatchCheck.onSaid(message);
    } else {
      this.#watchdog.lateInquiry.onSaid(from, message);
    }
  }

  onPeerLost(peer: number, reason: string, lost: readonly number[] = []): void {
    this.#job.lose(peer, reason, lost);
  }

  onRelayLost(reason: string): void {
    this.fail({ kind: 'relay-lost', origin: this.rank, reason });
  }

  onPeerLeft(peer: number): void {
    this.#job.left.add(peer);
    for (const call of this.#active.keys()) {
      if (call.waitingFor().includes(peer)) {
        call.onMissed(peer);
        return;
      }
    }
  }

  /**
   * Handles a peer's report of a failure. Any peer may report that a rank is lost, even this one.
   * But what this rank has done it knows itself: a peer that reports that this rank has failed is
   * at fault. What a rank says of another one is marked with the rank that said so.
   */
  #onToldFailure(from: number, failure: Failure): void {
    const { kind, origin, reason } = failure;
    if (kind !== 'peer-lost' && kind !== 'epoch-over' && origin === this.rank) {
      const what = `it says that rank ${origin} failed (${kind}: ${reason}), which did not`;
      this.fail({ kind: 'peer-lost', origin: from, reason: what });
    } else if (origin === from || kind === 'mismatch') {
      this.fail(failure);
    } else {
      this.fail(failure, `${reason} (told by rank ${from})`);
    }
  }

  async #start(call: Call, body: (call: Call) => Promise<void>): Promise<void> {
    await body(call);
    await call.sends.settled();
  }

  /**
   * Ends everything that receives or begins. The returned function rejects the calls that were
   * pending.
   */
  #stop(failure: Failure): () => void {
    this.#mismatchCheck.stop();
    this.#watchdog.lateInquiry.stop();
    const active = [...this.#active];
    for (const [call] of active) {
      call.cancel();
    }
    this.#matching.clear();
    return () => {
      for (const [call, reject] of active) {
        if (this.#active.has(call)) {
          reject(this.#errorFor(call, failure));
        }
      }
    };
  }

  #errorFor({ spec }: Call, failure: Failure): CollectiveError {
    const { signature, sequence, group, identity } = spec;
    const number = isPointToPoint(signature) ? 'channel ' : '#';
    const where = group === 'world' ? '' : ` in group ${group}`;
    // A timeout and a mismatch tell what was called themselves.
    const isTold = failure.kind === 'timeout' || failure.kind === 'mismatch';
    const use =
      isTold || identity === undefined ? '' : ` of '${identity.slice(0, MAX_IDENTITY_LENGTH)}'`;
    const name = `${signature.operation} ${number}${sequence}${where}${use}`;
    return errorOfFailure(failure, { rank: this.rank, worldSize: this.worldSize, call: name });
  }

  /** The error for arguments that are wrong in themselves. */
  usageError(call: string, message: string): CollectiveUsageError {
    return new CollectiveUsageError({ rank: this.rank, worldSize: this.worldSize, call }, message);
  }
}
