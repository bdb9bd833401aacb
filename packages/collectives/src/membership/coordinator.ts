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

import type { CoordinatorOptions, CoordinatorStatus, Departure } from './coordinator-options.js';
import { JobState, type Stage } from './job-state.js';
import type { LastEpoch, Said } from './messages.js';
import { callToEdge, form, gather, giveUpGone } from './phases.js';
import { Recovery } from './recovery.js';
import { type Seat, tableOf, type Word } from './roster.js';

export class Coordinator<Address> {
  readonly #job: JobState<Address>;
  readonly #recovery = new Recovery<Address>();

  constructor(options: CoordinatorOptions, nowMs: number) {
    this.#job = new JobState(options, nowMs);
  }

  /** The time by which `tick` has to be called. */
  get nextTickMs(): number {
    return this.#job.deadlines.nextMs;
  }

  get status(): CoordinatorStatus {
    return this.#job.status;
  }

  /** Who has come and gone since the last call. */
  takeChanges(): { readonly came: readonly number[]; readonly gone: readonly Departure[] } {
    return this.#job.roster.takeChanges();
  }

  /** Takes what was said over a connection, whose number no other connection has or had. */
  hear(from: number, said: Said<Address>, nowMs: number): readonly Word<Address>[] {
    const seat = this.#job.roster.at(from);
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
    const seat = this.#job.roster.at(from);
    if (seat !== undefined) {
      this.#job.roster.gone(seat, nowMs);
    }
    return this.tick(nowMs);
  }

  /** Goes on without the member of a connection that has ended, over which nobody comes again. */
  lose(from: number, reason: string, nowMs: number): readonly Word<Address>[] {
    const seat = this.#job.roster.at(from);
    if (seat !== undefined) {
      this.#job.giveUp(seat, { how: 'lost', reason }, nowMs);
    }
    return this.tick(nowMs);
  }

  /**
   * Notes that a member shows no signs of life, or shows them again. It counts where the member is
   * awaited between two epochs: those at work judge one another.
   */
  silence(id: number, isSilent: boolean, nowMs: number): readonly Word<Address>[] {
    const seat = this.#job.roster.get(id);
    if (seat !== undefined) {
      seat.silentMs = isSilent ? nowMs : undefined;
    }
    return this.tick(nowMs);
  }

  /** Does what it is time for. */
  tick(nowMs: number): readonly Word<Address>[] {
    const job = this.#job;
    let stage: Stage;
    do {
      stage = job.stage;
      job.deadlines.clear();
      if (stage.phase !== 'ended') {
        giveUpGone(job, nowMs);
      }
      if (job.stage.phase === 'recovering') {
        this.#recover(nowMs);
      } else if (job.stage.phase === 'gathering') {
        gather(job, nowMs);
      } else if (job.stage.phase === 'forming') {
        form(job, nowMs);
      } else if (job.stage.phase === 'running') {
        callToEdge(job, nowMs);
      }
    } while (job.stage !== stage);
    return job.roster.takeWords();
  }

  /** Ends the job for all who are there. They are told with the words of the next tick. */
  end(reason: string, nowMs: number): void {
    const connections = [...this.#job.roster.connections, ...this.#recovery.connections];
    this.#job.end(reason, connections, nowMs);
  }

  #onHere(
    from: number,
    here: Extract<Said<Address>, { readonly type: 'here' }>,
    nowMs: number,
  ): void {
    const { last, address } = here;
    const { roster, stage, epoch } = this.#job;
    if (stage.phase === 'ended') {
      roster.tellOver(from, { type: 'ended', reason: 'it has ended' });
    } else if (stage.phase === 'recovering') {
      this.#recovery.hear(from, here);
    } else if (last === undefined) {
      roster.admit(from, address, { epoch });
    } else if (roster.get(last.id) === undefined) {
      const reason = `the job has gone on without member ${last.id}`;
      roster.tellOver(from, { type: 'fenced', reason });
    } else {
      this.#remind(roster.admit(from, address, { epoch, id: last.id }), last, nowMs);
    }
  }

  /** Tells a member that comes again what it may have missed. */
  #remind(seat: Seat<Address>, last: LastEpoch, nowMs: number): void {
    const { roster, stage, table, before } = this.#job;
    const { epoch, members } = table;
    const { phase, isDueTold, lost } = stage;
    if (phase !== 'running' && !last.isRunning) {
      seat.formed = 0; // it has not heard that word, and will not
    }
    if (phase === 'gathering' && last.isRunning) {
      roster.tell(seat, { type: 'over', epoch, lost });
    } else if (phase === 'forming' && members.includes(seat.id)) {
      roster.tell(seat, { type: 'table', ...tableOf(epoch, roster.of(members), before) });
      stage.movedMs = nowMs;
    } else if (phase === 'running' && members.includes(seat.id) && !last.isRunning) {
      roster.tell(seat, { type: 'formed', epoch });
    }
    if (phase === 'running' && isDueTold) {
      roster.tell(seat, { type: 'due', epoch });
    }
  }

  #onSaid(
    seat: Seat<Address>,
    said: Exclude<Said<Address>, { readonly type: 'here' }>,
    nowMs: number,
  ): void {
    const job = this.#job;
    const { phase } = job.stage;
    const isMember = job.isMember(seat);
    const isOfTable = isMember && 'epoch' in said && said.epoch === job.table.epoch;
    if (said.type === 'leave') {
      job.giveUp(seat, { how: 'left', reason: 'it has left' }, nowMs);
    } else if (said.type === 'edge') {
      // A member that comes again repeats its edge, and may hear only then that it is to begin.
      if (said.epoch >= seat.formed && (phase !== 'forming' || !isMember)) {
        const { step, note, hasState } = said;
        seat.edge = { step, note, hasState, sinceMs: nowMs };
        job.stage.movedMs = nowMs;
        if (phase === 'running' && isMember) {
          job.stop([], nowMs);
        }
      }
    } else if (said.type === 'linked' && isOfTable && phase === 'forming') {
      if (said.peers.length > (seat.links?.size ?? -1)) {
        job.stage.movedMs = nowMs;
      }
      seat.links = new Set(said.peers);
    } else if (said.type === 'lost' && isOfTable && phase !== 'forming') {
      this.#suspect(seat, said.members, nowMs);
    }
  }

  /** Takes a member's word that it can't reach these. */
  #suspect(from: Seat<Address>, lost: readonly number[], nowMs: number): void {
    const job = this.#job;
    for (const seat of job.roster.of(lost)) {
      if (seat !== from && job.isMember(seat)) {
        seat.suspectedMs ??= nowMs;
        job.roster.cut(from, seat);
      }
    }
    if (job.stage.phase === 'running') {
      job.stop(lost, nowMs);
    }
  }

  /** Goes on with a job that had another coordinator, once enough of it have come. */
  #recover(nowMs: number): void {
    const { begin, recoverMs = 12_000, shortMs = 30_000 } = this.#job.options;
    const { deadlines, stage, roster } = this.#job;
    const lateMs = stage.sinceMs + recoverMs;
    const isLate = deadlines.isPast(lateMs, nowMs);
    const found = this.#recovery.agreed({ isAdopting: begin === 'adopt', isLate });
    if (found === undefined) {
      const isAnybodyThere = this.#recovery.connections.length > 0;
      if (isAnybodyThere && deadlines.isPast(lateMs + shortMs, nowMs)) {
        this.end(this.#recovery.shortage, nowMs);
      }
      return;
    }
    this.#job.adopt(found, nowMs);
    for (const [connection, here] of found.claims) {
      if (roster.at(connection) === undefined) {
        this.#onHere(connection, here, nowMs);
      }
    }
  }
}
