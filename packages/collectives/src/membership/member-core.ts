// What a member of an elastic job does at which word. It has no sockets, no clock and no promises;
// whoever drives it makes links and groups.

import type { LastEpoch, MemberEdge, Said, Table, Told } from './messages.js';

/**
 * How a member's part in a job ended: the job goes on without it ('fenced'), has ended for all
 * ('ended'), or has no coordinator any more ('alone'), or the member has left ('left').
 */
export interface Ending {
  readonly kind: 'fenced' | 'ended' | 'alone' | 'left';
  readonly reason: string;
}

/** What a MemberCore asks of whoever drives it. */
export interface MemberEvents<Address> {
  /** Says something to the coordinator, or drops it where there is no connection. */
  say(said: Said<Address>): void;
  /** Begins to link to the members of a table, in place of an earlier one. */
  link(table: Table<Address>): void;
  /** The job goes on in the epoch to which it has linked. */
  start(table: Table<Address>): void;
  /** Ends the epoch that runs or forms, if there is one. `lost` has ids, perhaps none. */
  stop(reason: string, lost: readonly number[]): void;
  /** It is no member any more. */
  fail(ending: Ending): void;
}

export class MemberCore<Address> {
  readonly #address: Address;
  readonly #events: MemberEvents<Address>;
  #id: number | undefined;
  #about: string | undefined;
  /** The epoch in which it is at work. */
  #running: Table<Address> | undefined;
  #forming: Table<Address> | undefined;
  /** The members with which it has links in the epoch that forms. */
  #peers: readonly number[] = [];
  /** The newest epoch in which it was linked to all. */
  #linked: Table<Address> | undefined;
  /** The epoch in which it was at work last. */
  #ran: Table<Address> | undefined;
  /** Whether its state is one that the job had. */
  #hasState = false;
  /** The highest number of an epoch that it was told. */
  #told = 0;
  /** The place at which it has stopped. */
  #edge: MemberEdge | undefined;
  #isDue = false;
  #ending: Ending | undefined;

  constructor(address: Address, events: MemberEvents<Address>) {
    this.#address = address;
    this.#events = events;
  }

  get id(): number | undefined {
    return this.#id;
  }

  /** What the coordinator told of the job. */
  get about(): string | undefined {
    return this.#about;
  }

  /** The epoch in which it is at work. */
  get running(): Table<Address> | undefined {
    return this.#running;
  }

  /** Whether somebody waits for the next edge. */
  get isDue(): boolean {
    return this.#isDue;
  }

  /** How its part in the job ended; undefined where it has not. */
  get ending(): Ending | undefined {
    return this.#ending;
  }

  /** Has a connection to a coordinator, which may not know it. */
  connected(): void {
    const { id } = this;
    const linked = this.#linked;
    const last: LastEpoch | undefined =
      id === undefined || linked === undefined
        ? undefined
        : {
            id,
            epoch: linked.epoch,
            members: idsOf(linked),
            isRunning: this.#running !== undefined,
          };
    this.#events.say({ type: 'here', address: this.#address, told: this.#told, last });
  }

  hear(told: Told<Address>): void {
    switch (told.type) {
      case 'welcome':
        this.#id = told.id;
        this.#about = told.about;
        this.#told = Math.max(this.#told, told.epoch);
        this.#sayEdge();
        this.#sayLinked();
        return;
      case 'table':
        this.#onTable(told);
        return;
      case 'formed':
        if (this.#forming?.epoch === told.epoch) {
          this.#running = this.#forming;
          this.#ran = this.#running;
          this.#hasState ||= this.#ran.before.length === 0;
          this.#forming = undefined;
          this.#edge = undefined;
          this.#isDue = false;
          this.#events.start(this.#running);
        }
        return;
      case 'over':
        if (this.#running !== undefined && this.#running.epoch <= told.epoch) {
          this.#stop('its members change', told.lost);
        }
        return;
      case 'due':
        this.#isDue ||= this.#running?.epoch === told.epoch;
        return;
      case 'fenced':
      case 'ended':
        this.fail({ kind: told.type, reason: told.reason });
    }
  }

  /** Stops at an edge, and waits for the next epoch. */
  reform(edge: MemberEdge): void {
    if (this.#running !== undefined) {
      this.#stop('a member has stopped to form another one', []);
    }
    // A newcomer that is behind the epoch in which it was has not copied the state.
    this.#hasState ||= this.#ran !== undefined && edge.step >= stepOf(this.#ran);
    this.#edge = edge;
    this.#sayEdge();
  }

  /** Notes with which members of the forming epoch it has links. */
  link(epoch: number, peers: readonly number[]): void {
    const forming = this.#forming;
    if (forming?.epoch === epoch) {
      this.#peers = peers;
      if (peers.length === forming.members.length - 1) {
        this.#linked = forming;
      }
      this.#sayLinked();
    }
  }

  /** Notes that it can't reach these members of the running epoch, which is over by that. */
  lose(epoch: number, lost: readonly number[], reason: string): void {
    if (this.#running?.epoch === epoch) {
      this.#events.say({ type: 'lost', epoch, members: lost });
      this.#stop(reason, lost);
    }
  }

  leave(): void {
    this.#events.say({ type: 'leave' });
    this.fail({ kind: 'left', reason: 'it has left' });
  }

  /** Is no member any more. */
  fail(ending: Ending): void {
    if (this.#ending === undefined) {
      this.#ending = ending;
      this.#stop(ending.reason, []);
      this.#events.fail(ending);
    }
  }

  #onTable(table: Table<Address>): void {
    this.#told = Math.max(this.#told, table.epoch);
    const isKnown = this.#forming !== undefined && table.epoch <= this.#forming.epoch;
    if (this.#edge !== undefined && !isKnown) {
      this.#forming = table;
      this.#peers = [];
      this.#events.link(table);
    }
  }

  #stop(reason: string, lost: readonly number[]): void {
    this.#running = undefined;
    this.#forming = undefined;
    this.#isDue = false;
    this.#events.stop(reason, lost);
  }

  #sayEdge(): void {
    if (this.#edge !== undefined && this.#id !== undefined) {
      const epoch = this.#ran?.epoch ?? 0;
      this.#events.say({ type: 'edge', epoch, hasState: this.#hasState, ...this.#edge });
    }
  }

  #sayLinked(): void {
    if (this.#forming !== undefined) {
      const { epoch } = this.#forming;
      this.#events.say({ type: 'linked', epoch, peers: this.#peers });
    }
  }
}

function idsOf({ members }: Table<unknown>): readonly number[] {
  return members.map(({ id }) => id);
}

/** The step at which an epoch begins. */
export function stepOf({ members, source }: Table<unknown>): number {
  return members[source]!.step;
}
