// Step `mpi`: an mpirun for the tests of the mpi transport. A found one is used; Debian's and
// Ubuntu's Open MPI is installed by apt under the rules of system-packages.mjs; without one those
// tests skip and name the reason.
import { existsSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { announce } from './step.mjs';
import { installPackages } from './system-packages.mjs';

/** The path of `mpirun`, or `undefined`. */
export function findMpirun() {
  const folders = (process.env.PATH ?? '').split(delimiter).filter(Boolean);
  return folders.map((folder) => join(folder, 'mpirun')).find((path) => existsSync(path));
}

/** @returns {{environment: Record<string, string>}} for the test process */
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
