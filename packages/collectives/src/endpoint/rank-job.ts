// One rank's part in a job, which its calls, the router of its messages and the check for
// mismatches share: it knows who the rank is, its transport and its scratch memory, and it ends the
// job.
//
// Note [one failure]
// The first failure wins and ends all groups of the rank. It is sent to every peer, so that nobody
// waits for a rank that has given up.

import { RankSum } from '@shardweave/dtypes';
import { type Clock, systemClock } from '../clock.js';
import { type Failure, MAX_TOLD_LENGTH } from '../failure.js';
import type { Transport } from '../transport.js';
import type { EndpointOptions, ProcessServices } from './endpoint.js';
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
  /** Resolves when the transport has sent what there was to send, and has freed everything. */
  #closing: Promise<void> | undefined;
  #onFailed: (failure: Failure) => void = () => {};
  #stop: (failure: Failure) => () => void = () => () => {};

  constructor(
    rank: number,
    worldSize: number,
    options: EndpointOptions,
    services: ProcessServices,
  ) {
    this.rank = rank;
    this.worldSize = worldSize;
    this.clock = options.clock ?? systemClock;
    this.turns = services.turns ?? new Turns(this.clock);
    this.combine = options.reduce
      ? combineByHook(options.reduce)
      : combineInThread(services.reducer ?? RankSum.create, this.turns);
    this.failed = new Promise((resolve) => {
      this.#onFailed = resolve;
    });
  }

  /** Attaches the transport, which must not deliver anything before that. */
  attach(transport: Transport): void {
    this.#transport = transport;
  }

  get transport(): Transport {
    if (this.#transport === undefined) {
      throw new Error('Endpoint.attach comes before calls and before anything is delivered');
    }
    return this.#transport;
  }

  get failure(): Failure | undefined {
    return this.#failure;
  }

  /**
   * Sets what happens when the job ends: `stop` ends what is running, and the function that it
   * returns rejects the calls that were pending.
   */
  onEnd(stop: (failure: Failure) => () => void): void {
    this.#stop = stop;
  }

  /**
   * Ends all groups, here and on all peers (unless the failure came from there). See Note [one
   * failure]. `ownReason` is the reason in this rank's own errors, where it tells more than the
   * peers are told.
   */
  fail(failure: Failure, ownReason = failure.reason): void {
    if (this.#failure !== undefined) {
      return;
    }
    this.#end({ ...failure, reason: ownReason })();
    const told = { ...failure, reason: failure.reason.slice(0, MAX_TOLD_LENGTH) };
    for (let peer = 0; peer < this.worldSize; peer++) {
      if (peer !== this.rank && !this.left.has(peer)) {
        this.transport.sendControl(peer, { type: 'failure', failure: told });
      }
    }
    this.#closing = this.transport.close('drop');
  }

  /**
   * Fails the job because a peer is gone, or has sent what no rank sends. `lost` has others that
   * are gone too.
   */
  lose(peer: number, reason: string, lost: readonly number[] = []): void {
    const failure = { kind: 'peer-lost', origin: peer, reason } as const;
    const isAlone = lost.every((other) => other === peer);
    this.fail(isAlone ? failure : { ...failure, lost });
  }

  /** Fails the job because of an error of this rank, in a reduce hook or by a bug. */
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
