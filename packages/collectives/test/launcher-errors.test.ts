// readLauncher throws these errors for environments that can't be right.

import { type EnvVariables, LaunchError, readLauncher } from '@shardweave/collectives/launch';
import { describe, expect, it } from 'vitest';
import {
  INDEXED_JOB,
  KUBEFLOW,
  OPEN_MPI,
  SLURM,
  TORCHRUN,
} from './support/launcher-environments.js';

describe("an environment that can't be right", () => {
  const cases: readonly [string, EnvVariables, string, string | undefined, RegExp][] = [
    [
      'a rank that is no number',
      { RANK: 'one', WORLD_SIZE: '2' },
      'RANK',
      'one',
      /RANK: expected a whole number from 0, got "one"\. Set it/,
    ],
    ['a negative rank', { RANK: '-1', WORLD_SIZE: '2' }, 'RANK', '-1', /whole number/],
    ['a broken rank', { RANK: '1.5', WORLD_SIZE: '2' }, 'RANK', '1.5', /whole number/],
    ['no rank below the world size', { ...TORCHRUN, RANK: '2' }, 'RANK', '2', /world size 2/],
    ['a world of none', { RANK: '0', WORLD_SIZE: '0' }, 'WORLD_SIZE', '0', /number from 1/],
    ['no world size', { RANK: '0' }, 'WORLD_SIZE', undefined, /it is not set\. Set it to/],
    [
      'a local rank beyond its host',
      { ...TORCHRUN, LOCAL_RANK: '2' },
      'LOCAL_RANK',
      '2',
      /local rank below the local size 2/,
    ],
    ['a port that is none', { ...TORCHRUN, MASTER_PORT: '70000' }, 'MASTER_PORT', '70000', /65535/],
    ['port 0', { ...TORCHRUN, MASTER_PORT: '0' }, 'MASTER_PORT', '0', /number from 1/],
    [
      'an Indexed Job without a world size',
      { ...INDEXED_JOB, WORLD_SIZE: '' },
      'WORLD_SIZE',
      undefined,
      /completions of the Job/,
    ],
    ['PMIx without a world size', { PMIX_RANK: '0' }, 'WORLD_SIZE', undefined, /PMIx has no/],
    [
      'a batch script that starts no tasks',
      { ...SLURM, SLURM_STEP_ID: '' },
      'SLURM_STEP_ID',
      undefined,
      /job with 7 tasks .* srun/,
    ],
    [
      'several processes in a Kubeflow node that nobody told apart',
      { ...KUBEFLOW, PET_NPROC_PER_NODE: '4' },
      'LOCAL_RANK',
      undefined,
      /4 processes of this node .* numProcPerNode/,
    ],
    ['a range of nodes', { ...KUBEFLOW, PET_NNODES: '1:4' }, 'PET_NNODES', '1:4', /whole number/],
    [
      'RANK by hand against mpirun',
      { ...OPEN_MPI, RANK: '0', WORLD_SIZE: '2' },
      'OMPI_COMM_WORLD_RANK',
      '1',
      /env says rank 0 of 2, and this variable another of 2/,
    ],
    [
      'RANK by hand against SLURM',
      { ...SLURM, RANK: '1', WORLD_SIZE: '2' },
      'SLURM_PROCID',
      '5',
      /rank 1 of 2/,
    ],
    [
      'SLURM and PMIx of two jobs',
      { ...SLURM, PMIX_RANK: '4' },
      'PMIX_RANK',
      '4',
      /slurm says rank 5 of 7/,
    ],
    [
      'a world size that mpirun did not start',
      { ...OPEN_MPI, WORLD_SIZE: '8' },
      'WORLD_SIZE',
      '8',
      /openmpi says that there are 2 processes/,
    ],
  ];

  it.each(cases)('%s', (_, variables, variable, value, message) => {
    const error = thrownBy(() => readLauncher(variables));
    expect(error).toBeInstanceOf(LaunchError);
    expect(error).toMatchObject({ code: 'LAUNCH', variable, value });
    expect((error as Error).message).toMatch(message);
  });
});

function thrownBy(body: () => unknown): unknown {
  try {
    return body();
  } catch (error) {
    return error;
  }
}
