// The inside of a rank's thread: it takes its place from the command, works, and leaves when it is
// told to.

import { parentPort, workerData } from 'node:worker_threads';
import type { ShmRankHandle } from '@shardweave/collectives/shm';
import type { EmitRankEvent } from '../rank/events.js';
import type { PreparedRun } from '../run-config.js';
import type { ElasticThreadPlace, FromRank, RankWork, ToRank } from './messages.js';
import { describeFailure } from './rank-failure.js';

/** The data by which main.ts recognizes a rank's thread. */
export interface RankThreadData {
  readonly rankThread: {
    readonly config: PreparedRun;
    readonly place: ShmRankHandle | ElasticThreadPlace;
  };
}

export function isRankThread(): boolean {
  return (workerData as Partial<RankThreadData> | null)?.rankThread !== undefined;
}

/** Serves the command. The thread ends with its work, or the command ends it. */
export async function serveRankThread(
  work: RankWork<ShmRankHandle | ElasticThreadPlace>,
): Promise<void> {
  const port = parentPort!;
  const { config, place } = (workerData as RankThreadData).rankThread;
  const stop = new AbortController();
  const wrapUp = new AbortController();
  const tell = (message: FromRank) => port.postMessage(message);
  port.on('message', (message: ToRank) => {
    if (message.type === 'stop') {
      stop.abort();
    }
    if (message.type === 'wrap-up') {
      wrapUp.abort();
    }
  });
  try {
    const emit: EmitRankEvent = (event) => tell({ type: 'event', event });
    await work(place, { config, emit, signal: stop.signal, wrapUp: wrapUp.signal });
    tell({ type: 'done' });
  } catch (error) {
    if (!stop.signal.aborted) {
      tell({ type: 'failed', failure: describeFailure(error) });
    }
  }
  port.close(); // nothing holds the thread any more
}
