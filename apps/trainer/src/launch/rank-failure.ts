// Finds the one failure that ended a job among those that followed from it.

import { DivergedError, RankFailedError, type TrainerError, UsageError } from '../errors.js';
import type { RankEvent } from '../rank/events.js';
import { fileLimitHint } from '../system-error.js';
import type { RankFailure } from './messages.js';

/** How a rank ended before its work was done. */
export interface RankEnd {
  readonly rank: number;
  /** What it reported itself, if it could. */
  readonly failure?: RankFailure | undefined;
  readonly exitCode?: number | null | undefined;
  readonly signal?: string | null | undefined;
  /** The last step that the job finished. */
  readonly step: number;
  /** The end of what it printed on stderr. */
  readonly stderr?: string | undefined;
}

/** Whether the rank only suffered from another's end. */
export function isLostPeer({ failure }: Pick<RankEnd, 'failure'>): boolean {
  return failure?.kind === 'peer-lost';
}

/**
 * `end` as the event that people who watch the run are told.
 * @param isEnding whether the job was ending before
 */
export function endEvent(
  end: Omit<RankEnd, 'step'>,
  { isEnding }: { readonly isEnding: boolean },
): RankEvent {
  const { rank, failure, signal, exitCode } = end;
  const reason = failure?.message ?? signal ?? `exit code ${exitCode ?? 'unknown'}`;
  const isVictim = isEnding || isLostPeer(end);
  const how = failure === undefined && signal ? 'killed' : 'failed';
  return { type: 'end', rank, end: isVictim ? 'stopped' : how, reason };
}

/** What a device that is lost takes with it, since its memory can't be read any more. */
const LOST_DEVICE =
  'Its memory is gone with it, so that a run goes on from its newest save (--save-every), by itself with --max-restarts.';

/** An error as a rank reports it. */
export function describeFailure(error: unknown): RankFailure {
  const message = error instanceof Error ? error.message : String(error);
  const hint = codeOf(error) === 'DEVICE_LOST' ? LOST_DEVICE : fileLimitHint(error);
  const words = hint === undefined ? message : `${message.replace(/\.?$/, '.')} ${hint}`;
  return { message: words, kind: kindOf(error) };
}

function kindOf(error: unknown): RankFailure['kind'] {
  if (error instanceof UsageError) {
    return 'usage';
  }
  if (error instanceof DivergedError) {
    return 'diverged';
  }
  return PEER_CODES.has(codeOf(error)) ? 'peer-lost' : 'failed';
}

function codeOf(error: unknown): unknown {
  return (error as { readonly code?: unknown } | null | undefined)?.code;
}

/** The codes of errors of collectives which mean that another rank is the cause. */
const PEER_CODES: ReadonlySet<unknown> = new Set(['PEER_LOST', 'ABORTED', 'CLOSED', 'PEER_FAILED']);

/**
 * The error to show for `ends`, which came within moments. A rank that was killed or crashed
 * silently counts before one that reported why it failed, and both count before those that only
 * lost a peer.
 */
export function rootCause(ends: readonly RankEnd[], worldSize: number): TrainerError {
  const rankOf = (end: RankEnd) => (end.failure === undefined ? 0 : isLostPeer(end) ? 2 : 1);
  const cause = [...ends].sort((a, b) => rankOf(a) - rankOf(b))[0]!;
  if (cause.failure?.kind === 'usage') {
    return new UsageError(cause.failure.message);
  }
  if (cause.failure?.kind === 'diverged') {
    return new DivergedError(cause.failure.message); // all ranks computed it, and none failed
  }
  const at = cause.step === 0 ? 'before the first step' : `after step ${cause.step}`;
  const who = `rank ${cause.rank} of ${worldSize}`;
  if (cause.failure !== undefined) {
    return new RankFailedError(cause.rank, `${who} failed ${at}: ${cause.failure.message}`);
  }
  const how = cause.signal
    ? `was killed by ${cause.signal}`
    : `ended with exit code ${cause.exitCode ?? 'unknown'}`;
  const said = cause.stderr?.trim();
  return new RankFailedError(
    cause.rank,
    `${who} ${how} ${at}; the other ranks were ended.${said ? ` Its last words:\n${said}` : ''}`,
  );
}
