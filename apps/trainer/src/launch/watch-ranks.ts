// Watches the ranks that a command has started, as processes, threads or tasks, and leaves none
// behind.

import { setTimeout as delay } from 'node:timers/promises';
import type { RankEvent } from '../rank/events.js';
import type { RunConfig } from '../run-config.js';
import type { FromRank, ToRank } from './messages.js';
import { endEvent, isLostPeer, type RankEnd, rootCause } from './rank-failure.js';

export interface WatchOptions {
  readonly onEvent: (event: RankEvent) => void;
  /** Ends the job; its reason is what `watchRanks` rejects with. */
  readonly signal: AbortSignal;
  /** Ends the job after the present step, with a save. */
  readonly wrapUp?: AbortSignal | undefined;
}

/** Receives what a rank's host tells. */
export interface RankListener {
  onMessage(message: FromRank): void;
  /**
   * Called when the rank ended or could not be started. Only the first call counts, and none after
   * 'done'.
   */
  onEnd(how: Omit<RankEnd, 'rank' | 'step'>): void;
}

/** A rank that has been started. */
export interface RankHost {
  readonly exited: Promise<void>;
  tell(message: ToRank): void;
  /** Ends the rank at once, whatever it does. */
  kill(): void;
}

export type StartRank = (rank: number, listener: RankListener) => RankHost;

/**
 * Ranks that lose a peer report within moments of its end; this is the time to wait for all before
 * blaming one.
 */
const GATHER_FAILURES_MS = 400;
/**
 * The longest time after that for which a lost peer's own end is awaited; the whole must stay
 * within ten seconds.
 */
const CAUSE_MS = 3000;
/**
 * The time in which ranks have to leave by themselves after that; the whole must stay within ten
 * seconds.
 */
export const STOP_MS = 3000;
/** The time in which a rank has to leave that has reported 'done'. */
export const DONE_MS = 10_000;

/**
 * Resolves when every rank has done its work and all are gone. Rejects, again with all of them
 * gone, with a RankFailedError (or UsageError) for the rank that began it, or with the signal's
 * reason.
 */
export async function watchRanks(
  { ranks: numRanks }: Pick<RunConfig, 'ranks'>,
  start: StartRank,
  options: WatchOptions,
): Promise<void> {
  options.signal.throwIfAborted(); // else nobody would hear that it is
  const progress = { step: 0, isEnding: false };
  const onEvent = (event: RankEvent) => {
    if (event.type === 'step') {
      progress.step = event.metrics.step;
    }
    options.onEvent(event);
  };
  const ranks = Array.from({ length: numRanks }, (_, rank) =>
    watchRank(rank, start, { onEvent, progress }),
  );
  const stopped = new Promise<never>((_, reject) => {
    options.signal.addEventListener('abort', () => reject(options.signal.reason), { once: true });
  });
  const firstFailure = Promise.race(ranks.map(({ failed }) => failed));
  const allDone = Promise.all(ranks.map((rank) => rank.done));
  const hosts = ranks.map(({ host }) => host);
  const wrapUp = () => {
    for (const host of hosts) {
      host.tell({ type: 'wrap-up' });
    }
  };
  options.wrapUp?.addEventListener('abort', wrapUp, { once: true });
  if (options.wrapUp?.aborted) {
    wrapUp();
  }
  try {
    const outcome = await Promise.race([
      stopped,
      allDone.then(() => 'done' as const),
      firstFailure.then(() => 'failed' as const),
    ]);
    if (outcome === 'failed') {
      await Promise.race([gatherFailures(ranks), stopped]);
      const ends = ranks.flatMap((rank) => rank.end() ?? []);
      throw rootCause(ends, numRanks);
    }
    await endAll(hosts, DONE_MS);
  } finally {
    progress.isEnding = true;
    options.wrapUp?.removeEventListener('abort', wrapUp);
    for (const host of hosts) {
      host.tell({ type: 'stop' });
    }
    await endAll(hosts, STOP_MS);
  }
}

interface JobProgress {
  /** The last step that the job finished. */
  readonly step: number;
  /** Whether the ranks that leave from now on have been told to. */
  readonly isEnding: boolean;
}

export interface WatchedRank {
  readonly host: RankHost;
  /** Resolves when the rank has reported that its work is done. */
  readonly done: Promise<void>;
  /** Resolves with how it failed or left, where it did so before it was done. */
  readonly failed: Promise<RankEnd>;
  /** How it failed, if it did. */
  end(): RankEnd | undefined;
}

/** Starts a rank, and follows it to its end. */
export function watchRank(
  rank: number,
  start: StartRank,
  { onEvent, progress }: { onEvent(event: RankEvent): void; readonly progress: JobProgress },
): WatchedRank {
  const done = deferred();
  const failed = deferred<RankEnd>();
  let isDone = false;
  let end: RankEnd | undefined;
  const onEnd: RankListener['onEnd'] = (how) => {
    if (isDone || end !== undefined) {
      return;
    }
    end = { rank, step: progress.step, ...how };
    onEvent(endEvent(end, progress));
    failed.resolve(end);
  };
  const onMessage = (message: FromRank) => {
    if (message.type === 'event') {
      onEvent(message.event);
    } else if (message.type === 'failed') {
      onEnd({ failure: message.failure });
    } else {
      isDone = true;
      onEvent({ type: 'end', rank, end: 'done' });
      done.resolve();
    }
  };
  const host = start(rank, { onMessage, onEnd });
  return { host, done: done.promise, failed: failed.promise, end: () => end };
}

/**
 * Waits for other failures of the same cause. Where all that was reported so far is that a peer is
 * lost, the cause itself is still to come: a killed process may take some time to be gone.
 */
async function gatherFailures(ranks: readonly WatchedRank[]): Promise<void> {
  const ends = ranks.map(({ failed }) => failed);
  await orAll(ends, GATHER_FAILURES_MS);
  const cause = new Promise<void>((resolve) => {
    for (const end of ends) {
      end.then((how) => isLostPeer(how) || resolve());
    }
  });
  await Promise.race([cause, orAll(ends, CAUSE_MS)]);
}

/** Waits for all of them, but no longer than that. */
async function orAll(ends: readonly Promise<unknown>[], mostMs: number): Promise<void> {
  const over = new AbortController();
  const timer = delay(mostMs, undefined, { signal: over.signal }).catch(() => {});
  await Promise.race([Promise.all(ends), timer]);
  over.abort();
}

/** Waits for all ranks to leave, and kills those that take longer than `patienceMs`. */
export async function endAll(hosts: readonly RankHost[], patienceMs: number): Promise<void> {
  const timer = setTimeout(() => {
    for (const host of hosts) {
      host.kill();
    }
  }, patienceMs);
  await Promise.all(hosts.map((host) => host.exited));
  clearTimeout(timer);
}

export function deferred<T = void>(): {
  readonly promise: Promise<T>;
  readonly resolve: (value: T) => void;
} {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}
