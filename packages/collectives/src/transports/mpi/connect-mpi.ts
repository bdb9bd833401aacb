// Joins the ranks that mpirun or srun has started: rank and size are those of MPI. The
// communicators are duplicates of MPI_COMM_WORLD, so no message of this package meets another user
// of MPI in the process, nor an earlier group.

import { cpus } from 'node:os';
import { Endpoint } from '../../endpoint/endpoint.js';
import { JoinError } from '../../errors.js';
import {
  checkGroupOptions,
  createWorldGroup,
  type GroupOptions,
} from '../../group/group-options.js';
import type { ProcessGroup } from '../../group/process-group.js';
import { within } from '../../time-limit.js';
import { loadMpi } from './load-mpi.js';
import { MpiCollectives } from './mpi-collectives.js';
import { MpiEngine } from './mpi-engine.js';
import { COMMS_A_GROUP } from './mpi-group.js';
import type { HandleArray, MpiLibrary } from './mpi-library.js';
import { MpiTransport } from './mpi-transport.js';
import { Progress } from './progress.js';

/**
 * The options of a process that mpirun or srun has started and that joins its job by `connectMpi`.
 */
export interface ConnectMpiOptions extends GroupOptions {
  /** The file name or path of the MPI library. Default: it is searched for. */
  readonly library?: string;
  /**
   * The world size that is expected, because a program started without mpirun is a world of 1.
   * Default: any.
   */
  readonly worldSize?: number;
  /** The milliseconds in which all ranks of the job have to call this. Default: two minutes. */
  readonly joinTimeoutMs?: number;
  /**
   * Makes all-reduces of f32, i32 and u32 by MPI's own sum, max and min, whose order of addition is
   * MPI's: results are not equal bit for bit to those of other transports or world sizes. Equal on
   * all ranks. Default: false.
   */
  readonly nativeAllReduce?: boolean;
  /**
   * Whether closing the group ends MPI, after which this process can't connect again. Default:
   * true. With false, the program has to end MPI by a later group, or else mpirun takes its end for
   * an error.
   */
  readonly finalize?: boolean;
}

const JOIN_TIMEOUT_MS = 120_000;

/**
 * Starts MPI where it isn't started yet (which blocks until all ranks of the job have) and joins
 * the ranks.
 */
export async function connectMpi(options: ConnectMpiOptions = {}): Promise<ProcessGroup> {
  const mpi = startMpi(options);
  const { world } = mpi.abi;
  const rank = mpi.rankOf(world);
  const worldSize = mpi.sizeOf(world);
  if (options.worldSize !== undefined && options.worldSize !== worldSize) {
    throw new JoinError(
      { rank, worldSize },
      `expected ${options.worldSize} ranks, but MPI has ${worldSize}. Start them by ` +
        `mpirun -np ${options.worldSize} (or srun), of the same MPI as the library that is loaded.`,
    );
  }
  checkGroupOptions(options, { rank, worldSize, call: 'connectMpi' });
  const endpoint = new Endpoint(rank, worldSize, options);
  const progress = new Progress(mpi, {
    isOversubscribed: ranksOfThisHost(worldSize) > cpus().length, // mpirun binds ranks to few cores
    onError: (error) => {
      const reason = error instanceof Error ? error.message : String(error);
      endpoint.fail({ kind: 'aborted', origin: rank, reason });
    },
  });
  const comms = mpi.handles(1 + COMMS_A_GROUP);
  await duplicateWorld(mpi, progress, comms, options.joinTimeoutMs ?? JOIN_TIMEOUT_MS);
  const engine: MpiEngine = new MpiEngine({
    mpi,
    progress,
    endpoint,
    ask: (members, question) => transport.ask(members, question),
  });
  const transport = new MpiTransport({
    mpi,
    comm: comms[0]!,
    progress,
    endpoint,
    engine,
    onEnd: () => {
      if (options.finalize ?? true) {
        mpi.finalize();
      }
    },
  });
  endpoint.attach(transport);
  const isNativeAllReduce = options.nativeAllReduce ?? false;
  const native = new MpiCollectives({ engine, isNativeAllReduce });
  const group = createWorldGroup(endpoint, { ...options, native });
  if (worldSize > 1) {
    const members = Array.from({ length: worldSize }, (_, member) => member);
    engine.add(group.id, members, members, comms.subarray(1));
  }
  return group;
}

function startMpi(options: ConnectMpiOptions): MpiLibrary {
  const { env } = process;
  const place = {
    rank: Number(env.OMPI_COMM_WORLD_RANK ?? env.PMI_RANK ?? 0),
    worldSize: Number(env.OMPI_COMM_WORLD_SIZE ?? env.PMI_SIZE ?? 1),
  };
  try {
    const mpi = loadMpi({ ...options, env });
    if (mpi.isFinalized) {
      throw new Error(
        'MPI has ended in this process, and starts only once. Connect with finalize: false the first time.',
      );
    }
    if (!mpi.isInitialized) {
      mpi.init();
    }
    return mpi;
  } catch (error) {
    throw new JoinError(place, error instanceof Error ? error.message : String(error));
  }
}

/**
 * The number of ranks on this host, as the launchers tell it; where none tells it, all ranks may be
 * here.
 */
function ranksOfThisHost(worldSize: number): number {
  const { env } = process;
  return Number(env.OMPI_COMM_WORLD_LOCAL_SIZE ?? env.MPI_LOCALNRANKS ?? worldSize);
}

async function duplicateWorld(
  mpi: MpiLibrary,
  progress: Progress,
  into: HandleArray,
  limitMs: number,
): Promise<void> {
  const { world } = mpi.abi;
  const duplicates = (async () => {
    for (let i = 0; i < into.length; i++) {
      const place = into.subarray(i, i + 1);
      await progress.run((request) => mpi.idup(world, place, request), into);
      mpi.returnErrors(into[i]!);
    }
  })();
  await within(limitMs, duplicates, () => {
    progress.stop();
    const place = { rank: mpi.rankOf(world), worldSize: mpi.sizeOf(world) };
    throw new JoinError(place, `not all ranks called connectMpi within ${limitMs} ms`);
  });
}
