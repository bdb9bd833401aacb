// Leads a run from its configuration to its end, for the command and for programs alike: takes
// --out, starts the ranks, and starts them again after a failure. It prints by the terminal alone.

import { resolvedConfig } from './config/resolved-config.js';
import type { Dashboard } from './dashboard/dashboard.js';
import { savesOf, stepsIn } from './files/save-directory.js';
import type { Interrupt } from './interrupt.js';
import { runJob } from './launch/run-job.js';
import { runRestarting } from './launch/run-restarting.js';
import { RecordCommand } from './output/record-command.js';
import type { RunHistory } from './output/run-history.js';
import { RunMonitor } from './output/run-monitor.js';
import type { RunListener } from './output/run-recorder.js';
import { TensorBoardFile } from './output/tensorboard.js';
import type { Terminal } from './output/terminal.js';
import { requireDisk } from './plan/left-bytes.js';
import type { FinalWeights } from './rank/events.js';
import type { RunConfig } from './run-config.js';
import { askedEnd, type RunEnd, runEnd } from './run-end.js';
import { lockRun, sayDone } from './saves/run-lock.js';

export interface LeadOptions {
  /** The script that rank processes, threads and probes run. */
  readonly entry: string;
  readonly env: NodeJS.ProcessEnv;
  readonly terminal: Terminal;
  readonly interrupt: Interrupt;
  /** Whether this process shows and writes the run: under mpirun, rank 0's alone does. */
  readonly isFirst: boolean;
  /** What people should know before the run starts. */
  readonly warnings: readonly string[];
  readonly listeners: readonly RunListener[];
  /** Opens the run's page, where one is asked for. */
  readonly openPage?: (history: RunHistory) => Promise<Dashboard | undefined>;
}

/** What a run came to. */
export interface Led {
  readonly end: RunEnd;
  /** The step that was shown last; 0 where none was. */
  readonly step: number;
  /** The step of the newest save of a run that is not done; undefined where there is none. */
  readonly savedStep?: number | undefined;
  readonly final?: FinalWeights | undefined;
  /** What the job rejected with, where it did. */
  readonly error?: unknown;
  /** The sentence for a run that was at its end before. */
  readonly done?: string | undefined;
}

/**
 * Runs a job and what belongs to it. Resolves however the run ends.
 * @throws {UsageError} where --out can't be taken
 * @throws {DiskFullError} where a disk has no room for what the run leaves
 */
export async function leadRun(config: RunConfig, options: LeadOptions): Promise<Led> {
  const { entry, env, terminal, interrupt, isFirst } = options;
  const warning = isFirst ? await requireDisk(config) : undefined;
  await using _held = isFirst ? await lockRun(config) : undefined;
  const done = sayDone(config);
  if (done !== undefined) {
    const end = { why: 'done', kind: 'done', exitCode: 0, mayRestart: false } as const;
    return { end, step: config.steps, done };
  }
  let page: Dashboard | undefined;
  const pageListener: RunListener = {
    onRecord: (record) => page?.send(record),
    onEarlier: (record) => page?.tell(record),
  };
  const onWarning = (text: string) => monitor.handle({ type: 'warning', text });
  const { out, onStep: command } = config;
  using board =
    isFirst && config.tensorboard ? new TensorBoardFile({ out: out!, onWarning }) : undefined;
  await using recipient =
    isFirst && command !== undefined ? new RecordCommand({ command, env, onWarning }) : undefined;
  const listeners = [pageListener, ...options.listeners, board, recipient];
  const monitor = new RunMonitor(config, terminal, {
    listeners: listeners.filter((listener) => listener !== undefined),
    configText: (ready) => resolvedConfig(config, ready),
  });
  for (const text of isFirst ? [warning, ...options.warnings] : []) {
    if (text !== undefined) {
      onWarning(text);
    }
  }
  interrupt.lead((wish) => {
    if (!isFirst) {
      return true; // the first rank decides, and the others end with it
    }
    const isEarly = monitor.early !== undefined;
    const { isPatient, says } = askedEnd(wish, { config, step: monitor.steps, isEarly });
    terminal.note(says);
    return isPatient;
  });
  const { signal, wrapUp } = interrupt;
  const start = async (from: RunConfig) => {
    page ??= isFirst ? await options.openPage?.(monitor.history) : undefined;
    await runJob(from, {
      entry,
      onEvent: monitor.handle,
      onDoing: (what) => terminal.doing(what),
      onNote: (text) => terminal.note(text),
      onTokenized: terminal.tokenizing.bind(terminal),
      signal,
      wrapUp,
    });
  };
  let failed: unknown;
  const endOf = (error?: unknown) => {
    failed = error;
    const { early, misplaced } = monitor;
    return runEnd({ config, early, misplaced, error, asked: interrupt.asked });
  };
  const onRestart = (from: RunConfig, reason: string) => monitor.restart(from, reason);
  try {
    const end = await runRestarting(config, start, { endOf, onRestart });
    monitor.end(end);
    const savedStep = isFirst && end.kind !== 'done' ? newestSave(config) : undefined;
    return { end, step: monitor.steps, savedStep, final: monitor.final, error: failed };
  } finally {
    if (recipient !== undefined) {
      terminal.doing('waiting for the command of --on-step');
    }
    await page?.close();
  }
}

/** The step of the newest save; undefined where there is none. */
function newestSave({ out }: RunConfig): number | undefined {
  return out === undefined ? undefined : stepsIn(savesOf(out)).at(-1);
}
