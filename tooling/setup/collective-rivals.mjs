// Provides what the bench of collectives is compared with, from Debian's packages: Gloo in PyTorch,
// and Open MPI. The bench leaves out what is missing and says so, so a refusal here is no failure.
import { spawnSync } from 'node:child_process';
import { announce } from './step.mjs';
import { installPackages } from './system-packages.mjs';

const STEP = 'collective-rivals';
const PACKAGES = ['python3-torch', 'libopenblas0-pthread', 'openmpi-bin', 'python3-mpi4py'];

/** Looks for the Python modules without importing them, which would take seconds. */
const LOOK = `
import importlib.util, shutil, sys
found = all(importlib.util.find_spec(name) for name in ("torch", "mpi4py"))
sys.exit(0 if found and shutil.which("mpirun") else 1)`;

export function installCollectiveRivals() {
  if (spawnSync('/usr/bin/python3', ['-c', LOOK], { stdio: 'ignore' }).status === 0) {
    return;
  }
  const refusal = installPackages({ step: STEP, packages: PACKAGES });
  if (refusal) {
    announce(STEP, `Gloo and Open MPI may be left out: ${refusal}`);
  }
}
