// What a save tells of its run, beside weights and optimizer state: all that a run needs to go on
// as if it had never stopped. Random numbers are not part of it, because masks depend only on seed,
// step and row.

import { statSync } from 'node:fs';
import { basename } from 'node:path';
import type { GradScalerState } from '@shardweave/nn';
import type { MatmulChoiceTable } from '@shardweave/tensor-core/webgpu';
import { dataParts, filesOf } from '../data/data-parts.js';
import { UsageError } from '../errors.js';
import { keyOf } from '../flags/flag.js';
import { FLAG_NAMES, FLAGS, type Flags } from '../flags/train-flags.js';
import type { BaseModel } from '../model/base-model.js';
import type { Best } from '../rank/events.js';
import { decidedFlags, type PreparedRun, type RunConfig, type TokenPart } from '../run-config.js';

/** The most files that a message names. */
const MOST_FILES = 5;

/** The record of a run in its save, as JSON. */
export interface SavedRun {
  /** The number of steps that are done, which is the place in the data. */
  readonly step: number;
  /** The number of steps that changed the parameters, which is the place in the schedule. */
  readonly updates: number;
  /** The state of the loss scaler, with --precision fp16. */
  readonly scaler?: GradScalerState | undefined;
  /** The loss of the evaluation after this very step. */
  readonly validLoss?: number | undefined;
  /** The best evaluation so far, whose save is kept. */
  readonly best?: Best | undefined;
  /** What `validLoss` and `best` are losses on, as evaluatedOn gives it. */
  readonly valid?: string | undefined;
  /**
   * The numeric classes of all ranks, each once: the same classes on as many ranks go on bit by
   * bit.
   */
  readonly numericClasses: readonly string[];
  /** The hash of weights and optimizer state, with --hash-every. */
  readonly hash?: string | undefined;
  /**
   * Tables of tiles for products on GPUs, by what they were measured on: the adapter and its
   * kernels. A run that goes on takes them.
   */
  readonly tiles?: Readonly<Record<string, MatmulChoiceTable>> | undefined;
  /** The model that the adapters were trained beside. */
  readonly base?: BaseModel | undefined;
  /**
   * A hash of the data's bytes and of the tokenizer; absent for a model's weights, which no run has
   * begun with.
   */
  readonly tokens?: string;
  readonly config: Partial<PreparedRun>;
}

/** A hash of what is trained on, as tokens; of a mixture that of each part, with its share. */
export function tokensOf({ tokens }: Pick<PreparedRun, 'tokens'>): string {
  return hashOf(tokens.train);
}

function hashOf(parts: readonly TokenPart[]): string {
  const hashes = parts.map(({ directory, share }) => [basename(directory), share.toPrecision(12)]);
  return hashes.map((own) => (parts.length === 1 ? own[0] : own.join(':'))).join();
}

/** What is evaluated: data, by a hash as of tokensOf, or the part of it; undefined for nothing. */
export function evaluatedOn({
  tokens,
  validFraction,
  evalBatches,
}: Pick<PreparedRun, 'tokens' | 'validFraction' | 'evalBatches'>): string | undefined {
  const part = validFraction === undefined ? undefined : `${validFraction} of the data`;
  const data = tokens.valid === undefined ? part : hashOf(tokens.valid);
  return data && `${data}, ${evalBatches} batches`;
}

/**
 * What a run that goes on keeps of the evaluations before. Losses on other data than its own can't
 * be compared; a run without evaluations keeps them for one that has some again.
 */
export function evaluationsOf(
  record: SavedRun,
  config: PreparedRun,
): Pick<SavedRun, 'validLoss' | 'best' | 'valid'> {
  const own = evaluatedOn(config);
  const { valid, validLoss, best } = record;
  return own === undefined || own === valid ? { valid, validLoss, best } : { valid: own };
}

/** Whether convert made the save from a model directory, and not a run. */
export function isModelAlone({ tokens }: SavedRun): boolean {
  return tokens === undefined;
}

/** The flags that are compared by what the model and the data have in them. */
const BY_CONTENT: readonly (keyof Flags)[] = ['model', 'dropout', 'data'];

/** The flags of a class whose values in two runs differ, with both values. */
function differencesOf(
  atResume: 'fixed' | 'told',
  saved: Partial<RunConfig>,
  own: RunConfig,
): { readonly flag: string; readonly was: string; readonly is: string }[] {
  const [before, now] = [decidedFlags(saved), decidedFlags(own)];
  return FLAG_NAMES.filter((name) => FLAGS[name].atResume === atResume)
    .filter((name) => !BY_CONTENT.includes(name))
    .map((name) => ({
      flag: `--${keyOf(name)}`,
      was: textOf(before[name]),
      is: textOf(now[name]),
    }))
    .filter(({ was, is }) => was !== is);
}

/** The flags that decide what steps come to and whose values differ, with both values. */
export function decidingDifferences(
  one: Partial<RunConfig>,
  other: RunConfig,
): ReturnType<typeof differencesOf> {
  return [...differencesOf('fixed', one, other), ...differencesOf('told', one, other)];
}

/** The flags that decide what steps come to, whatever the number of ranks is, as text. */
export function decidingText(config: RunConfig): string {
  const flags = decidedFlags(config);
  const others: readonly (keyof Flags)[] = [...BY_CONTENT, 'ranks', 'valid'];
  const named = FLAG_NAMES.filter(
    (name) => FLAGS[name].atResume !== 'free' && !others.includes(name),
  );
  return JSON.stringify(named.map((name) => [name, flags[name]]));
}

/**
 * Refuses a save of another run.
 * @param base the base model of this run, with adapters
 * @throws {UsageError} naming the first field that differs, and both of its values
 */
export function requireSameRun(
  { path, record }: { readonly path: string; readonly record: SavedRun },
  config: PreparedRun,
  base: BaseModel | undefined,
): void {
  const refuse = (field: string, flag: string, saved: unknown, given: unknown): never => {
    throw new UsageError(
      `--resume: ${path} was saved with another ${field}: ${textOf(saved)}, got ${textOf(given)}. Give ${flag} as it was, or start a new run with another --out.`,
    );
  };
  // Another task has another shape of the model, too, which would be told in the model's own words.
  const wasTask = record.config.head?.kind ?? config.head.kind;
  if (wasTask !== config.head.kind) {
    refuse('--task', '--task', wasTask, config.head.kind);
  }
  const savedModel: Readonly<Record<string, unknown>> = { ...record.config.modelConfig };
  const ownModel: Readonly<Record<string, unknown>> = { ...config.modelConfig };
  // A module is told by the names and shapes in its save, once it is loaded.
  const isModule = [savedModel, ownModel].every(({ model_type }) => model_type === 'module');
  const keys = isModule ? [] : [...Object.keys(savedModel), ...Object.keys(ownModel)];
  for (const key of new Set(keys)) {
    if (textOf(savedModel[key]) !== textOf(ownModel[key])) {
      refuse(`model (${key})`, '--model and --dropout', savedModel[key], ownModel[key]);
    }
  }
  if (isModelAlone(record)) {
    return;
  }
  for (const { flag, was, is } of differencesOf('fixed', record.config, config)) {
    refuse(flag, flag, was, is);
  }
  if (record.base?.sha256 !== base?.sha256) {
    refuse('base model', '--model', describeBase(record.base), describeBase(base));
  }
  if (record.tokens !== tokensOf(config)) {
    if (textOf(record.config.data) === textOf(config.data)) {
      throw new UsageError(
        `--resume: ${path} was saved with other data: what ${textOf(config.data)} names has changed since.${newerFiles(config.data, path)} Put it back as it was, or begin a new run with these weights: --init-from ${path} and another --out.`,
      );
    }
    const saved = `${textOf(record.config.data)} (${record.tokens})`;
    refuse('data', '--data', saved, `${textOf(config.data)} (${tokensOf(config)})`);
  }
}

/** A sentence about files of data that are newer than a save; those that are gone are unknown. */
function newerFiles(data: string | undefined, save: string): string {
  const savedMs = changedMs(save);
  const files = dataParts(data).flatMap((part) => filesOf(part, '--data'));
  const newer = files.filter((name) => name !== undefined && changedMs(name) > savedMs);
  const more = newer.length > MOST_FILES ? ` and ${newer.length - MOST_FILES} more` : '';
  return newer.length === 0
    ? ' None of its files is newer than the save, so one may be gone.'
    : ` New or changed: ${newer.slice(0, MOST_FILES).join(', ')}${more}.`;
}

function changedMs(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.ctimeMs ?? 0; // a copy may keep its mtime
}

/** Texts such as `--lr 0.1 (was 0.2)` for everything that differs, and may. */
export function changesOf(record: SavedRun, config: PreparedRun): string[] {
  const told = isModelAlone(record) ? [] : differencesOf('told', record.config, config);
  // A step of groups is the same on any number of ranks.
  const isFree = (flag: string) => config.gradientGroups !== undefined && flag === '--ranks';
  return told
    .filter(({ flag }) => !isFree(flag))
    .map(({ flag, was, is }) => `${flag} ${is} (was ${was})`);
}

/** A sentence where the text of a module that people have written is not the one of the save. */
export function moduleNotes({ config: saved }: SavedRun, { model }: RunConfig): string[] {
  const was = saved.model?.kind === 'module' ? saved.model : undefined;
  return model.kind !== 'module' || was === undefined || was.sha256 === model.sha256
    ? []
    : [
        `The text of --model ${model.path} is not that of the save (sha256 ${was.sha256.slice(0, 12)}, now ${model.sha256.slice(0, 12)}): the steps to come are those of the new text.`,
      ];
}

function describeBase(base: BaseModel | undefined): string {
  return base === undefined ? 'none' : `${base.path} (${base.sha256})`;
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : (JSON.stringify(value) ?? 'none');
}

/**
 * The `extra` of a run's save: its record as JSON has it, without the options that are not given. A
 * loss that is not finite becomes null.
 */
export function extraOf(run: SavedRun): Readonly<Record<string, unknown>> {
  return { run: JSON.parse(JSON.stringify(run)) };
}
