// An elastic job whose members are in one process or page, for tests and trials: its coordinator is
// there too, and members are killed by a call.

import { type Clock, systemClock } from '../clock.js';
import type { ProcessServices } from '../endpoint/endpoint.js';
import { sharedReducer } from '../endpoint/reduce-hook.js';
import { Turns } from '../endpoint/turns.js';
import { createWorldGroup, type GroupOptions } from '../group/group-options.js';
import { CoordinatorHost } from '../membership/coordinator-host.js';
import type { CoordinatorOptions, CoordinatorStatus } from '../membership/coordinator-options.js';
import { EpochEndpoint } from '../membership/epoch-endpoint.js';
import {
  type CoordinatorEvents,
  type CoordinatorLink,
  ElasticMember,
  type EpochLinks,
  type LinkEvents,
  type Member,
} from '../membership/member.js';
import type { Said, Table, Told } from '../membership/messages.js';
import { attachInMemory } from './memory.js';

/** The options of the groups of all epochs, and of the coordinator. */
export interface MemoryElasticOptions extends GroupOptions, CoordinatorOptions {}

/**
 * An elastic job in this process.
 * @example
 * ```ts
 * import { MemoryElasticJob } from '@shardweave/collectives/elastic';
 *
 * const job = new MemoryElasticJob({ min: 1, max: 2 });
 * const [a, b] = await Promise.all([job.join(), job.join()]);
 * const [first] = await Promise.all([a.reform({ step: 0 }), b.reform({ step: 0 })]);
 * console.log(first.members.length); // logs 2
 * job.kill(b.id);
 * const second = await a.reform({ step: 7 });
 * console.log(second.members.length, second.left, second.step); // logs 1 [ 1 ] 7
 * await a.leave();
 * ```
 */
export class MemoryElasticJob {
  readonly #options: MemoryElasticOptions;
  readonly #clock: Clock;
  readonly #services: ProcessServices;
  #host: CoordinatorHost<null>;
  /** The members by the numbers of their connections. */
  readonly #halls = new Map<number, MemoryHall>();
  readonly #epochs = new Map<number, MemoryEpoch>();

  constructor(options: MemoryElasticOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#services = { reducer: sharedReducer(), turns: new Turns(this.#clock) };
    this.#host = this.#startCoordinator(options.begin);
  }

  get status(): CoordinatorStatus {
    return this.#host.status;
  }

  /** Resolves when the coordinator has welcomed a new member. */
  async join(): Promise<Member> {
    const hall = new MemoryHall((opened) => this.#connect(opened));
    const member = new ElasticMember<null>(hall, {
      address: null,
      link: (table, rank, events) => this.#link(hall, table, rank, events),
      close: async () => {},
    });
    await member.join();
    return member;
  }

  /** Ends a member as if its process were killed: the others notice that it is gone. */
  kill(id: number): void {
    for (const hall of this.#halls.values()) {
      if (hall.id === id) {
        hall.kill();
      }
    }
    for (const epoch of this.#epochs.values()) {
      epoch.kill(id);
    }
  }

  /** Ends the coordinator and starts another one, which knows nothing. */
  restartCoordinator(begin: CoordinatorOptions['begin'] = 'again'): void {
    const halls = [...this.#halls.values()];
    this.#halls.clear();
    this.#host = this.#startCoordinator(begin);
    for (const hall of halls) {
      hall.connect();
    }
  }

  #startCoordinator(begin: CoordinatorOptions['begin']): CoordinatorHost<null> {
    const options: CoordinatorOptions = { ...this.#options, begin };
    const host: CoordinatorHost<null> = new CoordinatorHost(options, this.#clock, (to, message) =>
      queueMicrotask(() => {
        if (host === this.#host) {
          this.#halls.get(to)?.hear(message);
        }
      }),
    );
    return host;
  }

  #connect(hall: MemoryHall): (said: Said<null> | undefined) => void {
    const host = this.#host;
    const connection = host.connect();
    this.#halls.set(connection, hall);
    return (said) =>
      queueMicrotask(() => {
        if (host !== this.#host || !this.#halls.has(connection)) {
          return;
        }
        if (said === undefined) {
          this.#halls.delete(connection);
          host.gone(connection);
        } else {
          host.hear(connection, said);
        }
      });
  }

  #link(hall: MemoryHall, table: Table<null>, rank: number, events: LinkEvents): EpochLinks {
    const known = this.#epochs.get(table.epoch);
    const epoch = known ?? new MemoryEpoch(table, this.#options, this.#services);
    this.#epochs.set(table.epoch, epoch);
    for (const older of this.#epochs.keys()) {
      if (older < table.epoch - 1) {
        this.#epochs.delete(older); // whoever is in it has its own end of it
      }
    }
    return epoch.link(rank, events, () => hall.isAlive);
  }
}

/** A member's way to the coordinator. */
class MemoryHall implements CoordinatorLink<null> {
  readonly #open: (hall: MemoryHall) => (said: Said<null> | undefined) => void;
  #events: CoordinatorEvents<null> | undefined;
  #say: (said: Said<null> | undefined) => void = () => {};
  id: number | undefined;
  isAlive = true;

  constructor(open: (hall: MemoryHall) => (said: Said<null> | undefined) => void) {
    this.#open = open;
  }

  start(events: CoordinatorEvents<null>): void {
    this.#events = events;
    queueMicrotask(() => this.connect());
  }

  connect(): void {
    if (this.isAlive) {
      this.#say = this.#open(this);
      this.#events!.connected();
    }
  }

  hear(told: Told<null>): void {
    if (this.isAlive) {
      this.id = told.type === 'welcome' ? told.id : this.id;
      this.#events!.hear(told);
    }
  }

  say(said: Said<null>): void {
    if (this.isAlive) {
      this.#say(said);
    }
  }

  kill(): void {
    this.isAlive = false;
    this.#say(undefined);
  }

  async close(): Promise<void> {
    this.#say(undefined);
  }
}

/** The endpoints of one epoch's members, made for all of them by the one that comes first. */
class MemoryEpoch {
  readonly #table: Table<null>;
  readonly #options: GroupOptions;
  readonly #endpoints: readonly EpochEndpoint[];
  readonly #events: (LinkEvents | undefined)[] = [];

  constructor(table: Table<null>, options: GroupOptions, services: ProcessServices) {
    this.#table = table;
    this.#options = options;
    const { length: worldSize } = table.members;
    this.#endpoints = table.members.map((_, rank) => {
      const onLost = (lost: readonly number[], reason: string) => {
        const ids = lost.map((peer) => table.members[peer]!.id);
        this.#events[rank]?.lost(ids, reason);
      };
      return new EpochEndpoint(rank, worldSize, options, { onLost, services });
    });
    attachInMemory(this.#endpoints, services.turns!);
  }

  link(rank: number, events: LinkEvents, isAlive: () => boolean): EpochLinks {
    const { epoch, members } = this.#table;
    const endpoint = this.#endpoints[rank]!;
    this.#events[rank] = events;
    const others = members.map(({ id }) => id).filter((_, peer) => peer !== rank);
    queueMicrotask(() => events.linked(others));
    return {
      begin: () => createWorldGroup(endpoint, { ...this.#options, epoch }),
      end: (reason, lost) => {
        if (isAlive()) {
          endpoint.end(reason, lost);
        }
      },
    };
  }

  kill(id: number): void {
    const rank = this.#table.members.findIndex((member) => member.id === id);
    this.#endpoints[rank]?.terminate();
  }
}
