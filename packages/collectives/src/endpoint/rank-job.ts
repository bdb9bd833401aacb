// One rank's part in a job. Its calls, the router of its messages and the check for mismatches
// share it: it says who the rank is, what it sends through and where its buffers come from, and it
// ends the job.
//
// Note [one failure]: the first failure wins and ends all groups of the rank; it is sent to every
// peer, so that nobody waits for a rank that has given up.

import { Reducer } from '@shardweave/dtypes';
import { type Clock, systemClock } from '../clock.js';
import type { Failure } from '../failure.js';
import type { Transport } from '../transport.js';
import type { EndpointOptions } from './endpoint.js';
import { type Combine, combineByHook, combineInThread } from './reduce-hook.js';
import { ScratchPool } from './scratch-pool.js';
import { Turns } from './turns.js';

export class RankJob {
  readonly rank: number;
  readonly worldSize: number;
  readonly clock: Clock;
  readonly turns: Turns;
  readonly combine: Combine;
  readonly scratch = new ScratchPool();
  /** Resolves once, when the job has failed or this rank has closed. */
  readonly failed: Promise<Failure>;
  /** The peers that have said goodbye. */
  readonly left = new Set<number>();
  #transport: Transport | undefined;
  #failure: Failure | undefined;
  /** Resolves when the transport has said what there was to say, and has freed everything. */
  #closing: Promise<void> | undefined;
  #onFailed: (failure: Failure) => void = () => {};
  #stop: (failure: Failure) => () => void = () => () => {};

  constructor(options: EndpointOptions) {
    this.rank = options.rank;
    this.worldSize = options.worldSize;
    this.clock = options.clock ?? systemClock;
    this.turns = options.turns ?? new Turns(this.clock);
    this.combine = options.reduce
      ? combineByHook(options.reduce)
      : combineInThread(options.reducer ?? Reducer.create, this.turns);
    this.failed = new Promise((resolve) => {
      this.#onFailed = resolve;
    });
  }

  /** The transport must not deliver anything before it is attached. */
  attach(transport: Transport): void {
    this.#transport = transport;
  }

  get transport(): Transport {
    return this.#transport!;
  }

  get failure(): Failure | undefined {
    return this.#failure;
  }

  /**
   * `stop` ends what is running when the job ends; what it returns rejects the calls that were
   * pending.
   */
  onEnd(stop: (failure: Failure) => () => void): void {
    this.#stop = stop;
  }

  /**
   * Ends all groups, here and (unless it came from there) on all peers. See Note [one failure].
   * `ownReason` is what errors of this rank say, where that is more than the peers are told.
   */
  fail(failure: Failure, ownReason = failure.reason): void {
    if (this.#failure !== undefined) {
      return;
    }
    this.#end({ ...failure, reason: ownReason })();
    for (let peer = 0; peer < this.worldSize; peer++) {
      if (peer !== this.rank && !this.left.has(peer)) {
        this.transport.sendControl(peer, { type: 'failure', failure });
      }
    }
    this.#closing = this.transport.close('drop');
  }

  /** Fails the job because a peer is gone, or has said what no rank says. */
  lose(peer: number, reason: string): void {
    this.fail({ kind: 'peer-lost', origin: peer, reason });
  }

  /** Fails the job because of an error of this rank: a reduce hook's, or a bug. */
  abort(error: unknown): void {
    const reason = error instanceof Error ? error.message : String(error);
    this.fail({ kind: 'aborted', origin: this.rank, reason });
  }

  /** See Endpoint.close. */
  async close(): Promise<void> {
    if (this.#failure === undefined) {
      const rejectAll = this.#end({ kind: 'closed', origin: this.rank, reason: 'closed' });
      this.#closing = this.transport.close('drain').then(rejectAll);
    }
    await this.#closing;
  }

  /** See Endpoint.terminate. */
  terminate(): void {
    if (this.#failure === undefined) {
      this.#end({ kind: 'closed', origin: this.rank, reason: 'terminated' })();
    }
    this.transport.terminate();
  }

  #end(failure: Failure): () => void {
    this.#failure = failure;
    const rejectAll = this.#stop(failure);
    this.scratch.clear();
    this.#onFailed(failure);
    return rejectAll;
  }
}
