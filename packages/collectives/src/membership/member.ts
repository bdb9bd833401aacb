// One process of an elastic job, as a program holds it. What it does at which word is MemberCore's;
// how it reaches the coordinator and the others is a transport's.

import { CollectiveUsageError } from '../errors.js';
import type { ProcessGroup } from '../group/process-group.js';
import { MemberCore, stepOf } from './member-core.js';
import { MembershipError } from './membership-error.js';
import { MAX_NOTE_BYTES, type MemberEdge, type Said, type Table, type Told } from './messages.js';

/** A member of an epoch; its rank is its place in the list. */
export interface EpochMember extends MemberEdge {
  /** Its id, which no other member of the job has or had. */
  readonly id: number;
}

/** The time between two changes of a job's members: these ranks, connected to each other. */
export interface Epoch {
  /** The number of the epoch; later ones have higher numbers. */
  readonly number: number;
  /** The group of its members, which ends with it: its calls then reject with EpochOverError. */
  readonly group: ProcessGroup;
  /** All of them, by rank, with the steps and notes that they gave to `reform`. */
  readonly members: readonly EpochMember[];
  /** The ids of those who were not in the epoch before, and of those who were and have gone. */
  readonly joined: readonly number[];
  readonly left: readonly number[];
  /** The rank whose state the others copy, and the step at which that is. */
  readonly source: number;
  readonly step: number;
}

/** A process of an elastic job. */
export interface Member extends AsyncDisposable {
  /**
   * Its id in this job, which it keeps from epoch to epoch. Before its first one it gets another id
   * where the coordinator is started again.
   */
  readonly id: number;
  /** What `serveElastic` was given to tell of the job, such as its flags; undefined for nothing. */
  readonly about: string | undefined;
  /**
   * Whether `reform` is to be called at the next edge: somebody waits, or this is no member any
   * more. Members see it at different times, so they agree in a call of the step on when to stop.
   */
  readonly isChangeDue: boolean;
  /**
   * Stops, and resolves with the next epoch when all its members have stopped and are linked. The
   * group of the epoch before has ended by then. It is called at a step's edge, or after an error
   * of that group; for the first time when this process is ready to work. Rejects with
   * MembershipError where the job goes on without this process, or not at all, at the latest 10 s
   * after the coordinator is gone.
   * @param edge `step`: the steps that this member's state has done; `note`: at most 1 KiB of text
   * for the others
   */
  reform(edge: { readonly step: number; readonly note?: string }): Promise<Epoch>;
  /** Leaves the job, which goes on without this member. The epoch is over for the others. */
  leave(): Promise<void>;
}

/** What a member's way to the coordinator tells. */
export interface CoordinatorEvents<Address> {
  /** There is a connection, perhaps after another one has ended. */
  connected(): void;
  hear(told: Told<Address>): void;
  /** There is none any more, and won't be. */
  gone(reason: string): void;
}

/** A member's way to the coordinator. */
export interface CoordinatorLink<Address> {
  start(events: CoordinatorEvents<Address>): void;
  /** Says something where there is a connection. */
  say(said: Said<Address>): void;
  /** Ends it when what was said is out. */
  close(): Promise<void>;
}

/** What one epoch's links tell while they are made and used; members are known by their ids. */
export interface LinkEvents {
  linked(peers: readonly number[]): void;
  lost(members: readonly number[], reason: string): void;
}

/** The links of one epoch. */
export interface EpochLinks {
  /** All members are linked: the group that they have. */
  begin(): ProcessGroup;
  /** Ends them. `lost` has ranks. */
  end(reason: string, lost: readonly number[]): void;
}

/** What makes links between members. */
export interface EpochLinker<Address> {
  /** Where this member is to be found. */
  readonly address: Address;
  link(table: Table<Address>, rank: number, events: LinkEvents): EpochLinks;
  close(): Promise<void>;
}

/** The ends of a promise that others settle. */
interface Settle<T> {
  resolve(value: T): void;
  reject(error: Error): void;
}

export class ElasticMember<Address> implements Member {
  readonly #coordinator: CoordinatorLink<Address>;
  readonly #linker: EpochLinker<Address>;
  readonly #core: MemberCore<Address>;
  /** The epoch that forms or runs. */
  #current: { readonly table: Table<Address>; readonly links: EpochLinks } | undefined;
  #pending: Settle<Epoch> | undefined;
  #onWelcome: Settle<void> | undefined;
  #closing: Promise<void> | undefined;

  constructor(coordinator: CoordinatorLink<Address>, linker: EpochLinker<Address>) {
    this.#coordinator = coordinator;
    this.#linker = linker;
    this.#core = new MemberCore(linker.address, {
      say: (said) => coordinator.say(said),
      link: (table) => this.#link(table),
      start: (table) => this.#start(table),
      stop: (reason, lost) => this.#stop(reason, lost),
      fail: () => this.#fail(),
    });
  }

  /** Resolves when the coordinator has welcomed this process. Rejects with MembershipError. */
  join(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#onWelcome = { resolve, reject };
      this.#coordinator.start({
        connected: () => this.#core.connected(),
        hear: (message) => {
          this.#core.hear(message);
          if (message.type === 'welcome') {
            resolve();
          }
        },
        gone: (reason) => this.#core.fail({ kind: 'alone', reason }),
      });
    });
  }

  get id(): number {
    return this.#core.id!;
  }

  get about(): string | undefined {
    return this.#core.about;
  }

  get isChangeDue(): boolean {
    return this.#core.isDue || this.#core.ending !== undefined;
  }

  async reform({
    step,
    note = '',
  }: {
    readonly step: number;
    readonly note?: string;
  }): Promise<Epoch> {
    this.#checkEdge(step, note);
    if (this.#core.ending !== undefined) {
      throw new MembershipError(this.#core.id, this.#core.ending);
    }
    return new Promise((resolve, reject) => {
      this.#pending = { resolve, reject };
      this.#core.reform({ step, note });
    });
  }

  async leave(): Promise<void> {
    this.#core.leave();
    await this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.leave();
  }

  #checkEdge(step: number, note: string): void {
    const { table } = this.#current ?? {};
    const rank = table === undefined ? -1 : this.#rankIn(table);
    const place = { rank, worldSize: table?.members.length ?? 0, call: 'reform' };
    const fail = (message: string) => {
      throw new CollectiveUsageError(place, message);
    };
    if (this.#pending !== undefined) {
      fail('expected the reform before to have settled; it waits for the next epoch.');
    }
    if (!Number.isSafeInteger(step) || step < 0) {
      fail(`expected step to be the number of steps that are done, got ${String(step)}.`);
    }
    const byteLength = typeof note === 'string' ? new TextEncoder().encode(note).length : NaN;
    if (!(byteLength <= MAX_NOTE_BYTES)) {
      fail(`expected note to be a text of at most ${MAX_NOTE_BYTES} bytes, got ${byteLength}.`);
    }
  }

  #link(table: Table<Address>): void {
    this.#current?.links.end('other members were chosen', []);
    const { epoch } = table;
    const links = this.#linker.link(table, this.#rankIn(table), {
      linked: (peers) => this.#core.link(epoch, peers),
      lost: (members, reason) => this.#core.lose(epoch, members, reason),
    });
    this.#current = { table, links };
  }

  #start(table: Table<Address>): void {
    const group = this.#current!.links.begin();
    const { epoch: number, members, before, source } = table;
    const ids = members.map(({ id }) => id);
    this.#pending!.resolve({
      number,
      group,
      members: members.map(({ id, step, note }) => ({ id, step, note })),
      joined: ids.filter((id) => !before.includes(id)),
      left: before.filter((id) => !ids.includes(id)),
      source,
      step: stepOf(table),
    });
    this.#pending = undefined;
  }

  #stop(reason: string, lost: readonly number[]): void {
    const { table, links } = this.#current ?? {};
    const ids = table?.members.map(({ id }) => id) ?? [];
    links?.end(
      reason,
      lost.map((id) => ids.indexOf(id)).filter((rank) => rank >= 0),
    );
  }

  #fail(): void {
    const error = new MembershipError(this.#core.id, this.#core.ending!);
    this.#onWelcome?.reject(error);
    this.#pending?.reject(error);
    this.#pending = undefined;
    this.#closing = this.#close();
  }

  async #close(): Promise<void> {
    await this.#coordinator.close();
    await this.#linker.close();
  }

  #rankIn({ members }: Table<Address>): number {
    return members.findIndex(({ id }) => id === this.#core.id);
  }
}
