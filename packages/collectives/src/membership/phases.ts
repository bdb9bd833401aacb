// What it is time for in each phase of an elastic job.

import { DEFAULT_TIMEOUT_MS } from '../endpoint/endpoint.js';
import type { JobState } from './job-state.js';
import { chooseMembers, hasState, isReady, type Seat } from './roster.js';

/** Gives up those whose connection has ended, and who are lost to others too or stay away. */
export function giveUpGone<Address>(job: JobState<Address>, nowMs: number): void {
  const { suspectMs = 1000 } = job.options;
  for (const seat of job.roster.all) {
    const isNewcomer = !job.isMember(seat) && !job.before.includes(seat.id);
    const mayReturn = seat.suspectedMs === undefined && !isNewcomer;
    const isGone = seat.connection === undefined;
    if (isGone && (!mayReturn || job.deadlines.isPast(seat.goneMs + suspectMs, nowMs))) {
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
  if (!job.roster.all.some((seat) => isReady(seat) && hasState(seat, job.before))) {
    if (!isFirst) {
      end('nobody is left who has its state');
    }
    return;
  }
  const chosen = chooseMembers(job.roster, job.before, max);
  if (chosen.length < min) {
    job.stage.shortSinceMs ??= nowMs;
    if (job.deadlines.isPast(job.stage.shortSinceMs + shortMs, nowMs)) {
      end(`for ${shortMs} ms it had ${chosen.length} members, of at least ${min}`);
    }
  } else if (
    !isFirst ||
    chosen.length === max ||
    job.deadlines.isPast(job.stage.movedMs + settleMs, nowMs)
  ) {
    job.grant(chosen, nowMs);
  }
}

/** Whether a member of the epoch before may still stop and say where. Who is late is given up. */
function isAwaiting<Address>(job: JobState<Address>, nowMs: number): boolean {
  const { graceMs = DEFAULT_TIMEOUT_MS, suspectMs = 1000 } = job.options;
  let isAwaited = false;
  for (const seat of job.roster.of(job.before)) {
    const lostMs = seat.suspectedMs ?? seat.silentMs;
    const limitMs = lostMs === undefined ? graceMs : suspectMs;
    const sinceMs = Math.max(lostMs ?? 0, job.stage.sinceMs);
    if (seat.edge === undefined && job.deadlines.isPast(sinceMs + limitMs, nowMs)) {
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
    job.gather(nowMs);
    const reason = `it did not link to the others within ${linkMs} ms`;
    for (const a of seats) {
      for (const b of seats.filter((other) => !isLinked(a, other))) {
        job.roster.cut(a, b);
      }
      if (a.links === undefined) {
        job.giveUp(a, { how: 'fenced', reason }, nowMs);
      }
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
