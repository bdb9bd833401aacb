// Decides which save a run goes on from: the newest whole one, the same on all ranks. A damaged one
// is passed over for the one before it, and kept under another name.

import { existsSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { CheckpointError, INDEX_FILE } from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { exchangeTexts, type ProcessGroup } from '@shardweave/collectives';
import { StateDictError } from '@shardweave/nn';
import { UsageError } from '../errors.js';
import {
  type FoundSave,
  findSaves,
  isDamage,
  isSaveOf,
  readSave,
  savesOf,
  setAside,
  type UnreadableSave,
} from '../files/save-directory.js';
import type { BaseModel } from '../model/base-model.js';
import { isOfAnotherRank, type LoadedParts, loadParts } from '../rank/strategies/model-saves.js';
import type { TaskStrategy } from '../rank/strategies/strategy.js';
import type { PreparedRun, RunConfig } from '../run-config.js';
import { type RunTiles, tileNotes } from './run-tiles.js';
import {
  changesOf,
  evaluationsOf,
  isModelAlone,
  moduleNotes,
  requireSameRun,
  type SavedRun,
} from './saved-run.js';

export interface ResumePlan {
  /** The saves, the newest first. */
  readonly saves: readonly FoundSave[];
  /** Sentences about saves that can't be used. */
  readonly notes: readonly string[];
}

/** What the run goes on from. */
export interface Resumed {
  /** The save; undefined where the run starts from the beginning. */
  readonly save: FoundSave | undefined;
  readonly notes: readonly string[];
}

const CALL = { tag: 'resume', identity: 'resume' };

/**
 * Finds the saves that --resume means, as the first rank sees them, before the model is made.
 * Collective.
 * @returns undefined without --resume
 * @throws {UsageError} for saves of another run, and where there are saves, but none is whole
 */
export async function planResume(
  config: PreparedRun,
  options: { readonly group: ProcessGroup; readonly base: BaseModel | undefined },
): Promise<ResumePlan | undefined> {
  const { resume } = config;
  if (resume === undefined) {
    return undefined;
  }
  const { group, base } = options;
  const own = group.rank === 0 ? await lookForSaves(resume, config) : undefined;
  const [first] = await exchangeTexts(group, JSON.stringify(own ?? null), CALL);
  const { found, problem } = JSON.parse(first!) as FoundSaves;
  if (problem !== undefined) {
    throw new UsageError(problem);
  }
  const saves = found.flatMap((save) => ('record' in save ? [save] : []));
  const notes = found.flatMap((save) =>
    'record' in save ? [] : [`${save.path} can't be used: ${save.problem}`],
  );
  if (saves.length === 0 && notes.length > 0) {
    throw noneWhole(notes);
  }
  for (const save of saves.slice(0, 1)) {
    requireSameRun(save, config, base);
  }
  return { saves, notes };
}

/** What is found where --resume points, the newest save first. */
export interface FoundSaves {
  readonly found: readonly (FoundSave | UnreadableSave)[];
  readonly problem?: string;
}

/** Finds saves: with `auto` the run's own, else those of a run, or a single one. */
export async function lookForSaves(
  where: string,
  { out }: Pick<RunConfig, 'out'>,
): Promise<FoundSaves> {
  try {
    if (where === 'auto') {
      return { found: await findSaves(savesOf(out!)) };
    }
    const path = resolve(where);
    const isSave = existsSync(join(path, INDEX_FILE));
    const found = isSave ? [await readSave(path)] : await findSaves(savesOf(path));
    const problem = `--resume: ${path} holds no save. Give a run's directory, one of its saves, or auto.`;
    return found.length > 0 ? { found } : { found, problem };
  } catch (error) {
    return { found: [], problem: `--resume: ${where} can't be read: ${(error as Error).message}` };
  }
}

/**
 * Loads the weights and optimizer state of the newest save that is whole, each rank its own part.
 * Collective. Later saves of the run itself are set aside, because the run makes them again.
 * @throws {UsageError} where none is whole, or the save does not fit the model
 */
export async function loadResumed(
  plan: ResumePlan,
  options: {
    readonly config: PreparedRun;
    readonly strategy: TaskStrategy;
    readonly group: ProcessGroup;
    /** This rank's numeric class. */
    readonly numericClass: string;
    /** The tiles of the ranks' GPUs; see agreeOnTiles. */
    readonly tiles?: RunTiles | undefined;
  },
): Promise<Resumed> {
  const { config, strategy, group } = options;
  const classes = await exchangeTexts(group, options.numericClass, CALL);
  const notes = [...plan.notes];
  for (const save of plan.saves) {
    const isWeightsAlone = isModelAlone(save.record);
    const problem = await loadSave(save.path, { strategy, group, isWeightsAlone });
    if (problem !== undefined) {
      notes.push(`${save.path} can't be used: ${problem}`);
      continue;
    }
    if (group.rank === 0) {
      notes.push(...(await setNewerAside(save, config)));
    }
    const { record } = save;
    notes.push(...classNotes(record, classes), ...tileNotes(record, options.tiles));
    notes.push(...moduleNotes(record, config), ...changeNotes(record, config));
    return { save, notes };
  }
  if (notes.length > 0) {
    throw noneWhole(notes);
  }
  return { save: undefined, notes };
}

/**
 * Loads a save. Resolves with what is damaged about it on some rank, or with undefined where all
 * ranks have loaded it. Collective.
 * @throws {UsageError} where it does not fit the model
 */
export async function loadSave(
  path: string,
  options: LoadedParts & {
    readonly strategy: TaskStrategy;
    readonly group: ProcessGroup;
    /** The flag that named the save. Default --resume. */
    readonly flag?: string;
  },
): Promise<string | undefined> {
  const { strategy, group, flag = '--resume' } = options;
  const { optimizer } = strategy;
  // A save contains the rates and decays of its own run; this run keeps those that it was given.
  const given = optimizer.groups.map(({ params: _, ...options }) => options);
  const error: unknown = await loadParts(strategy, pieceDirectory(path), options).then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  for (const [i, options] of given.entries()) {
    Object.assign(optimizer.groups[i]!, options);
  }
  if (error !== undefined && !isAboutSave(error)) {
    throw error;
  }
  const kind = kindOf(error);
  const own = JSON.stringify({ kind, message: (error as Error | undefined)?.message });
  const all = (await exchangeTexts(group, own, CALL)).map(
    (text) => JSON.parse(text) as { kind: string; message?: string },
  );
  const damaged = all.find((outcome) => outcome.kind === 'damaged');
  // A rank that was only told of another rank's error comes last.
  const unfit =
    all.find((outcome) => outcome.kind === 'unfit') ?? all.find(({ kind }) => kind === 'told');
  if (damaged === undefined && unfit !== undefined) {
    throw new UsageError(
      `${flag}: ${path} can't be used. ${unfit.message} Give the model that was saved.`,
      { cause: error },
    );
  }
  return damaged?.message;
}

function kindOf(error: unknown): 'fine' | 'damaged' | 'told' | 'unfit' {
  if (error === undefined) {
    return 'fine';
  }
  if (isDamage(error)) {
    return 'damaged';
  }
  return isOfAnotherRank(error) ? 'told' : 'unfit';
}

/** Whether a load failed because of the save; ranks that did not fail are told of one that did. */
function isAboutSave(error: unknown): boolean {
  const kinds = [CheckpointError, StateDictError];
  return isDamage(error) || isOfAnotherRank(error) || kinds.some((kind) => error instanceof kind);
}

async function setNewerAside({ path, step }: FoundSave, { out }: PreparedRun): Promise<string[]> {
  if (!isSaveOf(out, path)) {
    return [];
  }
  const newer = (await findSaves(dirname(path))).filter((save) => save.step > step);
  const notes: string[] = [];
  for (const save of newer) {
    notes.push(`${save.path} is kept as ${await setAside(save.path)}.`);
  }
  return notes;
}

/** Says where the next steps round otherwise than those before, whose bits they cannot have. */
function classNotes({ numericClasses }: SavedRun, classes: readonly string[]): string[] {
  const [was, is] = [numericClasses, classes].map((all) =>
    [...new Set(all)].toSorted().join(' and '),
  );
  return was === '' || was === is
    ? []
    : [
        `The steps before were computed by ${was}, and here it is ${is}: losses differ in their last digits.`,
      ];
}

function changeNotes(record: SavedRun, config: PreparedRun): string[] {
  const changes = changesOf(record, config);
  const { best } = record;
  const isForgotten = best !== undefined && evaluationsOf(record, config).best === undefined;
  return [
    ...(changes.length === 0 ? [] : [`Other than in the save: ${changes.join(', ')}.`]),
    ...(isForgotten
      ? [
          `What is evaluated has changed: the best loss until then, ${best.validLoss.toFixed(4)} at step ${best.step}, is not compared with those to come, and its save is kept no longer than others.`,
        ]
      : []),
  ];
}

function noneWhole(notes: readonly string[]): UsageError {
  return new UsageError(
    `--resume: none of ${notes.length} saves is whole. ${notes.join(' ')} Start a new run with another --out.`,
  );
}
