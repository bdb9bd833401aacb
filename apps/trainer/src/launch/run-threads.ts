// Runs a job with one thread of this process per rank; the ranks share memory.

import { type TransferListItem, Worker } from 'node:worker_threads';
import { createShmJob } from '@shardweave/collectives/shm';
import type { PreparedRun } from '../run-config.js';
import type { FromRank } from './messages.js';
import type { RankThreadData } from './rank-thread.js';
import {
  deferred,
  type RankHost,
  type RankListener,
  type WatchOptions,
  watchRanks,
} from './watch-ranks.js';

export interface RunThreadsOptions extends WatchOptions {
  /** The script that a rank's thread runs; it calls serveRankThread. */
  readonly entry: string;
}

/** See `watchRanks`. */
export async function runThreads(config: PreparedRun, options: RunThreadsOptions): Promise<void> {
  const handles = createShmJob(config.ranks);
  await watchRanks(
    config,
    (rank, listener) => {
      const place = handles[rank]!;
      return startThread(options.entry, { config, place, ports: place.ports }, listener);
    },
    options,
  );
}

/** Starts a rank in a thread of its own, to which the ports of its place go. */
export function startThread(
  entry: string,
  {
    ports,
    ...rankThread
  }: RankThreadData['rankThread'] & { readonly ports: readonly MessagePort[] },
  listener: RankListener,
): RankHost {
  const workerData: RankThreadData = { rankThread };
  const transferList = ports as unknown as TransferListItem[]; // the page's type, by name
  const worker = new Worker(entry, { workerData, transferList, execArgv: [] });
  const exited = deferred();
  worker.on('message', (message: FromRank) => listener.onMessage(message));
  worker.on('error', (error) => {
    listener.onEnd({ failure: { message: error.message, kind: 'failed' } });
  });
  worker.on('exit', (exitCode) => {
    listener.onEnd({ exitCode });
    exited.resolve();
  });
  return {
    exited: exited.promise,
    tell: (message) => worker.postMessage(message),
    kill: () => void worker.terminate(),
  };
}
