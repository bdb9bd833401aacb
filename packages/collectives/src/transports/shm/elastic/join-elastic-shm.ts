// Joins a thread to an elastic job over shared memory, by the handle that it was given.

import { checkGroupOptions, createWorldGroup } from '../../../group/group-options.js';
import { EpochEndpoint } from '../../../membership/epoch-endpoint.js';
import {
  type CoordinatorEvents,
  type CoordinatorLink,
  ElasticMember,
  type EpochLinker,
  type EpochLinks,
  type LinkEvents,
  type Member,
} from '../../../membership/member.js';
import type { Table } from '../../../membership/messages.js';
import { type ConnectShmOptions, openShm } from '../connect-shm.js';
import type { ShmRankHandle } from '../shm-job.js';
import { holdOpen, openPort, ThreadPresence } from '../thread-presence.js';
import { letGo } from './let-go.js';
import type { FromMember, ShmMemberHandle, ToMember } from './shm-elastic-job.js';

/** The options of the groups of all epochs of a thread. */
export type JoinElasticShmOptions = Omit<ConnectShmOptions, 'joinTimeoutMs' | 'hosts' | 'clock'>;

/**
 * Resolves when the coordinator has welcomed this thread, which is a member of the job's epochs
 * from its first `reform` on, and is kept alive until it leaves. Rejects with MembershipError where
 * the job has ended.
 */
export async function joinElasticShm(
  handle: ShmMemberHandle,
  options: JoinElasticShmOptions = {},
): Promise<Member> {
  checkGroupOptions(options, { rank: 0, worldSize: 1, call: 'joinElasticShm' });
  const coordinator = new CoordinatorPort(handle);
  const member = new ElasticMember(coordinator, new EpochThreads(coordinator, options));
  await member.join();
  return member;
}

/** A member's way to the coordinator. */
class CoordinatorPort implements CoordinatorLink<null> {
  readonly #port: MessagePort;
  readonly #presence: ThreadPresence;
  #block: ShmRankHandle | undefined;

  constructor({ job, number, ports }: ShmMemberHandle) {
    this.#port = ports[0]!;
    this.#presence = new ThreadPresence(job, number);
  }

  start(events: CoordinatorEvents<null>): void {
    void this.#presence.hold([this.#port]).then(() => {
      openPort(this.#port, (data) => {
        const { told, block } = data as ToMember;
        this.#block = block ?? this.#block;
        if (told !== undefined && (told.type !== 'table' || block !== undefined)) {
          events.hear(told);
        }
      });
      holdOpen(this.#port);
      const onEnd = () => events.gone('the thread of the coordinator has ended');
      this.#presence.watchPort(this.#port, onEnd);
      events.connected();
    });
  }

  say(said: FromMember): void {
    this.#port.postMessage(said);
  }

  async close(): Promise<void> {
    this.#port.close();
    this.#presence.release();
  }

  /** This thread's part of the newest epoch's block, which is let go of. */
  takeBlock(): ShmRankHandle {
    const block = this.#block!;
    this.#block = undefined;
    return block;
  }
}

/** A thread's links to the others, each epoch's in a block of its own. */
class EpochThreads implements EpochLinker<null> {
  readonly address = null;
  readonly #coordinator: CoordinatorPort;
  readonly #options: JoinElasticShmOptions;
  #endpoint: EpochEndpoint | undefined;
  #block: ShmRankHandle | undefined;

  constructor(coordinator: CoordinatorPort, options: JoinElasticShmOptions) {
    this.#coordinator = coordinator;
    this.#options = options;
  }

  link({ epoch, members }: Table<null>, rank: number, events: LinkEvents): EpochLinks {
    const options = this.#options;
    const idsOf = (ranks: readonly number[]) => ranks.map((peer) => members[peer]!.id);
    if (this.#block !== undefined) {
      letGo(this.#block);
    }
    this.#block = this.#coordinator.takeBlock();
    const { endpoint, transport } = openShm(
      this.#block,
      options,
      (services) =>
        new EpochEndpoint(rank, members.length, options, {
          onLost: (lost, reason) => events.lost(idsOf(lost), reason),
          services,
        }),
    );
    this.#endpoint = endpoint;
    const tellLinked = () => {
      const missing = new Set([rank, ...transport.awaited]);
      events.linked(idsOf([...members.keys()].filter((peer) => !missing.has(peer))));
    };
    // A thread that does not answer keeps the others from nothing but a link to it.
    transport.onHello = tellLinked;
    void transport.join().then(tellLinked);
    return {
      begin: () => createWorldGroup(endpoint, { ...options, epoch }),
      end: (reason, lost) => endpoint.end(reason, lost),
    };
  }

  async close(): Promise<void> {
    await this.#endpoint?.close();
  }
}
