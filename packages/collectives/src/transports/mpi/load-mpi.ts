// Finds the machine's MPI and koffi, which calls it. Both are optional; where one is missing, the
// error tells what to install.

import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';
import { MPICH_ABI, openMpiAbi } from './mpi-abi.js';
import { MpiLibrary } from './mpi-library.js';

/** The names of the libraries: Open MPI 2 to 5; MPICH, Intel MPI and MVAPICH; Debian's MPICH. */
const OPEN_MPI = ['libmpi.so.40', 'libmpi.so.20', 'libmpi.40.dylib'];
const MPICH = ['libmpi.so.12', 'libmpich.so.12', 'libmpi.12.dylib'];

export interface LoadMpiOptions {
  /**
   * The file name or path of the library. Default: it is searched for, the launcher's own kind
   * first.
   */
  readonly library?: string;
  readonly env: Readonly<Record<string, string | undefined>>;
}

/** Loads the library. Throws an Error that tells what is missing. */
export function loadMpi(options: LoadMpiOptions): MpiLibrary {
  const koffi = loadKoffi();
  const names = options.library === undefined ? candidates(options.env) : [options.library];
  for (const name of names) {
    const library = tryLoad(koffi, name);
    if (library !== undefined) {
      return new MpiLibrary(library, abiOf(library));
    }
  }
  throw new Error(
    `no MPI library was found (tried ${names.join(', ')}). Install one (Debian: openmpi-bin), ` +
      'or name its file by the option `library`.',
  );
}

/**
 * The names to try, in their order: a process that mpirun of one MPI has started as a rank must not
 * load the other MPI.
 */
function candidates(env: LoadMpiOptions['env']): string[] {
  const isHydra = env.OMPI_COMM_WORLD_SIZE === undefined && env.PMI_RANK !== undefined;
  return isHydra ? [...MPICH, ...OPEN_MPI] : [...OPEN_MPI, ...MPICH];
}

function abiOf(library: Koffi.LibraryHandle) {
  try {
    return openMpiAbi((name) => library.symbol(name, 'void') as bigint);
  } catch {
    return MPICH_ABI;
  }
}

function tryLoad(koffi: typeof Koffi, name: string): Koffi.LibraryHandle | undefined {
  try {
    return koffi.load(name);
  } catch {
    return undefined;
  }
}

function loadKoffi(): typeof Koffi {
  try {
    return createRequire(import.meta.url)('koffi');
  } catch (error) {
    throw new Error('MPI is called through the optional package koffi. Install it: npm i koffi.', {
      cause: error,
    });
  }
}
