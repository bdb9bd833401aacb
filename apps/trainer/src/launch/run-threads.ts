// Runs a job with one thread of this process per rank; the ranks share memory.

import { type TransferListItem, Worker } from 'node:worker_threads';
import { createShmJob, type ShmRankHandle } from '@shardweave/collectives/shm';
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
    (rank, listener) => startThread(options.entry, config, handles[rank]!, listener),
    options,
  );
}

function startThread(
  entry: string,
  config: PreparedRun,
  handle: ShmRankHandle,
  listener: RankListener,
): RankHost {
  const workerData: RankThreadData = { rankThread: { config, handle } };
  const transferList = handle.ports as unknown as TransferListItem[]; // the page's type, by name
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
