// Computes steps of a run again as the run did, with its strategy, its ranks and its transport, and
// leaves nothing behind: no record, no results, and nothing in the run's directory.

import { accessSync, constants, existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cacheDirectory, TokenCache } from '../data/token-cache.js';
import { DivergedError, UsageError } from '../errors.js';
import { pathOf, savesOf } from '../files/save-directory.js';
import { runJob } from '../launch/run-job.js';
import { textHash } from '../own-model/module-text.js';
import type { RankEvent, StepMetrics } from '../rank/events.js';
import type { Again, PreparedRun, RunConfig, TokenFiles } from '../run-config.js';
import { type FindTokensOptions, findTokens } from './find-tokens.js';
import type { AgainPlan, Stretch } from './plan-again.js';

export interface ComputeAgainOptions extends Omit<FindTokensOptions, 'cache' | 'signal'> {
  /** The steps after which the state is hashed. */
  readonly hashAt: readonly number[];
  /** On how many ranks, where the run has --gradient-groups. Default: as many as it had. */
  readonly ranks?: number | undefined;
  /** Called with each step; the computation ends after one for which it is false. */
  readonly onStep: (metrics: StepMetrics) => boolean;
  /** Called with the tokens that were found for some of the steps. */
  readonly onTokens?: (tokens: TokenFiles) => void;
  /** Called with what else the ranks tell. */
  readonly onEvent?: (event: RankEvent) => void;
  /** What the last stretch does beside its steps. */
  readonly last?: Pick<Again, 'rowsOf'>;
  readonly signal: AbortSignal;
  readonly env: NodeJS.ProcessEnv;
}

/** The reason of a computation that has seen enough. */
const ENOUGH = new Error('enough steps');

/**
 * Computes all steps of a plan, one after the other.
 * @throws {UsageError} where what the run had is not there: its model, its data, or its devices
 */
export async function computeAgain(plan: AgainPlan, options: ComputeAgainOptions): Promise<void> {
  const { stretches, from } = plan;
  let place: string | undefined;
  let resume = from.path;
  try {
    for (const [i, stretch] of stretches.entries()) {
      const isLast = i === stretches.length - 1;
      place ??= isLast ? undefined : await mkdtemp(join(tmpdir(), 'shardweave-again-'));
      const out = isLast ? undefined : place;
      if (!(await computeStretch(stretch, { ...options, resume, out, isLast }))) {
        return;
      }
      resume = out && pathOf(savesOf(out), stretch.last);
    }
  } finally {
    if (place !== undefined) {
      await rm(place, { recursive: true, force: true });
    }
  }
}

/** Resolves with whether all steps were computed. */
async function computeStretch(
  { last, start }: Stretch,
  options: ComputeAgainOptions & {
    readonly resume: string | undefined;
    /** A directory for the save that the next stretch goes on from. */
    readonly out: string | undefined;
    readonly isLast: boolean;
  },
): Promise<boolean> {
  const { resume, out, isLast, hashAt, entry, env, onStep, onEvent } = options;
  const { tiles } = start;
  const config = onRanks(start.config, options.ranks);
  requireModel(config);
  const directory = cacheOf(config, env);
  await using cache = await TokenCache.open(directory);
  const tokens = await findTokens({ ...config, cache: directory }, { ...options, cache });
  options.onTokens?.(tokens);
  const again: Again = {
    until: last,
    hashAt,
    tokens,
    tiles: tiles as Again['tiles'],
    ...(isLast && options.last),
  };
  const enough = new AbortController();
  const signal = AbortSignal.any([options.signal, enough.signal]);
  let hasDiverged = false;
  try {
    await runJob(asAgain({ ...config, cache: directory }, { again, resume, out }), {
      entry,
      signal,
      onEvent: (event) => {
        onEvent?.(event);
        if (event.type !== 'step' || enough.signal.aborted) {
          return;
        }
        hasDiverged = !Number.isFinite(event.metrics.loss) && !event.metrics.skipped;
        if (!onStep(event.metrics)) {
          enough.abort(ENOUGH);
        }
      },
    });
    return true;
  } catch (error) {
    const isEnd = error === ENOUGH || (error instanceof DivergedError && hasDiverged);
    if (enough.signal.aborted || isEnd) {
      return false; // the record ends with such a step, too
    }
    throw error;
  }
}

/** The cache of a run, or that of this machine where the run's is gone or somebody else's alone. */
export function cacheOf({ cache }: Pick<PreparedRun, 'cache'>, env: NodeJS.ProcessEnv): string {
  try {
    accessSync(cache, constants.R_OK | constants.X_OK);
    return cache;
  } catch {
    return cacheDirectory(undefined, env);
  }
}

/** @throws {UsageError} for other ranks than a run's bits allow */
function onRanks(config: PreparedRun, ranks = config.ranks): PreparedRun {
  const { gradientGroups, strategy } = config;
  if (ranks !== config.ranks && (gradientGroups ?? 0) < ranks) {
    throw new UsageError(
      gradientGroups === undefined
        ? `--ranks ${ranks}: the run had ${config.ranks}, and its bits depend on that. Leave --ranks out; runs with --gradient-groups are free of it.`
        : `--ranks ${ranks}: the run has --gradient-groups ${gradientGroups}, so at most as many ranks. Give fewer.`,
    );
  }
  const device = Array.from({ length: ranks }, (_, rank) => config.device[rank % config.ranks]!);
  return {
    ...{ ...config, ranks, device },
    strategy: strategy === 'single' && ranks > 1 ? 'ddp' : strategy,
  };
}

/** The run without all that it leaves, asks for or is asked for. */
function asAgain(config: PreparedRun, own: Pick<RunConfig, 'again' | 'resume' | 'out'>): RunConfig {
  const { offloadDir, strategy, cpuOffload, transport } = config;
  return {
    ...config,
    // A job under mpirun has the bits of one over sockets, and needs no launcher there.
    transport: transport === 'mpi' ? 'ws' : transport,
    // What rested on disk rests in host memory.
    offloadDir: undefined,
    cpuOffload: strategy === 'fsdp' && offloadDir !== undefined ? true : cpuOffload,
    final: 'last',
    ...{ saveEvery: undefined, timeLimit: undefined, patience: undefined, maxRestarts: 0 },
    ...{ evalTask: undefined, evalAnswers: undefined },
    ...{ dashboard: undefined, check: false, logEvery: undefined, sampleEvery: undefined },
    ...{ tensorboard: false, onStep: undefined, quiet: true, trace: undefined, fresh: false },
    injectDelayMs: 0,
    hashEvery: undefined,
    ...own,
  };
}

/** @throws {UsageError} where the model's files are gone, or a module has another text */
function requireModel({ model }: PreparedRun): void {
  if (model.kind === 'preset') {
    return;
  }
  if (!existsSync(model.path)) {
    throw new UsageError(
      `--model: ${model.path}, which the run began with, is not there. Put it back where it was.`,
    );
  }
  if (model.kind === 'module' && textHash(model.path) !== model.sha256) {
    throw new UsageError(
      `--model: the text of ${model.path} is not what the run had (sha256 ${model.sha256}). Put it back as it was.`,
    );
  }
}
