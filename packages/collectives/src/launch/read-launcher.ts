// Finds out which launcher started this process and what it told, from environment variables alone.

import { LaunchError } from '../errors.js';
import { Environment, type EnvVariables } from './launchers/environment.js';
import { readIndexedJob, readJobSet, readKubeflow } from './launchers/kubernetes.js';
import type { Launcher, LauncherFindings, LauncherName } from './launchers/launcher.js';
import { readOpenMpi, readPmi, readPmix } from './launchers/mpi.js';
import { isStep, readSlurm } from './launchers/slurm.js';
import { readPlainEnvironment, readTorchrun } from './launchers/torchrun.js';

/**
 * The readers, in the order in which they are tried. Launchers may be nested (srun starts torchrun,
 * which starts the ranks), and the environment then has the variables of both. So launchers that
 * start processes come before those that start hosts.
 */
const READERS: readonly ((env: Environment) => LauncherFindings | undefined)[] = [
  readTorchrun,
  readPlainEnvironment,
  readOpenMpi,
  readPmi,
  readKubeflow,
  readSlurm,
  readPmix,
  readJobSet,
  readIndexedJob,
];

/** Variables in which another launcher tells the process's rank, or its host's, to compare with. */
interface Claim {
  readonly launchers: readonly LauncherName[];
  readonly rank: string;
  readonly size?: string;
}

const CLAIMS: readonly Claim[] = [
  { launchers: ['torchrun', 'env'], rank: 'RANK', size: 'WORLD_SIZE' },
  { launchers: ['openmpi'], rank: 'OMPI_COMM_WORLD_RANK', size: 'OMPI_COMM_WORLD_SIZE' },
  { launchers: ['pmi'], rank: 'PMI_RANK', size: 'PMI_SIZE' },
  { launchers: ['kubeflow'], rank: 'PET_NODE_RANK', size: 'PET_NNODES' },
  { launchers: ['slurm'], rank: 'SLURM_PROCID', size: 'SLURM_NTASKS' },
  { launchers: ['pmix'], rank: 'PMIX_RANK' },
  { launchers: ['jobset', 'indexed-job'], rank: 'JOB_COMPLETION_INDEX' },
];

/**
 * The place that the launcher of this process gave it, or undefined where there is no sign of a
 * launcher. docs/collectives/starting.md has the table of launchers and variables.
 * SHARDWEAVE_RUN_ID and SHARDWEAVE_ATTEMPT win over any launcher's values. Only `variables` are
 * read.
 * @throws {LaunchError} where a variable is missing, is not a number, or contradicts another
 */
export function readLauncher(variables: EnvVariables): Launcher | undefined {
  const env = new Environment(variables);
  for (const read of READERS) {
    const seen = new Environment(variables);
    const findings = read(seen);
    if (findings !== undefined) {
      checkPlace(findings, seen);
      checkAgreement(findings, env);
      const attempt = seen.count(['SHARDWEAVE_ATTEMPT']) ?? findings.attempt ?? 0;
      const runId = seen.text('SHARDWEAVE_RUN_ID') ?? findings.runId ?? 'none';
      return { ...findings, attempt, runId, variables: seen.taken };
    }
  }
  return undefined;
}

function checkPlace(place: LauncherFindings, env: Environment): void {
  const { rank, worldSize, localRank, localWorldSize } = place;
  const refuse = (what: 'rank' | 'local rank', value: number, size: number) => {
    const own = what === 'rank' ? /(RANK|PROCID|INDEX)$/ : /(LOCAL_RANK|LOCALID|LOCALRANKID)$/;
    const variable = env.taken.find((name) => own.test(name)) ?? what;
    const remedy = `Ranks go from 0 to ${size - 1}; set the size to the number of processes.`;
    throw new LaunchError(variable, env.text(variable) ?? String(value), {
      problem: `expected a ${what} below the ${what === 'rank' ? 'world size' : 'local size'} ${size}`,
      remedy,
    });
  };
  if (rank >= worldSize) {
    refuse('rank', rank, worldSize);
  }
  if (localRank !== undefined && localWorldSize !== undefined && localRank >= localWorldSize) {
    refuse('local rank', localRank, localWorldSize);
  }
}

/** Throws where another launcher gave the process, or its host, another place. */
function checkAgreement(found: LauncherFindings, env: Environment): void {
  const { launcher, rank, worldSize, nodeRank, localWorldSize } = found;
  if (launcher === 'torchrun') {
    return; // its rendezvous gives hosts an order of its own
  }
  // mpirun starts its daemons by srun, so SLURM's variables are then those of the daemons.
  const isMpirun = launcher === 'openmpi' || launcher === 'pmi';
  const isSilent = (claim: Claim) =>
    claim.launchers.includes(launcher) ||
    !env.has(claim.rank) ||
    (claim.rank === 'SLURM_PROCID' && (isMpirun || !isStep(env))) ||
    (claim.rank === 'PMIX_RANK' && isMpirun);
  for (const claim of CLAIMS.filter((candidate) => !isSilent(candidate))) {
    const numNodes = localWorldSize === undefined ? undefined : worldSize / localWorldSize;
    const size = claim.size === undefined ? undefined : env.count([claim.size], 1);
    const claimed = env.count([claim.rank])!;
    const isSame = claimed === rank && (size ?? worldSize) === worldSize;
    const isHost = claimed === nodeRank && (size ?? numNodes) === numNodes;
    const isShell = size === 1; // srun --pty bash, or a world of one around the real one
    if (!isSame && !isHost && !isShell) {
      const ofSize = size === undefined ? '' : ` of ${size} (${claim.size})`;
      throw new LaunchError(claim.rank, String(claimed), {
        problem: `${launcher} says rank ${rank} of ${worldSize}, and this variable another${ofSize}`,
        remedy: `Unset it if ${launcher} is right; several ranks a host need LOCAL_RANK and LOCAL_WORLD_SIZE.`,
      });
    }
  }
  checkWorldSize(found, env);
}

/** Checks a WORLD_SIZE without a RANK, beside a launcher that tells the size itself. */
function checkWorldSize({ launcher, worldSize }: LauncherFindings, env: Environment): void {
  const given = env.count(['WORLD_SIZE'], 1);
  if (given !== undefined && given !== worldSize) {
    throw new LaunchError('WORLD_SIZE', String(given), {
      problem: `${launcher} says that there are ${worldSize} processes`,
      remedy: `Unset it, or start that many.`,
    });
  }
}
