// Decides who is in an elastic job. It is a machine without sockets and without a clock: it is told
// what members say, whose connections have ended and what time it is, and answers with what to tell
// whom. A member is at work in one epoch at a time, and each change of members makes a new epoch.
//
//   gathering   members stop, and say at which step they are      until all have, or are given up
//   forming     those who were chosen link to each other          until all have, or time is over
//   running     they are at work                                  until one is lost, goes or stops
//
// Note [never two jobs]
// A newcomer has the state of the job when it has copied it, which its next edge tells. Each table
// has a member that has the state, and whoever of the epoch before is not in it is fenced: its id
// is never taken again. A coordinator that was started again knows nothing. It goes on where more
// than half of the newest epoch that its callers know of have come, since no other coordinator can
// have as many. Where some are missing it first waits until those have given up who may know of a
// newer epoch.

import { DEFAULT_TIMEOUT_MS } from '../endpoint/endpoint.js';
import type { CoordinatorOptions, CoordinatorStatus } from './coordinator-options.js';
import { Deadlines } from './deadlines.js';
import type { LastEpoch, Said } from './messages.js';
import { Recovery } from './recovery.js';
import {
  chooseMembers,
  hasState,
  isReady,
  Roster,
  type Seat,
  tableOf,
  type Word,
} from './roster.js';

/** The phase of a coordinator, with what it has to remember for as long as that lasts. */
interface Stage {
  readonly phase: CoordinatorStatus['phase'];
  readonly sinceMs: number;
  /** The time at which somebody came, stopped or made a link. */
  movedMs: number;
  /** The time since which there are too few. */
  shortSinceMs?: number;
  /** Whether those at work were told that somebody waits. */
  isDueTold?: boolean;
}

/**
 * The numbers, of epochs and of ids, that a coordinator leaves out which was started again: the one
 * before it may have given some to members who are not there to tell.
 */
const LEFT_OUT = 1000;

export class Coordinator<Address> {
  readonly #options: CoordinatorOptions;
  readonly #roster = new Roster<Address>();
  readonly #recovery = new Recovery<Address>();
  readonly #deadlines = new Deadlines();
  #stage: Stage;
  /** The highest number of an epoch. */
  #epoch = 0;
  /** The epoch that forms or runs, or did so last. */
  #table: { readonly epoch: number; readonly ids: readonly number[] } = { epoch: 0, ids: [] };
  /** The members of the epoch that was formed last. */
  #before: readonly number[] = [];

  constructor(options: CoordinatorOptions, nowMs: number) {
    this.#options = options;
    const phase = (options.begin ?? 'new') === 'new' ? 'gathering' : 'recovering';
    this.#stage = { phase, sinceMs: nowMs, movedMs: nowMs };
  }

  /** The time by which `tick` has to be called. */
  get nextTickMs(): number {
    return this.#deadlines.nextMs;
  }

  get status(): CoordinatorStatus {
    const { epoch, ids: members } = this.#table;
    const waiting = this.#roster.all.map(({ id }) => id).filter((id) => !members.includes(id));
    return { phase: this.#stage.phase, epoch, members, waiting };
  }

  /** Takes what was said over a connection, whose number no other connection has or had. */
  hear(from: number, said: Said<Address>, nowMs: number): readonly Word<Address>[] {
    const seat = this.#roster.at(from);
    if (said.type !== 'here' && seat !== undefined) {
      this.#onSaid(seat, said, nowMs);
    } else if (said.type === 'here' && seat === undefined) {
      this.#onHere(from, said, nowMs);
    }
    return this.tick(nowMs);
  }

  /** Notes that a connection has ended. Its member may come again over another one. */
  gone(from: number, nowMs: number): readonly Word<Address>[] {
    this.#recovery.gone(from);
    const seat = this.#roster.at(from);
    if (seat !== undefined) {
      this.#roster.gone(seat, nowMs);
    }
    return this.tick(nowMs);
  }

  /** Does what it is time for. */
  tick(nowMs: number): readonly Word<Address>[] {
    let stage: Stage;
    do {
      stage = this.#stage;
      this.#deadlines.clear();
      this.#giveUpGone(nowMs);
      if (this.#stage.phase === 'recovering') {
        this.#recover(nowMs);
      } else if (this.#stage.phase === 'gathering') {
        this.#gather(nowMs);
      } else if (this.#stage.phase === 'forming') {
        this.#form(nowMs);
      } else if (this.#stage.phase === 'running') {
        this.#callToEdge(nowMs);
      }
    } while (this.#stage !== stage);
    return this.#roster.takeWords();
  }

  /** Ends the job for all who are there. They are told with the words of the next tick. */
  end(reason: string, nowMs: number): void {
    const connections = this.#roster.all.flatMap(({ connection }) => connection ?? []);
    for (const connection of [...connections, ...this.#recovery.connections]) {
      this.#roster.tellOver(connection, { type: 'ended', reason });
    }
    this.#begin('ended', nowMs);
  }

  #onHere(
    from: number,
    here: Extract<Said<Address>, { readonly type: 'here' }>,
    nowMs: number,
  ): void {
    const { last, address } = here;
    const { phase } = this.#stage;
    if (phase === 'ended') {
      this.#roster.tellOver(from, { type: 'ended', reason: 'it has ended' });
    } else if (phase === 'recovering') {
      this.#recovery.hear(from, here);
    } else if (last === undefined) {
      this.#roster.admit(from, address, { epoch: this.#epoch });
    } else if (this.#roster.get(last.id) === undefined) {
      const reason = `the job has gone on without member ${last.id}`;
      this.#roster.tellOver(from, { type: 'fenced', reason });
    } else {
      const seat = this.#roster.admit(from, address, { epoch: this.#epoch, id: last.id });
      this.#remind(seat, last, nowMs);
    }
  }

  /** Tells a member that comes again what it may have missed. */
  #remind(seat: Seat<Address>, last: LastEpoch, nowMs: number): void {
    const { epoch, ids } = this.#table;
    const { phase, isDueTold } = this.#stage;
    if (phase !== 'running' && !last.isRunning) {
      seat.formed = 0; // it has not heard that word, and will not
    }
    if (phase === 'gathering' && last.isRunning) {
      this.#roster.tell(seat, { type: 'over', epoch, lost: [] });
    } else if (phase === 'forming' && ids.includes(seat.id)) {
      const table = tableOf(epoch, this.#roster.of(ids), this.#before);
      this.#roster.tell(seat, { type: 'table', ...table });
      this.#stage.movedMs = nowMs;
    } else if (phase === 'running' && ids.includes(seat.id) && !last.isRunning) {
      this.#roster.tell(seat, { type: 'formed', epoch });
    } else if (phase === 'running' && isDueTold) {
      this.#roster.tell(seat, { type: 'due', epoch });
    }
  }

  #onSaid(
    seat: Seat<Address>,
    said: Exclude<Said<Address>, { readonly type: 'here' }>,
    nowMs: number,
  ): void {
    const { phase } = this.#stage;
    const isMember = this.#table.ids.includes(seat.id);
    const isOfTable = isMember && 'epoch' in said && said.epoch === this.#table.epoch;
    if (said.type === 'leave') {
      this.#giveUp(seat, undefined, nowMs);
    } else if (said.type === 'edge') {
      // A member that comes again repeats its edge, and may hear only then that it is to begin.
      if (said.epoch >= seat.formed && (phase !== 'forming' || !isMember)) {
        const { step, note, hasState: isHolder } = said;
        seat.edge = { step, note, hasState: isHolder, sinceMs: nowMs };
        this.#stage.movedMs = nowMs;
        if (phase === 'running' && isMember) {
          this.#stop([], nowMs);
        }
      }
    } else if (said.type === 'linked' && isOfTable && phase === 'forming') {
      if (said.peers.length > (seat.links?.size ?? -1)) {
        this.#stage.movedMs = nowMs;
      }
      seat.links = new Set(said.peers);
    } else if (said.type === 'lost' && isOfTable && phase !== 'forming') {
      this.#suspect(seat, said.members, nowMs);
    }
  }

  /** Takes a member's word that it can't reach these. */
  #suspect(from: Seat<Address>, lost: readonly number[], nowMs: number): void {
    for (const seat of this.#roster.of(lost.filter((id) => this.#table.ids.includes(id)))) {
      if (seat !== from) {
        seat.suspectedMs ??= nowMs;
        this.#roster.cut(from, seat);
      }
    }
    if (this.#stage.phase === 'running') {
      this.#stop(lost, nowMs);
    }
  }

  /** Ends the running epoch. */
  #stop(lost: readonly number[], nowMs: number): void {
    const { epoch, ids } = this.#table;
    this.#begin('gathering', nowMs);
    for (const seat of this.#roster.of(ids)) {
      if (seat.edge === undefined) {
        this.#roster.tell(seat, { type: 'over', epoch, lost });
      }
    }
  }

  /** Goes on without a member, which is told why unless it knows. */
  #giveUp(seat: Seat<Address>, reason: string | undefined, nowMs: number): void {
    if (reason !== undefined) {
      this.#roster.tell(seat, { type: 'fenced', reason });
    }
    this.#roster.remove(seat);
    if (this.#stage.phase === 'running' && this.#table.ids.includes(seat.id)) {
      this.#stop([seat.id], nowMs);
    }
  }

  /** Gives up those whose connection has ended, and who are lost to others too or stay away. */
  #giveUpGone(nowMs: number): void {
    const { suspectMs = 1000 } = this.#options;
    for (const seat of this.#roster.all) {
      const isNewcomer = !this.#table.ids.includes(seat.id) && !this.#before.includes(seat.id);
      const mayReturn = seat.suspectedMs === undefined && !isNewcomer;
      const isGone = seat.connection === undefined;
      if (isGone && (!mayReturn || this.#deadlines.isPast(seat.goneMs + suspectMs, nowMs))) {
        this.#giveUp(seat, undefined, nowMs);
      }
    }
  }

  #gather(nowMs: number): void {
    const { min, max, settleMs = 1000, shortMs = 30_000 } = this.#options;
    const isFirst = this.#before.length === 0;
    if (this.#isAwaiting(nowMs)) {
      return;
    }
    if (!this.#roster.all.some((seat) => isReady(seat) && hasState(seat, this.#before))) {
      if (isFirst) {
        return;
      }
      this.end('nobody is left who has its state', nowMs);
      return;
    }
    const chosen = chooseMembers(this.#roster, this.#before, max);
    if (chosen.length < min) {
      this.#stage.shortSinceMs ??= nowMs;
      if (this.#deadlines.isPast(this.#stage.shortSinceMs + shortMs, nowMs)) {
        this.end(`for ${shortMs} ms it had ${chosen.length} members, of at least ${min}`, nowMs);
      }
    } else if (
      !isFirst ||
      chosen.length === max ||
      this.#deadlines.isPast(this.#stage.movedMs + settleMs, nowMs)
    ) {
      this.#grant(chosen, nowMs);
    }
  }

  /** Whether a member of the epoch before may still stop and say where. Who is late is given up. */
  #isAwaiting(nowMs: number): boolean {
    const { graceMs = DEFAULT_TIMEOUT_MS, suspectMs = 1000 } = this.#options;
    let isAwaiting = false;
    for (const seat of this.#roster.of(this.#before)) {
      const limitMs = seat.suspectedMs === undefined ? graceMs : suspectMs;
      const sinceMs = Math.max(seat.suspectedMs ?? 0, this.#stage.sinceMs);
      if (seat.edge === undefined && this.#deadlines.isPast(sinceMs + limitMs, nowMs)) {
        this.#giveUp(seat, `it did not stop within ${limitMs} ms`, nowMs);
      } else {
        isAwaiting ||= !isReady(seat);
      }
    }
    return isAwaiting;
  }

  #grant(ids: readonly number[], nowMs: number): void {
    this.#table = { epoch: ++this.#epoch, ids };
    this.#begin('forming', nowMs);
    const seats = this.#roster.of(ids);
    const table = tableOf(this.#epoch, seats, this.#before);
    for (const seat of seats) {
      seat.links = undefined;
      this.#roster.tell(seat, { type: 'table', ...table });
    }
  }

  #form(nowMs: number): void {
    const { linkMs = 5000 } = this.#options;
    const seats = this.#roster.of(this.#table.ids);
    const isLinked = (a: Seat<Address>, b: Seat<Address>) =>
      a === b || (a.links?.has(b.id) === true && b.links?.has(a.id) === true);
    const hasAll = (a: Seat<Address>) =>
      a.links !== undefined && seats.every((b) => isLinked(a, b));
    if (seats.length < this.#table.ids.length) {
      this.#begin('gathering', nowMs);
    } else if (seats.every(hasAll)) {
      this.#formed(seats, nowMs);
    } else if (this.#deadlines.isPast(this.#stage.movedMs + linkMs, nowMs)) {
      this.#begin('gathering', nowMs);
      for (const a of seats) {
        for (const b of seats.filter((other) => !isLinked(a, other))) {
          this.#roster.cut(a, b);
        }
        if (a.links === undefined) {
          this.#giveUp(a, `it did not link to the others within ${linkMs} ms`, nowMs);
        }
      }
    }
  }

  #formed(members: readonly Seat<Address>[], nowMs: number): void {
    const { epoch, ids } = this.#table;
    this.#begin('running', nowMs);
    for (const seat of members) {
      seat.edge = undefined;
      seat.formed = epoch;
      seat.suspectedMs = undefined;
      this.#roster.tell(seat, { type: 'formed', epoch });
    }
    for (const seat of this.#roster.all) {
      const isLeft = this.#before.includes(seat.id) || ids.some((id) => seat.cut.has(id));
      if (isLeft && !ids.includes(seat.id)) {
        this.#giveUp(seat, `it has no path to some of the members ${ids.join(', ')}`, nowMs);
      }
    }
    this.#before = ids;
  }

  /** Asks those at work to stop at an edge, where newcomers wait for whom there is room. */
  #callToEdge(nowMs: number): void {
    const { max, settleMs = 1000 } = this.#options;
    const { epoch, ids } = this.#table;
    const ready = this.#roster.all.filter(isReady);
    if (this.#stage.isDueTold || ids.length >= max || ready.length === 0) {
      return;
    }
    if (
      this.#deadlines.isPast(Math.min(...ready.map(({ edge }) => edge!.sinceMs)) + settleMs, nowMs)
    ) {
      this.#stage.isDueTold = true;
      for (const seat of this.#roster.of(ids)) {
        this.#roster.tell(seat, { type: 'due', epoch });
      }
    }
  }

  /** Takes over a job that had another coordinator. Who is at work there goes on, where all are. */
  #recover(nowMs: number): void {
    const { begin, recoverMs = 12_000, shortMs = 30_000 } = this.#options;
    const lateMs = this.#stage.sinceMs + recoverMs;
    const isLate = this.#deadlines.isPast(lateMs, nowMs);
    const found = this.#recovery.agreed({ isAdopting: begin === 'adopt', isLate });
    if (found === undefined) {
      if (
        this.#recovery.connections.length > 0 &&
        this.#deadlines.isPast(lateMs + shortMs, nowMs)
      ) {
        this.end(this.#recovery.shortage, nowMs);
      }
      return;
    }
    const { epoch, members, present } = found;
    this.#table = { epoch, ids: members };
    this.#before = members;
    this.#epoch = found.maxKnown + LEFT_OUT;
    this.#roster.nextId = this.#epoch;
    this.#begin('running', nowMs);
    for (const [connection, { last, address }] of found.claims) {
      if (last !== undefined && present.has(last.id)) {
        this.#roster.admit(connection, address, { epoch: this.#epoch, id: last.id });
      }
    }
    if (!found.isRunning) {
      const missing = members.filter((id) => !present.has(id));
      this.#stop(missing, nowMs);
    }
    for (const [connection, here] of found.claims) {
      if (this.#roster.at(connection) === undefined) {
        this.#onHere(connection, here, nowMs);
      }
    }
  }

  #begin(phase: Stage['phase'], nowMs: number): void {
    this.#stage = { phase, sinceMs: nowMs, movedMs: nowMs };
  }
}
