// An elastic job as its coordinator knows it, and the ways from one phase to the next one.
// coordinator.ts takes them at members' words, and phases.ts when it is time.

import type { CoordinatorOptions, CoordinatorStatus, Departure } from './coordinator-options.js';
import { Deadlines } from './deadlines.js';
import type { Recovered } from './recovery.js';
import { Roster, type Seat, tableOf } from './roster.js';

/** The phase of a coordinator, with what it has to remember for as long as that lasts. */
export interface Stage {
  readonly phase: CoordinatorStatus['phase'];
  readonly sinceMs: number;
  /** The ids of those whose loss has ended the epoch, for who has missed that word. */
  readonly lost: readonly number[];
  /** The time at which somebody came, stopped or made a link. */
  movedMs: number;
  /** Whether those at work were told that somebody waits. */
  isDueTold?: boolean;
}

/**
 * The numbers, of epochs and of ids, that a coordinator leaves out which was started again: the one
 * before it may have given some to members who are not there to tell.
 */
const LEFT_OUT = 1000;

export class JobState<Address> {
  readonly options: CoordinatorOptions;
  readonly roster = new Roster<Address>();
  readonly deadlines = new Deadlines();
  /** The time since which too few could reach each other; undefined while an epoch runs. */
  shortSinceMs: number | undefined;
  /** How the last one has gone who was in an epoch. */
  lastHow: Departure['how'] | undefined;
  #stage: Stage;
  /** The highest number of an epoch. */
  #epoch = 0;
  /** The epoch that forms or runs, or did so last. */
  #table: Pick<CoordinatorStatus, 'epoch' | 'members' | 'step'> = {
    epoch: 0,
    members: [],
    step: 0,
  };
  /** The members of the epoch that was formed last. */
  #before: readonly number[] = [];

  constructor(options: CoordinatorOptions, nowMs: number) {
    this.options = options;
    const phase = (options.begin ?? 'new') === 'new' ? 'gathering' : 'recovering';
    this.#stage = { phase, sinceMs: nowMs, movedMs: nowMs, lost: [] };
  }

  get stage(): Stage {
    return this.#stage;
  }

  /** The highest number of an epoch. */
  get epoch(): number {
    return this.#epoch;
  }

  get table(): Pick<CoordinatorStatus, 'epoch' | 'members'> {
    return this.#table;
  }

  /** The members of the epoch that was formed last; none before the first one. */
  get before(): readonly number[] {
    return this.#before;
  }

  get status(): CoordinatorStatus {
    const { epoch, members, step } = this.#table;
    const waiting = this.roster.all.map(({ id }) => id).filter((id) => !members.includes(id));
    return { phase: this.#stage.phase, epoch, members, step, waiting };
  }

  /** Whether it forms or runs the epoch, or did so last. */
  isMember({ id }: Seat<Address>): boolean {
    return this.#table.members.includes(id);
  }

  /** Waits for members to stop, and for others to come. */
  gather(nowMs: number): void {
    this.#begin('gathering', nowMs);
  }

  /** Ends the running epoch. */
  stop(lost: readonly number[], nowMs: number): void {
    const { epoch, members } = this.#table;
    this.#begin('gathering', nowMs, lost);
    for (const seat of this.roster.of(members)) {
      if (seat.edge === undefined) {
        this.roster.tell(seat, { type: 'over', epoch, lost });
      }
    }
  }

  /** Goes on without a member. One that is fenced is told why; the others know. */
  giveUp(
    seat: Seat<Address>,
    { how, reason }: Pick<Departure, 'how' | 'reason'>,
    nowMs: number,
  ): void {
    if (how === 'fenced') {
      this.roster.tell(seat, { type: 'fenced', reason });
    }
    this.roster.remove(seat, { id: seat.id, how, reason });
    if (this.isMember(seat) || this.#before.includes(seat.id)) {
      this.lastHow = how;
    }
    if (this.#stage.phase === 'running' && this.isMember(seat)) {
      this.stop(how === 'left' ? [] : [seat.id], nowMs);
    }
  }

  /** Lets these form the next epoch. */
  grant(ids: readonly number[], nowMs: number): void {
    const seats = this.roster.of(ids);
    const table = tableOf(++this.#epoch, seats, this.#before);
    const { step } = table.members[table.source]!;
    this.#table = { epoch: this.#epoch, members: ids, step };
    this.#begin('forming', nowMs);
    for (const seat of seats) {
      seat.links = undefined;
      this.roster.tell(seat, { type: 'table', ...table });
    }
  }

  /** Lets the members of the epoch that forms begin, and fences who can't be with them. */
  form(nowMs: number): void {
    const { epoch, members: ids } = this.#table;
    this.#begin('running', nowMs);
    this.shortSinceMs = undefined;
    for (const seat of this.roster.of(ids)) {
      seat.edge = undefined;
      seat.formed = epoch;
      seat.suspectedMs = undefined;
      this.roster.tell(seat, { type: 'formed', epoch });
    }
    const reason = `it has no path to some of the members ${ids.join(', ')}`;
    for (const seat of this.roster.all) {
      const isLeft = this.#before.includes(seat.id) || ids.some((id) => seat.cut.has(id));
      if (isLeft && !ids.includes(seat.id)) {
        this.giveUp(seat, { how: 'fenced', reason }, nowMs);
      }
    }
    this.#before = ids;
  }

  /** Takes over a job that had another coordinator. Who is at work there goes on, where all are. */
  adopt({ epoch, members, present, ...found }: Recovered<Address>, nowMs: number): void {
    this.#table = { epoch, members, step: undefined };
    this.#before = members;
    this.#epoch = found.maxKnown + LEFT_OUT;
    this.roster.nextId = this.#epoch;
    this.#begin('running', nowMs);
    for (const [connection, { last, address }] of found.claims) {
      if (last !== undefined && present.has(last.id)) {
        this.roster.admit(connection, address, { epoch: this.#epoch, id: last.id });
      }
    }
    const missing = members.filter((id) => !present.has(id));
    for (const id of missing) {
      this.roster.miss(id);
    }
    if (!found.isRunning) {
      this.stop(missing, nowMs);
    }
  }

  /** Ends the job for those who speak over these connections. */
  end(reason: string, connections: readonly number[], nowMs: number): void {
    for (const connection of connections) {
      this.roster.tellOver(connection, { type: 'ended', reason });
    }
    this.#begin('ended', nowMs);
  }

  #begin(phase: Stage['phase'], nowMs: number, lost: readonly number[] = []): void {
    this.#stage = { phase, sinceMs: nowMs, movedMs: nowMs, lost };
  }
}
