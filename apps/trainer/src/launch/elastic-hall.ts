// The way by which the ranks of a job whose ranks change come to it, and its coordinator. Here are
// threads of the command, which share memory, and to which nobody joins from elsewhere;
// run-elastic.ts has processes.

import { type CoordinatorChange, ShmElasticJob } from '@shardweave/collectives/elastic';
import type { PreparedRun } from '../run-config.js';
import { type RunThreadsOptions, startThread } from './run-threads.js';
import type { RankHost, RankListener } from './watch-ranks.js';

/** The way by which ranks come to a job, and its coordinator. */
export interface ElasticHall {
  /** Starts a rank, with its number among the ranks that the command has started. */
  start(localRank: number, isFirst: boolean, listener: RankListener): RankHost;
  /** Ends the job for all who are left. */
  close(why: string): Promise<void>;
}

export function openThreads(
  config: PreparedRun,
  { entry }: Pick<RunThreadsOptions, 'entry'>,
  onChange: (change: CoordinatorChange) => void,
): ElasticHall {
  const job = new ShmElasticJob({ min: config.minRanks!, max: config.maxRanks!, onChange });
  return {
    start: (localRank, isFirst, listener) => {
      const member = job.invite();
      const place = { member, localRank, isFirst };
      return startThread(entry, { config, place, ports: member.ports }, listener);
    },
    close: async (why) => job.close(why),
  };
}
