// An elastic job whose members are threads that share memory, in the thread that starts them: its
// coordinator is there. A member speaks to it through a port. Each epoch has a block of memory of
// its own, of the epoch's size, which comes with the epoch's table. So nothing is left of a thread
// that has ended but what lies in an old block, and goes with that when the others let go of it.

import { systemClock } from '../../../clock.js';
import { CoordinatorHost } from '../../../membership/coordinator-host.js';
import type {
  CoordinatorOptions,
  CoordinatorStatus,
} from '../../../membership/coordinator-options.js';
import type { Said, Told } from '../../../membership/messages.js';
import { checkRingBytes } from '../job-memory.js';
import {
  checkSharedMemory,
  createShmJob,
  type ShmJobOptions,
  type ShmRankHandle,
} from '../shm-job.js';
import { openPort, ThreadPresence } from '../thread-presence.js';
import { letGo } from './let-go.js';

/** Who may be in the job, and the size of the memory that its members share in each epoch. */
export interface ShmElasticOptions extends CoordinatorOptions, ShmJobOptions {}

/**
 * The handle with which a thread joins the job, by `joinElasticShm`: data for `postMessage` or
 * `workerData`, with `ports` as the transfer list. It can be handed on once, and used once.
 */
export interface ShmMemberHandle {
  /** An id that no other job of the page has. */
  readonly job: string;
  /** Its number among the handles of the job. */
  readonly number: number;
  /** The port to the coordinator. */
  readonly ports: MessagePort[];
}

/** What a member posts to its coordinator. The first message is from whoever made the port. */
export type FromMember = Said<null> | { readonly type: 'made' };

/** What a coordinator posts to a member. A table comes with the member's part of a block. */
export interface ToMember {
  readonly told?: Told<null>;
  readonly block?: ShmRankHandle | undefined;
}

/**
 * An elastic job of threads, in the thread that starts them.
 * @example
 * ```ts
 * import { joinElasticShm, ShmElasticJob } from '@shardweave/collectives/elastic';
 *
 * const job = new ShmElasticJob({ min: 1, max: 2 });
 * // A thread gets one by new Worker(file, { workerData: handle, transferList: handle.ports }).
 * const [a, b] = await Promise.all([joinElasticShm(job.invite()), joinElasticShm(job.invite())]);
 * const [first] = await Promise.all([a.reform({ step: 0 }), b.reform({ step: 0 })]);
 * await b.leave();
 * const second = await a.reform({ step: 7 });
 * console.log(first.members.length, second.members.length, second.step); // logs 2 1 7
 * await a.leave();
 * ```
 */
export class ShmElasticJob {
  readonly #options: ShmElasticOptions;
  readonly #host: CoordinatorHost<null>;
  readonly #name = crypto.randomUUID();
  readonly #presence: ThreadPresence;
  /** The ports by the numbers of their connections. */
  readonly #ports = new Map<number, MessagePort>();
  readonly #ids = new Map<number, number>();
  /** The newest epoch's block, and its parts that were not handed on, by their members' ids. */
  #block:
    | {
        readonly epoch: number;
        readonly whole: ShmRankHandle | undefined;
        readonly parts: Map<number, ShmRankHandle>;
      }
    | undefined;

  /**
   * @throws {RangeError} for an impossible `min` or `max`
   * @throws {JoinError} where memory can't be shared
   */
  constructor(options: ShmElasticOptions) {
    const { min, max } = options;
    if (!Number.isInteger(min) || !Number.isInteger(max) || min < 1 || min > max) {
      throw new RangeError(
        `ShmElasticJob: expected 1 <= min <= max, got min ${min} and max ${max}.`,
      );
    }
    checkSharedMemory({ rank: 0, worldSize: max });
    if (options.ringBytes !== undefined) {
      checkRingBytes(options.ringBytes);
    }
    this.#options = options;
    this.#host = new CoordinatorHost(options, systemClock, (to, word) => this.#send(to, word));
    this.#presence = new ThreadPresence(this.#name, -1); // nobody watches this thread
  }

  get status(): CoordinatorStatus {
    return this.#host.status;
  }

  /** A handle for one more thread, which may join at any time. */
  invite(): ShmMemberHandle {
    const { port1: own, port2: port } = new MessageChannel();
    const number = this.#host.connect();
    this.#ports.set(number, own);
    // A port hears that its other end was closed only if it has had something to read.
    own.postMessage({} satisfies ToMember);
    port.postMessage({ type: 'made' } satisfies FromMember);
    const onEnd = () => {
      this.#ports.delete(number);
      this.#host.lose(number, 'its thread has ended');
    };
    openPort(own, (data) => {
      const said = data as FromMember;
      if (said.type === 'here') {
        this.#presence.watchLock(number, own, onEnd);
      }
      if (said.type !== 'made') {
        this.#host.hear(number, said);
      }
    });
    this.#presence.watchPort(own, onEnd);
    return { job: this.#name, number, ports: [port] };
  }

  /** Ends the job for all who are in it, with a reason. */
  close(reason = 'its coordinator was closed'): void {
    this.#host.end(reason);
    this.#forget();
    this.#presence.release();
    for (const port of this.#ports.values()) {
      port.postMessage({ told: { type: 'ended', reason } } satisfies ToMember);
      port.close();
    }
    this.#ports.clear();
  }

  #send(to: number, told: Told<null>): void {
    if (told.type === 'welcome') {
      this.#ids.set(to, told.id);
    }
    const block = told.type === 'table' ? this.#takePart(told, this.#ids.get(to)!) : undefined;
    const message: ToMember = { told, block };
    this.#ports.get(to)?.postMessage(message, block?.ports ?? []);
  }

  /** A member's part of an epoch's block; undefined where there is no memory for one. */
  #takePart(
    { epoch, members }: Extract<Told<null>, { readonly type: 'table' }>,
    id: number,
  ): ShmRankHandle | undefined {
    if (this.#block?.epoch !== epoch) {
      this.#forget();
      this.#block = this.#newBlock(epoch, members);
    }
    const part = this.#block.parts.get(id);
    this.#block.parts.delete(id);
    return part;
  }

  #newBlock(epoch: number, members: readonly { readonly id: number }[]) {
    const parts = new Map<number, ShmRankHandle>();
    let handles: readonly ShmRankHandle[] = [];
    try {
      handles = createShmJob(members.length, this.#options);
    } catch (error) {
      const reason = `no memory for ${members.length} members: ${(error as Error).message}`;
      queueMicrotask(() => this.#host.end(reason));
    }
    for (const [rank, handle] of handles.entries()) {
      parts.set(members[rank]!.id, handle);
    }
    return { epoch, whole: handles[0], parts };
  }

  /** Lets go of the newest block, and of what was meant for members that have ended. */
  #forget(): void {
    for (const { ports } of this.#block?.parts.values() ?? []) {
      for (const port of ports) {
        port.close();
      }
    }
    if (this.#block?.whole !== undefined) {
      letGo(this.#block.whole);
    }
    this.#block = undefined;
  }
}
