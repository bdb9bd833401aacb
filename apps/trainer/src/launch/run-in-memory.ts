// Runs a job with all its ranks in this process, each as a task; they end together.

import { setMaxListeners } from 'node:events';
import type { RankEvent } from '../rank/events.js';
import {
  CAUSE_MS,
  describeFailure,
  endEvent,
  isLostPeer,
  type RankEnd,
  rootCause,
} from './rank-failure.js';

export interface RunInMemoryOptions {
  readonly ranks: number;
  /**
   * The work of one rank, which must end soon, with an error or without, once `signal` is aborted.
   */
  readonly work: (
    rank: number,
    emit: (event: RankEvent) => void,
    signal: AbortSignal,
  ) => Promise<void>;
  readonly onEvent: (event: RankEvent) => void;
  /** Ends the job; its reason is what `runInMemory` rejects with. */
  readonly signal: AbortSignal;
}

/** The time in which ranks have to end once one has failed, because a rank can't be killed here. */
const STOP_MS = 3000;

/** Resolves when every rank has done its work; rejects as runProcesses does. */
export async function runInMemory(options: RunInMemoryOptions): Promise<void> {
  const { signal } = options;
  signal.throwIfAborted();
  const stop = new AbortController();
  setMaxListeners(0, stop.signal); // every rank listens: more than ten are no leak
  const onAbort = () => stop.abort(signal.reason);
  signal.addEventListener('abort', onAbort, { once: true });
  const ends: RankEnd[] = [];
  let step = 0;
  const onEvent = (event: RankEvent) => {
    if (event.type === 'step') {
      step = event.metrics.step;
    }
    options.onEvent(event);
  };
  const tasks = Array.from({ length: options.ranks }, async (_, rank) => {
    try {
      await options.work(rank, onEvent, stop.signal);
      onEvent({ type: 'end', rank, end: 'done' });
    } catch (error) {
      const end = { rank, step, failure: describeFailure(error) };
      onEvent(endEvent(end, { isEnding: stop.signal.aborted }));
      ends.push(end);
      if (isLostPeer(end)) {
        // The rank that failed may report its own error after the ranks that it told.
        setTimeout(() => stop.abort(error), CAUSE_MS).unref();
      } else {
        stop.abort(error);
      }
    }
  });
  const stuck = new Promise<void>((resolve) => {
    stop.signal.addEventListener('abort', () => setTimeout(resolve, STOP_MS).unref(), {
      once: true,
    });
  });
  await Promise.race([Promise.all(tasks), stuck]);
  signal.removeEventListener('abort', onAbort);
  signal.throwIfAborted();
  if (ends.length > 0) {
    throw rootCause(ends, options.ranks);
  }
}
