// Runs a job with all its ranks in this process, each as a task.

import type { EmitRankEvent } from '../rank/events.js';
import { describeFailure } from './rank-failure.js';
import { deferred, type RankHost, type RankListener, watchRanks } from './watch-ranks.js';

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
  await watchRanks(options, (rank, listener) => startTask(rank, listener, options), options);
}

/** A task can't be killed: one that does not end is left to itself. */
function startTask(
  rank: number,
  { onMessage, onEnd }: RankListener,
  { work, signal }: RunInMemoryOptions,
): RankHost {
  const stop = new AbortController();
  const exited = deferred();
  work(rank, (event) => onMessage({ type: 'event', event }), stop.signal)
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
