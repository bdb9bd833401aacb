// A run as a push reads it from its directory: what it left, and what it tells about itself.

import { existsSync, statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { parse } from 'yaml';
import { UsageError } from '../errors.js';
import { RUN_FILES } from '../files/run-files.js';
import type { HubName } from '../hub/hub-name.js';
import { parseModelName } from '../hub/model-name.js';
import { readAdapter } from '../model/adapter-directory.js';
import { findWeights } from '../model/model-directory.js';
import { isPresetName } from '../model/presets.js';
import {
  configFor,
  readAdapterClasses,
  readTextModel,
  withTaskState,
} from '../model/text-model.js';
import { recordsOf } from '../output/read-run.js';
import type { RunSummary } from '../output/run-directory.js';
import type { StepLine } from '../output/run-records.js';
import { weightsOf } from '../saves/model-save.js';
import { stateOf } from '../saves/run-state.js';
import { resolveHead, type TaskHead } from '../task/task-head.js';
import { baseNameOf } from './public-text.js';

/** The values of a config.yaml, by its keys. */
export type ConfigValues = Readonly<Record<string, unknown>>;

export interface PushedRun {
  /** What it trained, and the directory of that. */
  readonly kind: 'model' | 'adapter';
  readonly path: string;
  readonly task: TaskHead['kind'];
  /** The labels of a classifier's adapters; undefined for others. */
  readonly labels: readonly string[] | undefined;
  /** The directory of the run. */
  readonly directory: string;
  readonly config: ConfigValues;
  /** The model that it began with, for people: its name on the Hub, or that of its directory. */
  readonly baseName: string;
  /** The same on the Hub; undefined for another, and where there were no weights to begin with. */
  readonly base: HubName | undefined;
  /** The lines before its first step, by their names. */
  readonly header: ReadonlyMap<string, string>;
  readonly steps: readonly StepLine[];
  /** Undefined for a run that did not come to its end. */
  readonly summary: RunSummary | undefined;
  /** When its last command began, in ms since the Unix epoch. */
  readonly begunMs: number;
}

/**
 * Reads the run in `from`.
 * @throws {UsageError} where there is none, or it has left neither model nor adapters
 */
export async function readPushedRun(from: string): Promise<PushedRun> {
  const directory = resolve(from);
  const { is } = stateOf(directory);
  const configPath = join(directory, RUN_FILES.config);
  if (is === 'none' || is === 'foreign' || !existsSync(configPath)) {
    throw new UsageError(
      `--from: expected a run, the --out of train with its ${RUN_FILES.config}, got ${from}.`,
    );
  }
  const config = (parse(await readFile(configPath, 'utf8')) ?? {}) as ConfigValues;
  const isWhole = config['lora-rank'] === undefined && config.adapter === undefined;
  const result = isWhole ? RUN_FILES.model : RUN_FILES.adapter;
  const path = join(directory, result);
  const isDone = is === 'done';
  requireResult(path, { from, result, configPath, isDone });
  // The runs of earlier versions name no task.
  const task = (config.task ?? 'lm') as TaskHead['kind'];
  await requireWhole(path, { kind: result, task, from });
  const records = recordsOf(directory);
  const header = records.filter((record) => record.type === 'header').at(-1);
  const begun = records.filter((record) => record.type === 'run').at(-1);
  const rows = new Map(header?.rows);
  const given = String(config.model ?? '');
  const name = isPresetName(given) ? undefined : parseModelName(given);
  return {
    kind: result,
    path,
    task,
    labels: isWhole ? undefined : (await readAdapterClasses(path))?.labels,
    directory,
    config,
    baseName: name?.repo ?? baseNameOf(given),
    base: rows.has('weights') ? undefined : name,
    header: rows,
    steps: records.filter((record) => record.type === 'step'),
    summary: isDone ? await summaryOf(directory) : undefined,
    begunMs: begun?.atMs ?? 0,
  };
}

/** @throws {UsageError} where the run has no result, or one of an earlier run of that --out */
function requireResult(
  path: string,
  run: {
    readonly from: string;
    readonly result: string;
    readonly configPath: string;
    readonly isDone: boolean;
  },
): void {
  const { from, result, configPath, isDone } = run;
  const isThere = existsSync(path);
  if (isThere && (isDone || statSync(path).mtimeMs >= statSync(configPath).mtimeMs)) {
    return;
  }
  const what = isThere ? `only the ${result}/ of an earlier run` : `no ${result}/ yet`;
  const way = isThere ? `, once ${path} is moved away` : '';
  throw new UsageError(
    `--from: ${from} has ${what}, for it did not come to its end. Go on with it by train --resume auto, or make one of its newest save${way}: shardweave convert --from ${from} --out ${join(from, result)}.`,
  );
}

/** @throws {UsageError} where weights are missing, cut off, or those of another shape */
async function requireWhole(
  path: string,
  { kind, task, from }: Pick<PushedRun, 'kind' | 'task'> & { readonly from: string },
): Promise<void> {
  try {
    if (kind === 'adapter') {
      await readAdapter(path);
      return;
    }
    const { config, own } = await readTextModel(findWeights(path, '--from'));
    const modelConfig = configFor(task, config);
    const head = resolveHead({ task, pooling: undefined }, modelConfig, own);
    const model = { kind: 'directory', path, hasWeights: true } as const;
    await withTaskState(path, { modelConfig, head }, async (state) => {
      await weightsOf(state, { model, modelConfig, head });
    });
  } catch (cause) {
    if (!(cause instanceof UsageError)) {
      throw cause;
    }
    const why = cause.message.replace(/^--\w+: /, '');
    throw new UsageError(`--from: what ${from} has left can't be pushed. ${why}`, { cause });
  }
}

async function summaryOf(directory: string): Promise<RunSummary> {
  return JSON.parse(await readFile(join(directory, RUN_FILES.summary), 'utf8')) as RunSummary;
}
