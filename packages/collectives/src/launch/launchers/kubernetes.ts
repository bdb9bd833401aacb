// Reads the variables of Kubernetes: the Kubeflow Trainer, JobSet and Indexed Jobs. A pod is a
// host; its name ends with its index, and the headless Service makes the pods' names known.

import { LaunchError } from '../../errors.js';
import { LOOPBACK } from '../../sockets/is-loopback.js';
import type { Environment } from './environment.js';
import { DEFAULT_PORT, type LauncherFindings } from './launcher.js';

/**
 * Kubeflow Trainer v2: torchrun's flags as PET_*, for a process that torchrun did not start. A node
 * has one process, or PET_NPROC_PER_NODE of them that were each given a LOCAL_RANK.
 */
export function readKubeflow(env: Environment): LauncherFindings | undefined {
  const nodeRank = env.count(['PET_NODE_RANK']);
  if (nodeRank === undefined) {
    return undefined;
  }
  const remedy =
    'Set it to the number of nodes (trainer.numNodes); a range "1:4" is only torchrun\'s.';
  const numNodes = env.requiredCount(['PET_NNODES'], 1, remedy);
  const localWorldSize = readProcessesOfNode(env);
  const localRank = localWorldSize === 1 ? 0 : env.count(['LOCAL_RANK']);
  if (localRank === undefined) {
    throw new LaunchError('LOCAL_RANK', undefined, {
      problem: `expected a rank among the ${localWorldSize} processes of this node (PET_NPROC_PER_NODE)`,
      remedy: 'Start that many processes, each with its LOCAL_RANK, or set numProcPerNode to 1.',
    });
  }
  const [, host, port] = /^(.*):(\d+)$/.exec(env.text('PET_RDZV_ENDPOINT') ?? '') ?? [];
  const runId = env.text('PET_RDZV_ID') ?? jobOfPod(env, nodeRank);
  return {
    launcher: 'kubeflow',
    rank: nodeRank * localWorldSize + localRank,
    worldSize: numNodes * localWorldSize,
    localRank,
    localWorldSize,
    nodeRank,
    address: env.text('PET_MASTER_ADDR', 'MASTER_ADDR') ?? host ?? loopbackOf(numNodes),
    port: env.port('PET_MASTER_PORT', 'MASTER_PORT') ?? (Number(port) || DEFAULT_PORT),
    attempt: env.count(['JOBSET_RESTART_ATTEMPT']) ?? 0,
    ...(runId !== undefined && { runId }),
  };
}

/**
 * A JobSet with one replicated job: the pods of its Indexed Job, named by the JobSet's own Service.
 */
export function readJobSet(env: Environment): LauncherFindings | undefined {
  const jobSet = env.text('JOBSET_NAME');
  if (jobSet === undefined && !env.has('JOBSET_RESTART_ATTEMPT')) {
    return undefined;
  }
  const pod = readPod(env, jobSet);
  return pod && { ...pod, launcher: 'jobset', attempt: env.count(['JOBSET_RESTART_ATTEMPT']) ?? 0 };
}

export function readIndexedJob(env: Environment): LauncherFindings | undefined {
  return readPod(env, undefined);
}

function readPod(env: Environment, service: string | undefined): LauncherFindings | undefined {
  const index = env.count(['JOB_COMPLETION_INDEX']);
  if (index === undefined) {
    return undefined;
  }
  const remedy = 'Kubernetes does not say it: set WORLD_SIZE to the completions of the Job.';
  const worldSize = env.requiredCount(['WORLD_SIZE'], 1, remedy);
  const job = jobOfPod(env, index);
  const domain = env.text('SHARDWEAVE_SERVICE') ?? service;
  const first = job === undefined || domain === undefined ? undefined : `${job}-0.${domain}`;
  return {
    launcher: 'indexed-job',
    rank: index,
    worldSize,
    localRank: 0,
    localWorldSize: 1,
    nodeRank: index,
    address: env.text('MASTER_ADDR') ?? first ?? loopbackOf(worldSize),
    port: env.port('MASTER_PORT') ?? DEFAULT_PORT,
    ...(job !== undefined && { runId: job }),
  };
}

/** The name of the Job, which is a pod's host name without its index. */
function jobOfPod(env: Environment, index: number): string | undefined {
  const name = env.text('HOSTNAME');
  return name?.endsWith(`-${index}`) ? name.slice(0, -`-${index}`.length) : undefined;
}

function loopbackOf(numNodes: number): string | undefined {
  return numNodes === 1 ? LOOPBACK : undefined;
}

/**
 * The number of processes of a node. 'auto' and the names of devices are for torchrun to resolve;
 * without torchrun a node has one process.
 */
function readProcessesOfNode(env: Environment): number {
  const text = env.text('PET_NPROC_PER_NODE');
  const isNamed = text === undefined || ['auto', 'cpu', 'gpu'].includes(text);
  return isNamed
    ? (env.count(['LOCAL_WORLD_SIZE'], 1) ?? 1)
    : env.count(['PET_NPROC_PER_NODE'], 1)!;
}
