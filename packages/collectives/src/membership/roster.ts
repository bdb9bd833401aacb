// The members that a coordinator knows, by their ids and by the connections over which they speak,
// and what is to be told to them.

import type { Departure } from './coordinator-options.js';
import { largestLinked } from './largest-linked.js';
import type { MemberEdge, Table, Told } from './messages.js';

/** The place at which a member has stopped. */
export interface SeatEdge extends MemberEdge {
  /** Whether its state is one that the job had at that step. */
  readonly hasState: boolean;
  readonly sinceMs: number;
}

/** What the coordinator knows of a member. */
export interface Seat<Address> {
  readonly id: number;
  address: Address;
  /** The connection over which it speaks; undefined where that has ended, at `goneMs`. */
  connection: number | undefined;
  goneMs: number;
  /** The place at which it has stopped; undefined where it is at work. */
  edge: SeatEdge | undefined;
  /** The members with which it has links in the epoch that is forming; undefined until it tells. */
  links: ReadonlySet<number> | undefined;
  /** The epoch that it was told to begin, and perhaps has; an edge before that one is old. */
  formed: number;
  /** The time at which a member told that it is lost. */
  suspectedMs: number | undefined;
  /** The time since which it shows no signs of life to the coordinator itself. */
  silentMs: number | undefined;
  /** The members with which it has no path, as either end has told. */
  readonly cut: Set<number>;
}

/** What to tell over which connection. */
export interface Word<Address> {
  readonly to: number;
  readonly told: Told<Address>;
}

export class Roster<Address> {
  readonly #seats = new Map<number, Seat<Address>>();
  readonly #ids = new Map<number, number>();
  #words: Word<Address>[] = [];
  #came: number[] = [];
  #gone: Departure[] = [];
  /** The id of the next newcomer. */
  nextId = 0;

  /** All of them, in the order of their ids. */
  get all(): readonly Seat<Address>[] {
    return [...this.#seats.values()].sort((a, b) => a.id - b.id);
  }

  /** The connections of those who have one. */
  get connections(): readonly number[] {
    return this.all.flatMap(({ connection }) => connection ?? []);
  }

  get(id: number): Seat<Address> | undefined {
    return this.#seats.get(id);
  }

  /** Those of `ids` that are still there. */
  of(ids: readonly number[]): readonly Seat<Address>[] {
    return ids.flatMap((id) => this.#seats.get(id) ?? []);
  }

  /** The member that speaks over a connection. */
  at(connection: number): Seat<Address> | undefined {
    const id = this.#ids.get(connection);
    return id === undefined ? undefined : this.#seats.get(id);
  }

  /**
   * Takes in somebody who speaks over `connection`, as a newcomer or as the member of that id, and
   * welcomes it.
   */
  admit(
    connection: number,
    address: Address,
    { epoch, id = this.nextId++ }: { readonly epoch: number; readonly id?: number },
  ): Seat<Address> {
    const known = this.#seats.get(id);
    if (known === undefined) {
      this.#came.push(id);
    }
    const seat = known ?? {
      id,
      address,
      connection,
      goneMs: 0,
      edge: undefined,
      links: undefined,
      formed: 0,
      suspectedMs: undefined,
      silentMs: undefined,
      cut: new Set(),
    };
    this.#seats.set(id, seat);
    this.#hangUp(seat);
    seat.connection = connection;
    seat.address = address;
    this.#ids.set(connection, id);
    this.tell(seat, { type: 'welcome', id, epoch });
    return seat;
  }

  /** Notes that the member's connection has ended. */
  gone(seat: Seat<Address>, nowMs: number): void {
    this.#hangUp(seat);
    seat.goneMs = nowMs;
  }

  remove(seat: Seat<Address>, departure: Departure): void {
    this.#hangUp(seat);
    this.#seats.delete(seat.id);
    this.#gone.push(departure);
  }

  /** Notes that somebody of the job has not come to a coordinator that was started again. */
  miss(id: number): void {
    this.#gone.push({ id, how: 'lost', reason: 'it has not come again' });
  }

  /** Notes that there is no path between two members. */
  cut(a: Seat<Address>, b: Seat<Address>): void {
    a.cut.add(b.id);
    b.cut.add(a.id);
  }

  forgetCuts(): void {
    for (const { cut } of this.#seats.values()) {
      cut.clear();
    }
  }

  tell({ connection }: Seat<Address>, told: Told<Address>): void {
    if (connection !== undefined) {
      this.tellOver(connection, told);
    }
  }

  tellOver(connection: number, told: Told<Address>): void {
    this.#words.push({ to: connection, told });
  }

  /** What is to be told since the last call. */
  takeWords(): readonly Word<Address>[] {
    const words = this.#words;
    this.#words = [];
    return words;
  }

  /** Who has come and gone since the last call. */
  takeChanges(): { readonly came: readonly number[]; readonly gone: readonly Departure[] } {
    const changes = { came: this.#came, gone: this.#gone };
    this.#came = [];
    this.#gone = [];
    return changes;
  }

  #hangUp(seat: Seat<Address>): void {
    if (seat.connection !== undefined) {
      this.#ids.delete(seat.connection);
      seat.connection = undefined;
    }
  }
}

/** Whether it could be in the next epoch. */
export function isReady({ edge, connection }: Seat<unknown>): boolean {
  return edge !== undefined && connection !== undefined;
}

/** Whether it has the state of a job whose last epoch had these members. A new job's all have. */
export function hasState({ id, edge }: Seat<unknown>, before: readonly number[]): boolean {
  return before.length === 0 || (before.includes(id) && edge?.hasState === true);
}

/**
 * The ids of the next epoch's members, in ascending order: the largest set of those who are ready
 * and have paths to each other. Where there are more than `max`, those of the epoch `before` come
 * first.
 */
export function chooseMembers<Address>(
  roster: Roster<Address>,
  before: readonly number[],
  max: number,
): readonly number[] {
  const ready = roster.all.filter(isReady).map(({ id }) => id);
  const isCut = (a: number, b: number) => roster.get(a)!.cut.has(b);
  const linked = largestLinked(ready, isCut, (id) => hasState(roster.get(id)!, before));
  const newcomers = linked.filter((id) => !before.includes(id));
  const chosen = [...linked.filter((id) => before.includes(id)), ...newcomers].slice(0, max);
  return chosen.sort((a, b) => a - b);
}

/** The table of an epoch of these members, who have stopped. */
export function tableOf<Address>(
  epoch: number,
  seats: readonly Seat<Address>[],
  before: readonly number[],
): Table<Address> {
  const members = seats.map(({ id, address, edge }) => {
    const { step, note } = edge!;
    return { id, address, step, note };
  });
  let source = -1;
  for (const [rank, seat] of seats.entries()) {
    if (hasState(seat, before) && (source < 0 || seat.edge!.step > members[source]!.step)) {
      source = rank;
    }
  }
  return { epoch, members, before, source };
}
