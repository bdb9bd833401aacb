// Runs a job with all its ranks in this process, each as a task.

import type { EmitRankEvent } from '../rank/events.js';
import { describeFailure } from './rank-failure.js';
import {
  deferred,
  type RankHost,
  type RankListener,
  type StartRank,
  watchRanks,
} from './watch-ranks.js';

export interface RunInMemoryOptions {
  readonly ranks: number;
  /**
   * The work of one rank, which must end soon, with an error or without, once `signal` is aborted.
   */
  readonly work: (rank: number, emit: EmitRankEvent, signal: AbortSignal) => Promise<void>;
  readonly onEvent: EmitRankEvent;
  /** Ends the job; its reason is what `runInMemory` rejects with. */
  readonly signal: AbortSignal;
}

/** See `watchRanks`. */
export async function runInMemory(options: RunInMemoryOptions): Promise<void> {
  const { work, signal } = options;
  const start: StartRank = (rank, listener) =>
    startTask((emit, stop) => work(rank, emit, stop), listener, signal);
  await watchRanks(options, start, options);
}

/** Starts a rank in this process. It can't be killed: if it does not end, it is left to itself. */
export function startTask(
  work: (emit: EmitRankEvent, signal: AbortSignal) => Promise<void>,
  { onMessage, onEnd }: RankListener,
  signal: AbortSignal,
): RankHost {
  const stop = new AbortController();
  const exited = deferred();
  work((event) => onMessage({ type: 'event', event }), stop.signal)
    .then(
      () => onMessage({ type: 'done' }),
      (error: unknown) => onEnd({ failure: describeFailure(error) }),
    )
    .finally(exited.resolve);
  return {
    exited: exited.promise,
    tell: ({ type }) => type === 'stop' && stop.abort(signal.reason),
    kill: exited.resolve,
  };
}
