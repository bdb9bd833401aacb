// Runs this process's rank of a job that mpirun or srun has started: every process runs the
// command, and rank 0 is the one that shows and writes.

import { setTimeout as delay } from 'node:timers/promises';
import type { ProcessGroup } from '@shardweave/collectives';
import { ToldError, UsageError } from '../errors.js';
import type { EmitRankEvent } from '../rank/events.js';
import type { RunConfig } from '../run-config.js';
import { MpiReporter, receiveReports } from './mpi-reports.js';
import { describeFailure } from './rank-failure.js';
import { startTask } from './run-in-memory.js';
import {
  deferred,
  type RankHost,
  type RankListener,
  type StartRank,
  watchRanks,
} from './watch-ranks.js';

export interface RunMpiOptions {
  /** Called on rank 0 alone, with the events of all ranks. */
  readonly onEvent: EmitRankEvent;
  readonly signal: AbortSignal;
  /** This rank's work. It ends soon, with an error or without, once `signal` is aborted. */
  readonly work: (world: ProcessGroup, emit: EmitRankEvent, signal: AbortSignal) => Promise<void>;
}

/**
 * The time for rank 0 to show what failed and end the job; a rank that is still there after it
 * gives up.
 */
const LEAVE_MS = 5000;

/**
 * Resolves when all ranks have done their work. Rejects on rank 0 with the failure that began it,
 * and on the others with an error that rank 0 has been told.
 */
export async function runMpi(config: RunConfig, options: RunMpiOptions): Promise<void> {
  options.signal.throwIfAborted();
  const { reports, world } = await connect(config.ranks);
  if (world.rank === 0) {
    await leadRanks(config, options, reports, world);
  } else {
    await followRankZero(options, reports, world);
  }
}

/** MPI starts and ends once in a process: the group that is closed last ends it. */
async function connect(worldSize: number) {
  const { connectMpi } = await import('@shardweave/collectives/mpi');
  try {
    const reports = await connectMpi({ worldSize });
    return { reports, world: await connectMpi({ worldSize, finalize: false }) };
  } catch (cause) {
    throw new UsageError(`--transport mpi: ${(cause as Error).message}`, { cause });
  }
}

async function leadRanks(
  config: RunConfig,
  { work, onEvent, signal }: RunMpiOptions,
  reports: ProcessGroup,
  world: ProcessGroup,
): Promise<void> {
  const start: StartRank = (rank, listener) =>
    rank === 0
      ? startTask((emit, stop) => work(world, emit, stop), listener, signal)
      : hearRank(rank, listener, reports);
  await watchRanks(config, start, { onEvent, signal });
  await reports.close();
}

/**
 * A rank in another process, which mpirun has started and ends. Once the ranks are to stop, nobody
 * waits for its report: one that was killed sends none, and mpirun soon kills rank 0, too.
 */
function hearRank(
  rank: number,
  { onMessage, onEnd }: RankListener,
  reports: ProcessGroup,
): RankHost {
  const exited = deferred();
  receiveReports(reports, rank, onMessage)
    .catch((error: unknown) => onEnd({ failure: describeFailure(error) }))
    .finally(exited.resolve);
  return {
    exited: exited.promise,
    tell: ({ type }) => type === 'stop' && exited.resolve(),
    kill: exited.resolve,
  };
}

async function followRankZero(
  { work, signal }: RunMpiOptions,
  reports: ProcessGroup,
  world: ProcessGroup,
): Promise<void> {
  const reporter = new MpiReporter(reports);
  try {
    await work(world, (event) => reporter.send({ type: 'event', event }), signal);
    reporter.send({ type: 'done' });
    await reporter.flush();
    await reports.close();
  } catch (error) {
    signal.throwIfAborted();
    const failure = describeFailure(error);
    reporter.send({ type: 'failed', failure });
    const isTold = await reporter.flush().then(
      () => true,
      () => false,
    );
    if (!isTold) {
      throw error;
    }
    await leaveLast(signal);
    throw new ToldError(failure);
  }
}

/**
 * Waits for rank 0. mpirun ends all ranks with the first one that fails, and that has to be rank 0,
 * after it has shown why.
 */
function leaveLast(signal: AbortSignal): Promise<void> {
  const ended = new Promise<void>((resolve) => {
    signal.addEventListener('abort', () => resolve(), { once: true });
  });
  return Promise.race([ended, delay(LEAVE_MS)]);
}
