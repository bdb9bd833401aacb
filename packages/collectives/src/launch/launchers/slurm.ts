// Reads the variables of SLURM's srun. A batch script itself has most of them, too, but it is not a
// task of a step.

import { LaunchError } from '../../errors.js';
import type { Environment } from './environment.js';
import { type LauncherFindings, masterAddress, portOfJob } from './launcher.js';

export function readSlurm(env: Environment): LauncherFindings | undefined {
  if (!env.has('SLURM_PROCID')) {
    return undefined;
  }
  if (!isStep(env)) {
    return refuseBatchScript(env);
  }
  const rank = env.count(['SLURM_PROCID'])!;
  const remedy = 'srun sets it; start the process with srun.';
  const sizes = ['SLURM_STEP_NUM_TASKS', 'SLURM_NTASKS', 'SLURM_NPROCS'] as const;
  const worldSize = env.requiredCount([...sizes], 1, remedy);
  const nodeRank = env.count(['SLURM_NODEID']);
  const numNodes = env.count(['SLURM_STEP_NUM_NODES', 'SLURM_NNODES'], 1);
  const step = `${env.text('SLURM_JOB_ID', 'SLURM_JOBID')}.${env.text('SLURM_STEP_ID', 'SLURM_STEPID')}`;
  return {
    launcher: 'slurm',
    rank,
    worldSize,
    localRank: env.count(['SLURM_LOCALID']),
    localWorldSize: numNodes === 1 ? worldSize : readTasksOfNode(env, nodeRank),
    nodeRank,
    address: masterAddress(env, numNodes === 1) ?? readFirstHost(env),
    port: env.port('MASTER_PORT') ?? portOfJob(step),
    attempt: env.count(['SLURM_RESTART_COUNT']) ?? 0,
    runId: step,
  };
}

/** Whether srun started the process: only its tasks are part of a step. */
export function isStep(env: Environment): boolean {
  return env.has('SLURM_STEP_ID') || env.has('SLURM_STEPID');
}

/**
 * Refuses a batch script with several tasks, which need srun to start them; a single task doesn't.
 */
function refuseBatchScript(env: Environment): undefined {
  const numTasks = env.count(['SLURM_NTASKS', 'SLURM_NPROCS'], 1) ?? 1;
  if (numTasks > 1) {
    throw new LaunchError('SLURM_STEP_ID', undefined, {
      problem: `the batch script of a job with ${numTasks} tasks is not one of them`,
      remedy: 'Start the program with srun in the script.',
    });
  }
  return undefined;
}

/**
 * The host of task 0: the step's first host, unless tasks were distributed by hand (MASTER_ADDR
 * then tells it).
 */
function readFirstHost(env: Environment): string | undefined {
  const list = env.text('SLURM_STEP_NODELIST', 'SLURM_JOB_NODELIST', 'SLURM_NODELIST');
  // Without a list it is the host where srun was called, which is the first host of a batch script.
  return list === undefined ? env.text('SLURM_LAUNCH_NODE_IPADDR') : firstHost(list);
}

/** The number of tasks of a node, by SLURM_STEP_TASKS_PER_NODE: "2(x3),1" is 2, 2, 2, 1. */
function readTasksOfNode(env: Environment, nodeRank: number | undefined): number | undefined {
  const counts = env.text('SLURM_STEP_TASKS_PER_NODE')?.split(',') ?? [];
  const tasks = counts.flatMap((part) => {
    const [, count, times = '1'] = /^(\d+)(?:\(x(\d+)\))?$/.exec(part.trim()) ?? [];
    return count === undefined ? [] : Array<number>(Number(times)).fill(Number(count));
  });
  return nodeRank === undefined ? undefined : tasks[nodeRank];
}

/** The first host of a compressed list: "node[01-03,07],login1" gives node01. */
function firstHost(list: string): string | undefined {
  const [pattern] = /^(?:\[[^\]]*\]|[^,[\]])+/.exec(list.trim()) ?? [];
  return pattern?.replace(/\[([^\],-]*)[^\]]*\]/g, '$1');
}
