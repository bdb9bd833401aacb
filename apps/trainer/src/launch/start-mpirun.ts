// Handles `--transport mpi` without a launcher: the command starts itself again under mpirun, with
// one process per rank on this machine. On several hosts mpirun or srun has to start the command.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { CommandContext } from '../commands/cli-command.js';
import { SignalError, UsageError } from '../errors.js';
import type { Interrupt } from '../interrupt.js';

/** Set for ranks whose mpirun a command has started, which is at the other end of their stdin. */
const COMMAND_VARIABLE = 'SHARDWEAVE_MPIRUN_COMMAND';

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
  // Open MPI 4 keeps the files of all of a user's jobs in one folder, and a job fails whose mpirun
  // makes that folder in the same moment as another's.
  const files = mkdtempSync(join(tmpdir(), 'shardweave-mpi-'));
  const child = spawn('mpirun', ['-np', String(ranks), process.execPath, entry, ...args], {
    // A terminal's signals would make it end its ranks within a second, and a broken output at
    // once; so it has a session of its own and writes through this process.
    detached: true,
    stdio: ['pipe', 'pipe', 'pipe'],
    env: { ...openMpiVariables(files), ...process.env, ...plain, [COMMAND_VARIABLE]: '1' },
  });
  child.stdout.setEncoding('utf8').on('data', (text: string) => out.write(text));
  child.stderr.setEncoding('utf8').on('data', (text: string) => err.write(text));
  interrupt.lead(() => true);
  // mpirun passes its input on to rank 0, which decides. A signal would be lost on ranks that it
  // has yet to start, and end those that do not listen yet.
  child.stdin.on('error', () => {}); // it has left
  interrupt.wrapUp.addEventListener('abort', () => child.stdin.write(wishText(interrupt.asked!)), {
    once: true,
  });
  const stop = () => child.kill('SIGTERM'); // it ends its ranks
  process.once('exit', stop);
  return await new Promise<number>((resolve, reject) => {
    child.on('error', (cause) => {
      const hint = 'Install Open MPI (Debian: openmpi-bin) or MPICH, or use --transport ws.';
      reject(new UsageError(`--transport mpi: mpirun can't be started. ${hint}`, { cause }));
    });
    child.on('close', (code) => {
      process.off('exit', stop);
      rmSync(files, { recursive: true, force: true });
      resolve(code === 0 ? 0 : (interrupt.asked?.exitCode ?? code ?? 1));
    });
  });
}

const wishText = ({ signal, by }: SignalError) => `${JSON.stringify([signal, by])}\n`;

/**
 * Lets rank 0 end as the command wishes that has started its mpirun, and where that is gone. To be
 * called on rank 0.
 */
export function hearCommand(
  { input, env }: Pick<CommandContext, 'input' | 'env'>,
  interrupt: Interrupt,
): void {
  if (env[COMMAND_VARIABLE] === undefined) {
    return;
  }
  const lines = createInterface({ input });
  lines.once('line', (line) => {
    const [signal, by] = JSON.parse(line) as [NodeJS.Signals, string];
    interrupt.ask(new SignalError(signal, by));
  });
  lines.once('close', () => interrupt.ask(new SignalError('SIGTERM', 'the end of the command')));
}

/**
 * Makes Open MPI allow what --transport ws allows: more ranks than cores, threads on any core, and
 * a job of the root user, whose files lie in a folder of their own.
 */
function openMpiVariables(files: string): Readonly<Record<string, string>> {
  return {
    OMPI_MCA_orte_tmpdir_base: files,
    OMPI_MCA_rmaps_base_oversubscribe: '1',
    OMPI_MCA_hwloc_base_binding_policy: 'none',
    ...(process.getuid?.() === 0
      ? { OMPI_ALLOW_RUN_AS_ROOT: '1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: '1' }
      : {}),
  };
}
