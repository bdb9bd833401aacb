// Handles `--transport mpi` without a launcher: the command starts itself again under mpirun, with
// one process per rank on this machine. On several hosts mpirun or srun has to start the command.

import { spawn } from 'node:child_process';
import { TrainerError, UsageError } from '../errors.js';

export interface MpirunOptions {
  readonly ranks: number;
  /** The command's script and its arguments. */
  readonly entry: string;
  readonly args: readonly string[];
  /**
   * Whether the output reaches a terminal. Ranks can't tell, because mpirun gives each a terminal
   * of its own.
   */
  readonly isTerminal: boolean;
  /** Ends the job. */
  readonly signal: AbortSignal;
}

/**
 * Resolves to the exit code of mpirun, which is that of the first rank that failed, or to the
 * signal's. The ranks have reported why.
 */
export async function startMpirun(options: MpirunOptions): Promise<number> {
  const { ranks, entry, args, isTerminal, signal } = options;
  signal.throwIfAborted();
  const child = spawn('mpirun', ['-np', String(ranks), process.execPath, entry, ...args], {
    stdio: 'inherit',
    env: { ...openMpiVariables(), ...process.env, ...(isTerminal ? {} : { NO_COLOR: '1' }) },
  });
  const stop = () => child.kill('SIGTERM'); // it ends its ranks
  signal.addEventListener('abort', stop, { once: true });
  try {
    return await new Promise<number>((resolve, reject) => {
      child.on('error', (cause) => {
        const hint = 'Install Open MPI (Debian: openmpi-bin) or MPICH, or use --transport ws.';
        reject(new UsageError(`--transport mpi: mpirun can't be started. ${hint}`, { cause }));
      });
      child.on('exit', (code) => {
        const reason: unknown = signal.reason;
        resolve(reason instanceof TrainerError ? reason.exitCode : (code ?? 1));
      });
    });
  } finally {
    signal.removeEventListener('abort', stop);
  }
}

/**
 * Makes Open MPI allow what --transport ws allows: more ranks than cores, threads on any core, and
 * a job of the root user.
 */
function openMpiVariables(): Readonly<Record<string, string>> {
  return {
    OMPI_MCA_rmaps_base_oversubscribe: '1',
    OMPI_MCA_hwloc_base_binding_policy: 'none',
    ...(process.getuid?.() === 0
      ? { OMPI_ALLOW_RUN_AS_ROOT: '1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: '1' }
      : {}),
  };
}
