// Reads the variables of MPI launchers: Open MPI's mpirun, the PMI of MPICH's and Intel's mpiexec,
// and PMIx alone.

import type { Environment } from './environment.js';
import { DEFAULT_PORT, type LauncherFindings, masterAddress, portOfJob } from './launcher.js';

export function readOpenMpi(env: Environment): LauncherFindings | undefined {
  const rank = env.count(['OMPI_COMM_WORLD_RANK']);
  if (rank === undefined) {
    return undefined;
  }
  const remedy = 'mpirun sets it; start the process with mpirun.';
  const worldSize = env.requiredCount(['OMPI_COMM_WORLD_SIZE'], 1, remedy);
  // OMPI_COMM_WORLD_NODE_RANK is another number of the process on its host, not the host's number.
  const localWorldSize = env.count(['OMPI_COMM_WORLD_LOCAL_SIZE'], 1);
  const localRank = env.count(['OMPI_COMM_WORLD_LOCAL_RANK']);
  const job = env.text('PMIX_NAMESPACE', 'OMPI_MCA_ess_base_jobid');
  const place = { rank, worldSize, localRank, localWorldSize };
  return { launcher: 'openmpi', ...place, ...readRendezvous(env, place, job) };
}

export function readPmi(env: Environment): LauncherFindings | undefined {
  const rank = env.count(['PMI_RANK']);
  if (rank === undefined || isSlurmsOwnPmi(env, rank)) {
    return undefined;
  }
  const remedy = 'mpiexec sets it; start the process with mpiexec.';
  const worldSize = env.requiredCount(['PMI_SIZE'], 1, remedy);
  const localWorldSize = env.count(['MPI_LOCALNRANKS'], 1);
  const localRank = env.count(['MPI_LOCALRANKID']);
  const place = { rank, worldSize, localRank, localWorldSize };
  return { launcher: 'pmi', ...place, ...readRendezvous(env, place, undefined) };
}

export function readPmix(env: Environment): LauncherFindings | undefined {
  const rank = env.count(['PMIX_RANK']);
  if (rank === undefined) {
    return undefined;
  }
  const remedy = 'PMIx has no variable for it: set WORLD_SIZE to the number of processes.';
  const worldSize = env.requiredCount(['WORLD_SIZE'], 1, remedy);
  const place = { rank, worldSize, localRank: undefined, localWorldSize: undefined };
  return { launcher: 'pmix', ...place, ...readRendezvous(env, place, env.text('PMIX_NAMESPACE')) };
}

/**
 * Whether SLURM itself set PMI_*, as srun --mpi=pmi2 does; SLURM's own variables then tell more.
 */
function isSlurmsOwnPmi(env: Environment, rank: number): boolean {
  return env.has('SLURM_STEP_ID') && env.count(['SLURM_PROCID']) === rank;
}

function readRendezvous(
  env: Environment,
  place: { readonly worldSize: number; readonly localWorldSize: number | undefined },
  job: string | undefined,
) {
  const isOneHost = place.worldSize === place.localWorldSize || place.worldSize === 1;
  return {
    nodeRank: isOneHost ? 0 : undefined,
    address: masterAddress(env, isOneHost),
    port: env.port('MASTER_PORT') ?? (job === undefined ? DEFAULT_PORT : portOfJob(job)),
    ...(job !== undefined && { runId: job }),
  };
}
