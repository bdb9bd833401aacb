// The command `train`: flags to a run, the run to an exit code. The one place that listens to signals
// and prints.

import { CommanderError } from 'commander';
import { InterruptedError, SignalError, TrainerError } from './errors.js';
import { parseFlags } from './flags.js';
import { runJob } from './launch/run-job.js';
import { refuseUsedDirectory } from './output/run-directory.js';
import { RunMonitor } from './output/run-monitor.js';
import { Terminal } from './output/terminal.js';
import { resolveConfig } from './resolve-config.js';

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
    if (error.code !== 'EPIPE') throw error;
    process.exit(1);
  });
  const interrupt = listenToSignals();
  try {
    const flags = parseFlags(args, (text) => process.stdout.write(text));
    const config = await resolveConfig(flags);
    if (config.outDir !== undefined) refuseUsedDirectory(config.outDir);
    const { isQuiet, steps } = config;
    terminal = new Terminal({
      out: process.stdout,
      err: process.stderr,
      isQuiet,
      env: process.env,
      steps,
    });
    monitor = new RunMonitor(config, terminal);
    const { signal } = interrupt;
    await runJob(config, { entry: options.entry, onEvent: monitor.handle, signal });
    monitor.finish();
    return 0;
  } catch (error) {
    monitor?.close();
    if (error instanceof CommanderError && error.exitCode === 0) return 0;
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

/** A second signal doesn't wait: rank processes leave with this one. */
function listenToSignals(): { readonly signal: AbortSignal; dispose(): void } {
  const stop = new AbortController();
  const onSignal = (signal: NodeJS.Signals) => {
    const reason =
      signal === 'SIGINT' ? new InterruptedError('stopped by Ctrl-C') : new SignalError(signal);
    if (stop.signal.aborted) process.exit(reason.exitCode);
    stop.abort(reason);
  };
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'] as const;
  for (const signal of signals) process.on(signal, onSignal);
  return {
    signal: stop.signal,
    dispose: () => {
      for (const signal of signals) process.off(signal, onSignal);
    },
  };
}
