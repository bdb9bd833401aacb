// Step `mpi` provides an mpirun for the tests of the mpi transport. It uses one that it finds, or
// installs the Open MPI of Debian or Ubuntu by apt under the rules of system-packages.mjs. Without
// one those tests skip and give the reason.
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { announce } from './step.mjs';
import { installPackages } from './system-packages.mjs';

/** The path of `mpirun`; undefined where there is none. */
export function findMpirun() {
  const folders = (process.env.PATH ?? '').split(delimiter).filter(Boolean);
  return folders.map((folder) => join(folder, 'mpirun')).find((path) => existsSync(path));
}

/** @returns {{environment: Record<string, string>}} variables for the test process */
export function mpiForTests() {
  if (findMpirun()) {
    return { environment: {} };
  }
  const refusal = installPackages({ step: 'mpi', packages: ['openmpi-bin'] });
  if (findMpirun()) {
    return { environment: {} };
  }
  const reason = `no mpirun was found, and apt was not used: ${refusal ?? 'it installed none'}`;
  announce('mpi', `its tests will skip: ${reason}`);
  return { environment: { SHARDWEAVE_NO_MPI: reason } };
}
