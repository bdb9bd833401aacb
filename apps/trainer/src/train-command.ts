// The command `train`: flags to a run, the run to an exit code. The one place that listens to signals
// and prints.

import { type Launcher, readLauncher } from '@shardweave/collectives/launch';
import { CommanderError } from 'commander';
import {
  InterruptedError,
  type SignalError,
  ToldError,
  TrainerError,
  UsageError,
} from './errors.js';
import { type Flags, parseFlags } from './flags.js';
import { runJob } from './launch/run-job.js';
import { runRestarting } from './launch/run-restarting.js';
import { startMpirun } from './launch/start-mpirun.js';
import { listenToSignals } from './listen-to-signals.js';
import { RunMonitor } from './output/run-monitor.js';
import { Terminal } from './output/terminal.js';
import type { RankEvent } from './rank/events.js';
import { resolveConfig } from './resolve-config.js';
import type { RunConfig } from './run-config.js';
import { goOnLine } from './saves/go-on-line.js';
import { holdRun } from './saves/hold-run.js';

export interface TrainCommandOptions {
  /** The script that rank processes run. */
  readonly entry: string;
}

/** Runs the command with `args` (after the command's name) and resolves to its exit code. */
export async function trainCommand(
  args: readonly string[],
  options: TrainCommandOptions,
): Promise<number> {
  let terminal = new Terminal({
    out: process.stdout,
    err: process.stderr,
    isQuiet: false,
    env: process.env,
    steps: 0,
  });
  let monitor: RunMonitor | undefined;
  // A reader that has seen enough (| head) ends the run; nothing is left to tell anybody.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') {
      throw error;
    }
    process.exit(1);
  });
  const interrupt = listenToSignals();
  try {
    const flags = parseFlags(args, (text) => process.stdout.write(text));
    const place = flags.transport === 'mpi' ? readLauncher(process.env) : undefined;
    const config = await resolveConfig(withRanksOf(place, flags));
    if (flags.transport === 'mpi' && place === undefined) {
      const { signal } = interrupt;
      return await startMpirun({ ranks: config.ranks, entry: options.entry, args, signal });
    }
    // Under mpirun every process runs this; rank 0 is the one that shows and writes.
    const isFirst = place === undefined || place.rank === 0;
    await using _held = isFirst ? await holdRun(config) : undefined;
    const { steps } = config;
    const isQuiet = config.isQuiet || !isFirst;
    terminal = new Terminal({
      out: process.stdout,
      err: process.stderr,
      isQuiet,
      env: process.env,
      steps,
    });
    const shown = new RunMonitor(config, terminal);
    monitor = shown;
    const { signal, wrapUp } = interrupt;
    const onEvent = (event: RankEvent) => {
      if (event.type === 'step' && config.saveEvery !== undefined) {
        interrupt.allowWrapUp(); // before there is nothing to save
      }
      shown.handle(event);
    };
    const start = (from: RunConfig) =>
      runJob(from, {
        entry: options.entry,
        onEvent,
        onTokenized: (name, done, total) => terminal.progress(`tokens of ${name}`, done, total),
        signal,
        wrapUp,
      });
    const onRestart = (from: RunConfig, reason: string) => shown.restart(from, reason);
    await runRestarting(config, start, { onRestart, signals: [signal, wrapUp] });
    if (shown.stopped !== undefined) {
      const reason = wrapUp.reason as SignalError;
      shown.close(reason);
      terminal.note(
        `Stopped by ${reason.by} after step ${shown.steps}, saved in ${shown.stopped}.`,
      );
      terminal.note(`Go on with: ${goOnLine(args)}`);
      return reason.exitCode;
    }
    if (isFirst) {
      shown.finish();
    }
    return 0;
  } catch (error) {
    monitor?.close(error);
    if (error instanceof CommanderError && error.exitCode === 0) {
      return 0;
    }
    if (error instanceof ToldError) {
      return error.exitCode;
    }
    if (error instanceof InterruptedError) {
      terminal.note(`Stopped by Ctrl-C after step ${monitor?.steps ?? 0}.`);
      return error.exitCode;
    }
    if (error instanceof TrainerError) {
      terminal.failure(error.message);
      return error.exitCode;
    }
    terminal.failure(error instanceof Error ? (error.stack ?? error.message) : String(error));
    return 1;
  } finally {
    interrupt.dispose();
  }
}

/** mpirun and srun say how many ranks there are; --ranks is for where the command starts them. */
function withRanksOf(place: Launcher | undefined, flags: Flags): Flags {
  if (place === undefined) {
    return flags;
  }
  const { worldSize } = place;
  if (flags.ranks !== undefined && flags.ranks !== worldSize) {
    throw new UsageError(
      `--ranks ${flags.ranks}, but ${worldSize} were started. Leave it out: the launcher's number counts.`,
    );
  }
  return { ...flags, ranks: worldSize };
}
