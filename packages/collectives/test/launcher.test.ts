// readLauncher reads these settings from each launcher's environment.

import { type EnvVariables, readLauncher } from '@shardweave/collectives/launch';
import { describe, expect, it } from 'vitest';
import {
  INDEXED_JOB,
  KUBEFLOW,
  OPEN_MPI,
  SLURM,
  TORCHRUN,
} from './support/launcher-environments.js';

describe('the place that a launcher gives', () => {
  const cases: readonly [string, EnvVariables, object][] = [
    [
      'torchrun',
      TORCHRUN,
      {
        launcher: 'torchrun',
        rank: 1,
        worldSize: 2,
        localRank: 1,
        localWorldSize: 2,
        nodeRank: 0,
        address: 'localhost',
        port: 49_741,
        attempt: 2,
        runId: '45083b4f',
      },
    ],
    [
      'torchrun whose agent listens on MASTER_PORT: the port beside',
      { ...TORCHRUN, MASTER_PORT: '29500', TORCHELASTIC_USE_AGENT_STORE: 'True' },
      { port: 29_501 },
    ],
    [
      'the last port, beside which there is none',
      { ...TORCHRUN, MASTER_PORT: '65535', TORCHELASTIC_USE_AGENT_STORE: 'True' },
      { port: 65_534 },
    ],
    [
      'torchrun on two hosts, whose agents count restarts each by itself',
      { ...TORCHRUN, RANK: '3', WORLD_SIZE: '4', GROUP_RANK: '1', MASTER_ADDR: '10.0.0.1' },
      { rank: 3, nodeRank: 1, attempt: 0, address: '10.0.0.1' },
    ],
    [
      'torchrun that srun started once a host, in an order of its own',
      { ...SLURM, ...TORCHRUN, SLURM_PROCID: '2' },
      { launcher: 'torchrun', rank: 1, worldSize: 2 },
    ],
    [
      'variables set by hand',
      { RANK: '1', WORLD_SIZE: '3' },
      {
        launcher: 'env',
        rank: 1,
        worldSize: 3,
        localRank: undefined,
        localWorldSize: undefined,
        nodeRank: undefined,
        address: '127.0.0.1',
        port: 29_500,
        attempt: 0,
        runId: 'none',
      },
    ],
    [
      'variables set by hand on several hosts',
      { RANK: '5', WORLD_SIZE: '8', LOCAL_RANK: '1', LOCAL_WORLD_SIZE: '4' },
      { rank: 5, nodeRank: 1, address: undefined },
    ],
    [
      'Open MPI',
      OPEN_MPI,
      {
        launcher: 'openmpi',
        rank: 1,
        worldSize: 2,
        localRank: 1,
        localWorldSize: 2,
        nodeRank: 0,
        address: '127.0.0.1',
        runId: '2128084993',
        attempt: 0,
      },
    ],
    [
      'Open MPI on two hosts, which says no address',
      { ...OPEN_MPI, OMPI_COMM_WORLD_SIZE: '4' },
      { worldSize: 4, nodeRank: undefined, address: undefined },
    ],
    [
      'Open MPI whose daemons SLURM started',
      { ...SLURM, ...OPEN_MPI, SLURM_PROCID: '0' },
      { launcher: 'openmpi', rank: 1 },
    ],
    [
      'PMI',
      { PMI_RANK: '2', PMI_SIZE: '4', MPI_LOCALRANKID: '2', MPI_LOCALNRANKS: '4' },
      { launcher: 'pmi', rank: 2, worldSize: 4, localRank: 2, address: '127.0.0.1', port: 29_500 },
    ],
    [
      'PMI of srun, where SLURM knows more',
      { ...SLURM, PMI_RANK: '5', PMI_SIZE: '7' },
      { launcher: 'slurm', rank: 5, address: 'node01' },
    ],
    [
      'PMIx alone',
      { PMIX_RANK: '1', WORLD_SIZE: '2', MASTER_ADDR: 'a', PMIX_NAMESPACE: 'prte-1@1' },
      { launcher: 'pmix', rank: 1, worldSize: 2, address: 'a', runId: 'prte-1@1' },
    ],
    [
      'SLURM',
      SLURM,
      {
        launcher: 'slurm',
        rank: 5,
        worldSize: 7,
        localRank: 1,
        localWorldSize: 2,
        nodeRank: 2,
        address: 'node01',
        attempt: 1,
        runId: '81234.3',
      },
    ],
    [
      "SLURM's last host with fewer tasks",
      { ...SLURM, SLURM_PROCID: '6', SLURM_LOCALID: '0', SLURM_NODEID: '3' },
      { localWorldSize: 1 },
    ],
    [
      'SLURM on one host',
      { ...SLURM, SLURM_STEP_NUM_NODES: '1', SLURM_STEP_NODELIST: 'vm', SLURM_NODEID: '0' },
      { address: '127.0.0.1', localWorldSize: 7 },
    ],
    [
      'SLURM with an address and a port from the batch script',
      { ...SLURM, MASTER_ADDR: 'ib-node01', MASTER_PORT: '4000', WORLD_SIZE: '7' },
      { address: 'ib-node01', port: 4000 },
    ],
    [
      'SLURM without a list of hosts',
      { ...SLURM, SLURM_STEP_NODELIST: '' },
      { address: '10.0.0.250' },
    ],
    [
      'Kubeflow Trainer, one process a node',
      KUBEFLOW,
      {
        launcher: 'kubeflow',
        rank: 2,
        worldSize: 4,
        localRank: 0,
        localWorldSize: 1,
        nodeRank: 2,
        address: 'tune-node-0-0.tune',
        port: 29_400,
        runId: 'tune-node-0',
      },
    ],
    [
      'Kubeflow Trainer, several processes a node',
      { ...KUBEFLOW, PET_NPROC_PER_NODE: '2', LOCAL_RANK: '1' },
      { rank: 5, worldSize: 8, localRank: 1, localWorldSize: 2, nodeRank: 2 },
    ],
    [
      "torchrun's rendezvous as PET_*, without torchrun",
      { PET_NNODES: '2', PET_NODE_RANK: '1', PET_RDZV_ENDPOINT: 'head:4100', PET_RDZV_ID: 'j7' },
      { rank: 1, worldSize: 2, address: 'head', port: 4100, runId: 'j7' },
    ],
    [
      'an Indexed Job',
      INDEXED_JOB,
      {
        launcher: 'indexed-job',
        rank: 3,
        worldSize: 4,
        localRank: 0,
        localWorldSize: 1,
        nodeRank: 3,
        address: 'train-0.ranks',
        port: 29_500,
        runId: 'train',
      },
    ],
    [
      'several ranks in each pod of an Indexed Job',
      { ...INDEXED_JOB, RANK: '7', WORLD_SIZE: '8', LOCAL_RANK: '1', LOCAL_WORLD_SIZE: '2' },
      { launcher: 'env', rank: 7, nodeRank: 3 },
    ],
    [
      'a JobSet',
      {
        JOBSET_NAME: 'set',
        JOBSET_RESTART_ATTEMPT: '2',
        JOB_COMPLETION_INDEX: '1',
        HOSTNAME: 'set-workers-0-1',
        WORLD_SIZE: '2',
      },
      { launcher: 'jobset', rank: 1, address: 'set-workers-0-0.set', attempt: 2 },
    ],
    [
      "the run's id and attempt, given by whoever knows better",
      { ...INDEXED_JOB, SHARDWEAVE_RUN_ID: 'uid-7', SHARDWEAVE_ATTEMPT: '3' },
      { runId: 'uid-7', attempt: 3 },
    ],
    [
      'a shell that srun started around ranks set by hand',
      {
        ...SLURM,
        SLURM_STEP_NUM_TASKS: '1',
        SLURM_NTASKS: '1',
        SLURM_PROCID: '0',
        RANK: '1',
        WORLD_SIZE: '2',
      },
      { launcher: 'env', rank: 1 },
    ],
  ];

  it.each(cases)('%s', (_, variables, expected) => {
    expect(readLauncher(variables)).toMatchObject(expected);
  });

  it('is undefined where there is no launcher, and in a batch script with one task', () => {
    expect(readLauncher({})).toBeUndefined();
    expect(readLauncher({ PATH: '/bin', RANK: '' })).toBeUndefined();
    expect(
      readLauncher({ SLURM_JOB_ID: '1', SLURM_PROCID: '0', SLURM_NTASKS: '1' }),
    ).toBeUndefined();
  });

  it('names the variables that it was read from', () => {
    expect(readLauncher({ RANK: '0', WORLD_SIZE: '1', PATH: '/bin' })?.variables).toEqual([
      'RANK',
      'WORLD_SIZE',
    ]);
    expect(readLauncher(SLURM)?.variables).toContain('SLURM_STEP_NODELIST');
  });

  it("derives one port for all ranks of a step and others' for others", () => {
    const port = (variables: EnvVariables) => readLauncher(variables)?.port ?? 0;
    expect(port({ ...SLURM, SLURM_PROCID: '0', SLURM_NODEID: '0' })).toBe(port(SLURM));
    const others = [81_233, 81_235, 81_236].map((job) =>
      port({ ...SLURM, SLURM_JOB_ID: String(job) }),
    );
    const ports = [port(SLURM), port({ ...SLURM, SLURM_STEP_ID: '4' }), port(OPEN_MPI), ...others];
    expect(new Set(ports).size).toBe(ports.length);
    for (const one of ports) {
      expect(one).toBeGreaterThanOrEqual(16_384);
      expect(one).toBeLessThan(32_768);
    }
  });

  it.each([
    ['node7', 'node7'],
    ['node[01-03,07]', 'node01'],
    ['rack[2-3]n[08-10],login1', 'rack2n08'],
    ['login1,node[01-03]', 'login1'],
    ['n[098-102].site', 'n098.site'],
    [' gpu-a[4] ', 'gpu-a4'],
  ])('takes the first host of %s', (list, first) => {
    expect(readLauncher({ ...SLURM, SLURM_STEP_NODELIST: list })?.address).toBe(first);
  });
});
