// The command `train`: turns flags into a run, and the run into an exit code.

import { type Launcher, readLauncher } from '@shardweave/collectives/launch';
import { TRAIN } from '../config/flags.js';
import { resolveConfig } from '../config/resolve-config.js';
import { runWarnings } from '../config/run-warnings.js';
import type { Dashboard } from '../dashboard/dashboard.js';
import { TOKEN_VARIABLE } from '../dashboard/token.js';
import { UsageError } from '../errors.js';
import { DEFAULT_LR, type Flags } from '../flags/train-flags.js';
import { hearCommand, startMpirun } from '../launch/start-mpirun.js';
import { leadRun } from '../lead-run.js';
import type { RunHistory } from '../output/run-history.js';
import { Terminal } from '../output/terminal.js';
import type { RunConfig } from '../run-config.js';
import { lastLines } from '../run-end.js';
import { resumeCommand } from '../saves/resume-command.js';
import type { CommandContext } from './cli-command.js';
import { defineCommand } from './define-command.js';

/** The command `train`. */
export const train = defineCommand({ ...TRAIN, run });

async function run(flags: Flags, context: CommandContext): Promise<number> {
  const { out, err, env, entry, args } = context;
  const interrupt = context.listen();
  const { signal } = interrupt;
  const place = flags.transport === 'mpi' ? readLauncher(env) : undefined;
  // Under mpirun every process gets here; rank 0 is the one that shows and writes.
  const isFirst = place === undefined || place.rank === 0;
  if (place?.rank === 0) {
    hearCommand(context, interrupt);
  }
  const config = await resolve(withRanksOf(place, flags), { ...context, isFirst, signal });
  if (flags.transport === 'mpi' && place === undefined) {
    return await startMpirun({ ...context, ranks: config.ranks, interrupt });
  }
  const { steps, logEvery } = config;
  const isQuiet = config.quiet || !isFirst;
  const terminal = new Terminal({ out, err, env, steps, logEvery, isQuiet });
  const led = await leadRun(config, {
    entry,
    env,
    terminal,
    interrupt,
    isFirst,
    warnings: runWarnings(flags, config),
    listeners: [],
    openPage: (history) => openDashboard(config, { terminal, history, env }),
  });
  const { end, step, savedStep, done } = led;
  if (done !== undefined) {
    terminal.note(done);
  }
  const changed = end.why === 'diverged' ? { lr: smallerRate(config) } : {};
  const goOn = resumeCommand(args, env, changed);
  for (const line of lastLines(end, { config, asked: interrupt.asked, step, savedStep, goOn })) {
    terminal.note(line);
  }
  if (end.failure !== undefined) {
    terminal.failure(end.failure);
  }
  return end.exitCode;
}

/** The run that the flags describe, with the progress of tokenizing where --epochs needs it. */
async function resolve(
  flags: Flags,
  options: CommandContext & { readonly isFirst: boolean; readonly signal: AbortSignal },
): Promise<RunConfig> {
  const { out, err, env, entry, signal, isFirst } = options;
  const isQuiet = flags.quiet || !isFirst;
  const terminal = new Terminal({ out, err, env, steps: 0, isQuiet });
  const onTokenized = terminal.tokenizing.bind(terminal);
  try {
    return await resolveConfig(flags, { entry, signal, onTokenized });
  } finally {
    terminal.close();
  }
}

/** A rate with which a run that has diverged is likely to go well. */
function smallerRate({ lr }: RunConfig): number {
  return Math.min(Number((lr / 10).toPrecision(2)), DEFAULT_LR.small);
}

/**
 * Opens the page of the run, where it is asked for. Its address is printed even when quiet, because
 * nobody could find the page without it.
 */
async function openDashboard(
  { dashboard: asked, quiet }: RunConfig,
  parts: {
    readonly terminal: Terminal;
    readonly history: RunHistory;
    readonly env: NodeJS.ProcessEnv;
  },
): Promise<Dashboard | undefined> {
  const { terminal, history, env } = parts;
  if (asked === undefined) {
    return undefined;
  }
  if (quiet && !env[TOKEN_VARIABLE]) {
    throw new UsageError(
      `--dashboard prints its address, and --quiet prints nothing. Leave --quiet out, or set ${TOKEN_VARIABLE}.`,
    );
  }
  const { Dashboard } = await import('../dashboard/dashboard.js');
  const dashboard = await Dashboard.open({
    port: asked === true ? 'default' : asked,
    history,
    env,
  });
  terminal.note(`dashboard ${dashboard.url}`);
  return dashboard;
}

/**
 * The flags with the number of ranks that mpirun or srun gives; --ranks is for ranks that the
 * command starts itself.
 */
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
