// Handles `--transport mpi` without a launcher: the command starts itself again under mpirun, with
// one process per rank on this machine. On several hosts mpirun or srun has to start the command.

import { spawn } from 'node:child_process';
import type { CommandContext } from '../commands/cli-command.js';
import { UsageError } from '../errors.js';
import type { Interrupt } from '../interrupt.js';

export interface MpirunOptions extends Pick<CommandContext, 'out' | 'err' | 'entry' | 'args'> {
  readonly ranks: number;
  readonly interrupt: Interrupt;
}

/**
 * Resolves to the exit code of mpirun, which is that of the first rank that failed, or to the
 * signal's. The ranks have reported why.
 */
export async function startMpirun(options: MpirunOptions): Promise<number> {
  const { ranks, entry, args, out, err, interrupt } = options;
  interrupt.signal.throwIfAborted();
  // Ranks can't tell whether they reach a terminal: mpirun gives each one of its own.
  const plain = out.isTTY === true ? {} : { NO_COLOR: '1' };
  const child = spawn('mpirun', ['-np', String(ranks), process.execPath, entry, ...args], {
    // A terminal's signals would make it end its ranks within a second, and a broken output at
    // once; so it has a session of its own and writes through this process.
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...openMpiVariables(), ...process.env, ...plain },
  });
  child.stdout.setEncoding('utf8').on('data', (text: string) => out.write(text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => err.write(text));
  interrupt.lead(() => true);
  // mpirun passes this signal on, and rank 0 decides; see command-process.ts.
  interrupt.wrapUp.addEventListener('abort', () => child.kill('SIGUSR2'), { once: true });
  const stop = () => child.kill('SIGTERM'); // it ends its ranks
  process.once('exit', stop);
  return await new Promise<number>((resolve, reject) => {
    child.on('error', (cause) => {
      const hint = 'Install Open MPI (Debian: openmpi-bin) or MPICH, or use --transport ws.';
      reject(new UsageError(`--transport mpi: mpirun can't be started. ${hint}`, { cause }));
    });
    child.on('close', (code) => {
      process.off('exit', stop);
      resolve(code === 0 ? 0 : (interrupt.asked?.exitCode ?? code ?? 1));
    });
  });
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
