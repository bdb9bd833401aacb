// Joins the job for which a launcher started this process: reads its place from the environment,
// finds the secret, and opens the transport and the group.

import { LaunchError } from '../errors.js';
import { checkGroupOptions } from '../group/group-options.js';
import type { ProcessGroup } from '../group/process-group.js';
import type { ConnectMpiOptions } from '../transports/mpi/connect-mpi.js';
import { type ConnectWsOptions, connectWs } from '../transports/ws/connect-ws.js';
import type { EnvVariables } from './launchers/environment.js';
import type { LauncherName } from './launchers/launcher.js';
import { type Place, type PlaceOptions, readPlace, rendezvousAddress } from './place.js';
import { readSecret } from './secret.js';

/** The transports that `initProcessGroup` can choose: WebSockets or MPI. */
export type LaunchTransport = 'ws' | 'mpi';

/** All options of connectWs; those that are not given are read from the environment. */
export interface InitProcessGroupOptions
  extends PlaceOptions,
    Omit<Partial<ConnectWsOptions>, keyof PlaceOptions> {
  /**
   * The transport. Default: SHARDWEAVE_TRANSPORT; else 'mpi' where an MPI launcher (mpirun,
   * mpiexec) started the process, and 'ws' everywhere else. It never depends on what is installed,
   * because all ranks must choose the same.
   */
  readonly transport?: LaunchTransport;
  /** The options of connectMpi, for 'mpi'. */
  readonly mpi?: Pick<ConnectMpiOptions, 'library' | 'nativeAllReduce' | 'finalize'>;
}

/** The same as PyTorch's: hosts and pods of a cluster start minutes apart. */
const LAUNCH_TIMEOUT_MS = 300_000;

const MPI_LAUNCHERS: readonly (LauncherName | undefined)[] = ['openmpi', 'pmi'];

/**
 * Resolves with the group of all ranks when all have come, within `joinTimeoutMs` (default: five
 * minutes). Explicit options win over the environment; docs/collectives/starting.md lists the
 * launchers whose variables are read.
 * @throws {LaunchError} where options or environment are wrong, before anything is sent
 * @throws {JoinError} where the ranks don't find each other
 */
export async function initProcessGroup(
  options: InitProcessGroupOptions = {},
): Promise<ProcessGroup> {
  const place = readPlace(options);
  const { rank, worldSize } = place;
  checkGroupOptions(options, { rank, worldSize, call: 'initProcessGroup' });
  return chooseTransport(options, place) === 'mpi'
    ? connectByMpi(options, place)
    : connectByWs(options, place);
}

async function connectByWs(options: InitProcessGroupOptions, place: Place): Promise<ProcessGroup> {
  const { rank, worldSize, port, attempt, runId } = place;
  const { env = process.env, joinTimeoutMs = LAUNCH_TIMEOUT_MS } = options;
  const secret = await readSecret({ ...options, worldSize, env });
  const address = await rendezvousAddress(place, { ...options, joinTimeoutMs });
  return connectWs({
    ...options,
    rank,
    worldSize,
    address,
    port,
    attempt,
    runId,
    secret,
    joinTimeoutMs,
  });
}

async function connectByMpi(
  options: InitProcessGroupOptions,
  { worldSize }: Place,
): Promise<ProcessGroup> {
  const { joinTimeoutMs = LAUNCH_TIMEOUT_MS } = options;
  const { connectMpi } = await import('../mpi.js');
  return connectMpi({ ...options, ...options.mpi, worldSize, joinTimeoutMs });
}

function chooseTransport(options: InitProcessGroupOptions, place: Place): LaunchTransport {
  const { SHARDWEAVE_TRANSPORT: named = '' }: EnvVariables = options.env ?? process.env;
  const isByMpi = MPI_LAUNCHERS.includes(place.launcher?.launcher);
  const chosen = options.transport ?? (named === '' ? (isByMpi ? 'mpi' : 'ws') : named);
  if (chosen !== 'ws' && chosen !== 'mpi') {
    throw new LaunchError('SHARDWEAVE_TRANSPORT', chosen, {
      problem: 'expected a transport between processes',
      remedy: 'Set it to ws or mpi, or unset it.',
    });
  }
  return chosen;
}
