// The inside of a rank's thread: it takes its place from the command, works, and leaves when it is
// told to.

import { parentPort, workerData } from 'node:worker_threads';
import type { ShmRankHandle } from '@shardweave/collectives/shm';
import type { EmitRankEvent } from '../rank/events.js';
import type { PreparedRun } from '../run-config.js';
import type { ElasticThreadPlace, FromRank, RankWork, ToRank } from './messages.js';
import { describeFailure } from './rank-failure.js';
import { RankWishes } from './rank-wishes.js';

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
  const wishes = new RankWishes();
  const tell = (message: FromRank) => port.postMessage(message);
  port.on('message', (message: ToRank) => {
    if (message.type !== 'start') {
      wishes.hear(message);
    }
  });
  try {
    const emit: EmitRankEvent = (event) => tell({ type: 'event', event });
    await work(place, { config, emit, ...wishes.asked });
    tell({ type: 'done' });
  } catch (error) {
    if (!wishes.asked.signal.aborted) {
      tell({ type: 'failed', failure: describeFailure(error) });
    }
  }
  port.close(); // nothing holds the thread any more
}
