// What it is time for in each phase of an elastic job.
//
// Note [the last state]
// Where nobody else is ready who has the state of the job, the others can't go on without a member
// that may have it, and lose nothing by waiting. So its silence, or the end of its connection, does
// not cost it its place at once: it has the time in which it may come back.

import { DEFAULT_TIMEOUT_MS } from '../endpoint/endpoint.js';
import type { JobState } from './job-state.js';
import { chooseMembers, hasState, isReady, type Seat } from './roster.js';

/** Gives up those whose connection has ended, and who are lost to others too or stay away. */
export function giveUpGone<Address>(job: JobState<Address>, nowMs: number): void {
  const { suspectMs = 1000, recoverMs = 12_000 } = job.options;
  for (const seat of job.roster.all.filter(({ connection }) => connection === undefined)) {
    const isMember = job.isMember(seat) || job.before.includes(seat.id);
    const mayReturn = seat.suspectedMs === undefined && isMember;
    const waitMs = mayReturn ? suspectMs : 0;
    const limitMs = isLast(job, seat) ? Math.max(waitMs, recoverMs) : waitMs;
    if (!job.deadlines.isPast(seat.goneMs + limitMs, nowMs)) {
      continue;
    }
    if (job.stage.phase === 'running' && isMember) {
      job.stop([seat.id], nowMs); // where the others stand decides whether it is needed
    } else {
      job.giveUp(seat, { how: 'lost', reason: 'its connection has ended' }, nowMs);
    }
  }
}

/** Gathering: grants the next epoch when all have stopped who may be in it. */
export function gather<Address>(job: JobState<Address>, nowMs: number): void {
  const { min, max, settleMs = 1000, shortMs = 30_000 } = job.options;
  const isFirst = job.before.length === 0;
  if (isAwaiting(job, nowMs)) {
    return;
  }
  const end = (reason: string) => job.end(reason, job.roster.connections, nowMs);
  if (!hasHolder(job)) {
    if (!isFirst) {
      const isDone = job.lastHow === 'left';
      end(isDone ? 'those who had its state have left' : 'nobody is left who has its state');
    }
    return;
  }
  let chosen = chooseMembers(job.roster, job.before, max);
  if (chosen.length < min) {
    job.shortSinceMs ??= nowMs;
    if (job.deadlines.isPast(job.shortSinceMs + shortMs, nowMs)) {
      end(`for ${shortMs} ms it had ${chosen.length} members, of at least ${min}`);
      return;
    }
    // Paths heal, so those who had none to each other try once more.
    job.roster.forgetCuts();
    chosen = chooseMembers(job.roster, job.before, max);
  }
  if (chosen.length < min) {
    return;
  }
  if (
    !isFirst ||
    chosen.length === max ||
    job.deadlines.isPast(job.stage.movedMs + settleMs, nowMs)
  ) {
    job.grant(chosen, nowMs);
  }
}

/** Whether a member of the epoch before may still stop and say where. Who is late is given up. */
function isAwaiting<Address>(job: JobState<Address>, nowMs: number): boolean {
  let isAwaited = false;
  for (const seat of job.roster.of(job.before)) {
    const limitMs = patienceOf(job, seat);
    const lostMs = lostMsOf(seat);
    if (seat.edge === undefined && isOver(job, seat, nowMs)) {
      const reason =
        lostMs === undefined
          ? `it did not stop within ${limitMs} ms`
          : 'it is stopped or cut off, and showed no sign of life';
      job.giveUp(seat, { how: 'fenced', reason }, nowMs);
    } else {
      isAwaited ||= !isReady(seat);
    }
  }
  return isAwaited;
}

/** The time since which a member shows no sign of life; undefined where it does. */
function lostMsOf({ suspectedMs, silentMs }: Seat<unknown>): number | undefined {
  return suspectedMs ?? silentMs;
}

/** The time for which a member is waited for that is lost, or lives and does not answer. */
function patienceOf<Address>(job: JobState<Address>, seat: Seat<Address>): number {
  const { graceMs = DEFAULT_TIMEOUT_MS, suspectMs = 1000, shortMs = 30_000 } = job.options;
  if (lostMsOf(seat) === undefined) {
    return graceMs;
  }
  return isLast(job, seat) ? Math.max(suspectMs, shortMs) : suspectMs;
}

function isOver<Address>(job: JobState<Address>, seat: Seat<Address>, nowMs: number): boolean {
  const sinceMs = Math.max(lostMsOf(seat) ?? 0, job.stage.sinceMs);
  return job.deadlines.isPast(sinceMs + patienceOf(job, seat), nowMs);
}

/** Whether somebody is ready who has the state of the job, apart from those. */
function hasHolder<Address>(
  { roster, before }: JobState<Address>,
  apart: readonly Seat<Address>[] = [],
): boolean {
  return roster.all.some(
    (seat) => isReady(seat) && hasState(seat, before) && !apart.includes(seat),
  );
}

/** Whether a member may have the job's state, and nobody else has. See Note [the last state]. */
function isLast<Address>(
  job: JobState<Address>,
  seat: Seat<Address>,
  apart: readonly Seat<Address>[] = [seat],
): boolean {
  const mayHave = job.before.includes(seat.id) && seat.edge?.hasState !== false;
  return mayHave && job.stage.phase !== 'running' && !hasHolder(job, apart);
}

/** Forming: lets all begin when they are linked; who can't link is cut from the others. */
export function form<Address>(job: JobState<Address>, nowMs: number): void {
  const { linkMs = 5000 } = job.options;
  const seats = job.roster.of(job.table.members);
  const isLinked = (a: Seat<Address>, b: Seat<Address>) =>
    a === b || (a.links?.has(b.id) === true && b.links?.has(a.id) === true);
  const hasAll = (a: Seat<Address>) => a.links !== undefined && seats.every((b) => isLinked(a, b));
  if (seats.length < job.table.members.length) {
    job.gather(nowMs);
  } else if (seats.every(hasAll)) {
    job.form(nowMs);
  } else if (job.deadlines.isPast(job.stage.movedMs + linkMs, nowMs)) {
    const mute = seats.filter(({ links }) => links === undefined);
    if (mute.some((a) => isLast(job, a, mute) && !isOver(job, a, nowMs))) {
      return;
    }
    job.gather(nowMs);
    const reason = `it did not link to the others within ${linkMs} ms`;
    for (const a of seats) {
      for (const b of seats.filter((other) => !isLinked(a, other))) {
        job.roster.cut(a, b);
      }
    }
    for (const a of mute) {
      job.giveUp(a, { how: 'fenced', reason }, nowMs);
    }
  }
}

/** Running: asks those at work to stop at an edge, where newcomers wait for whom there is room. */
export function callToEdge<Address>(job: JobState<Address>, nowMs: number): void {
  const { max, settleMs = 1000 } = job.options;
  const { epoch, members } = job.table;
  const ready = job.roster.all.filter(isReady);
  if (job.stage.isDueTold || members.length >= max || ready.length === 0) {
    return;
  }
  const firstMs = Math.min(...ready.map(({ edge }) => edge!.sinceMs));
  if (job.deadlines.isPast(firstMs + settleMs, nowMs)) {
    job.stage.isDueTold = true;
    for (const seat of job.roster.of(members)) {
      job.roster.tell(seat, { type: 'due', epoch });
    }
  }
}
