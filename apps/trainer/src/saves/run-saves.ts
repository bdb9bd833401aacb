// The saves of a run as its ranks make them: when one is due, how it is written beside the next
// steps, and which ones are kept. All ranks decide alike, so that each save is one of all of them.

import { existsSync } from 'node:fs';
import { rm, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { exchangeTexts, type ProcessGroup } from '@shardweave/collectives';
import { FsdpRankFailedError } from '@shardweave/fsdp';
import { StoreError } from '@shardweave/shard-store';
import { TrainerError, UsageError } from '../errors.js';
import type { BaseModel } from '../model/base-model.js';
import { makeDirectory } from '../output/make-directory.js';
import type { EmitRankEvent } from '../rank/events.js';
import type { Strategy } from '../rank/strategies/strategy.js';
import { sumOverRanks } from '../rank/sum-over-ranks.js';
import type { PreparedRun } from '../run-config.js';
import { MARK, removeParts, removeSave, savesOf, stepsIn } from './save-directory.js';
import { extraOf, type SavedRun, tokensOf } from './saved-run.js';
import { type SaveFailed, type SaveOutcome, writeAtRest, writeCaptured } from './write-save.js';

export interface RunSavesOptions {
  readonly config: PreparedRun;
  readonly strategy: Strategy;
  /** The group over which ranks decide between steps. */
  readonly group: ProcessGroup;
  /** The group over which saves are written beside steps; nothing else is sent there. */
  readonly background: ProcessGroup;
  readonly emit: EmitRankEvent;
  readonly numericClass: string;
  readonly base: BaseModel | undefined;
  /** The best evaluation of the run that this one goes on from. */
  readonly best?: SavedRun['best'];
  /** Once it is aborted, the run ends after the present step, with a save. */
  readonly wrapUp: AbortSignal;
  /** A clock in milliseconds, of which the first rank's counts. Default performance.now. */
  readonly now?: () => number;
}

/** How far a run is after a step. */
export interface StepProgress extends Pick<SavedRun, 'step' | 'updates' | 'scaler' | 'validLoss'> {
  readonly isLast: boolean;
}

export class RunSaves {
  readonly #options: RunSavesOptions;
  readonly #directory: string;
  readonly #numericClasses: readonly string[];
  readonly #now: () => number;
  #best: SavedRun['best'];
  /** The time when the last save began, on the first rank's clock. */
  #lastMs: number;
  /** The save that is being written. Rejects where ranks have lost each other. */
  #writing: Promise<SaveOutcome | undefined> = Promise.resolve(undefined);

  private constructor(options: RunSavesOptions, numericClasses: readonly string[]) {
    this.#options = options;
    this.#directory = savesOf(options.config.outDir!);
    this.#numericClasses = numericClasses;
    this.#best = options.best;
    this.#now = options.now ?? (() => performance.now());
    this.#lastMs = this.#now();
  }

  /**
   * Makes the directory ready. Collective.
   * @throws {UsageError} where a rank does not see the directory of the first rank, naming the rank
   * and its host
   */
  static async open(options: RunSavesOptions): Promise<RunSaves> {
    const { config, background, numericClass } = options;
    const call = { tag: 'saves', identity: 'saves' };
    const classes = await exchangeTexts(background, numericClass, call);
    await requireShared(savesOf(config.outDir!), background);
    return new RunSaves(options, [...new Set(classes)]);
  }

  /**
   * To be called after each step. Begins a save where one is due, which is written while the next
   * steps run: those wait before they change what it has not read. Collective.
   * @returns whether the run ends here because it was asked to
   */
  async after(progress: StepProgress): Promise<boolean> {
    const { step, validLoss, isLast } = progress;
    const isBest = validLoss !== undefined && validLoss < (this.#best?.validLoss ?? Infinity);
    if (isBest) {
      this.#best = { step, validLoss };
    }
    const { isStopping, isTime } = await this.#decide();
    const { saveEvery } = this.#options.config;
    const isStep = saveEvery?.steps !== undefined && step % saveEvery.steps === 0;
    if (isLast || isBest || isStopping || isTime || isStep) {
      await this.#begin(progress);
    }
    return isStopping && !isLast;
  }

  /** Waits for the save that is on its way. */
  async settle(): Promise<void> {
    await this.#writing;
  }

  /**
   * Waits for the save with which a run ends early.
   * @returns its directory
   * @throws {TrainerError} where it failed
   */
  async last(): Promise<string> {
    const outcome = (await this.#writing)!;
    if (isFailure(outcome)) {
      throw new TrainerError(
        `The last save failed: ${outcome.failure} Saves before it are in ${this.#directory}: go on from them with --resume auto.`,
      );
    }
    return outcome.directory;
  }

  /** Whether some rank was asked to stop. Collective. */
  readonly isAsked = async (): Promise<boolean> => {
    const { group, wrapUp } = this.#options;
    return (await sumOverRanks(Number(wrapUp.aborted), group, 'save')) > 0;
  };

  /**
   * Exchanges what no rank can know alone: whether some rank was asked to stop, and the first
   * rank's clock.
   */
  async #decide(): Promise<{ readonly isStopping: boolean; readonly isTime: boolean }> {
    const { config, group, wrapUp } = this.#options;
    const minutes = config.saveEvery?.minutes;
    const isDue = minutes !== undefined && this.#now() - this.#lastMs >= minutes * 60_000;
    const wishes = Float32Array.of(Number(wrapUp.aborted), Number(isDue && group.rank === 0));
    if (group.worldSize > 1) {
      const bytes = new Uint8Array(wishes.buffer);
      await group.allReduce(bytes, bytes, { dtype: 'f32', op: 'sum', tag: 'save' });
    }
    return { isStopping: wishes[0]! > 0, isTime: wishes[1]! > 0 };
  }

  async #begin(progress: StepProgress): Promise<void> {
    const { strategy, background, emit } = this.#options;
    await this.#writing; // one at a time
    const startMs = this.#now();
    this.#lastMs = startMs;
    const { step } = progress;
    const extra = extraOf(this.#record(progress));
    const options = { directory: this.#directory, step, group: background, extra };
    const { saving } = strategy;
    const isBeside = 'capture' in saving;
    const captured = isBeside ? await saving.capture().catch(asFailure) : undefined;
    const beginMs = this.#now() - startMs;
    const writing = !isBeside
      ? writeAtRest(saving.save, options)
      : isFailure(captured)
        ? Promise.resolve(captured)
        : writeCaptured(captured, options);
    this.#writing = writing.then(async (outcome) => {
      if (background.rank === 0) {
        const ms = this.#now() - startMs;
        const stepsMs = isFailure(captured) ? 0 : (captured?.waitMs ?? 0);
        const waitMs = isBeside ? beginMs + stepsMs : ms;
        emit(
          isFailure(outcome)
            ? { type: 'warning', text: `The save of step ${step} failed: ${outcome.failure}` }
            : { type: 'save', save: { step, ...outcome, ms, waitMs } },
        );
        if (!isFailure(outcome)) {
          await this.#prune().catch(() => undefined); // tried again after the next save
        }
      }
      return outcome;
    });
    this.#writing.catch(() => undefined); // whoever waits for it sees the error
    if (!isBeside) {
      await this.#writing;
    }
  }

  #record({ step, updates, scaler, validLoss }: StepProgress): SavedRun {
    const { config, base } = this.#options;
    return {
      ...{ step, updates, scaler, validLoss, base, config },
      best: this.#best,
      numericClasses: this.#numericClasses,
      tokens: tokensOf(config),
    };
  }

  /** Removes saves other than the newest ones and the best one. */
  async #prune(): Promise<void> {
    const { keep } = this.#options.config;
    const best = this.#best?.step;
    for (const step of stepsIn(this.#directory).slice(0, -keep)) {
      if (step !== best) {
        await removeSave(this.#directory, step);
      }
    }
  }
}

/**
 * The message of a disk that can't take a save, on all ranks: the one that has the disk, and those
 * that are told.
 */
function asFailure(error: unknown): SaveFailed {
  if (error instanceof StoreError || error instanceof FsdpRankFailedError) {
    return { failure: error.message };
  }
  throw error;
}

function isFailure(outcome: object | undefined): outcome is SaveFailed {
  return outcome !== undefined && 'failure' in outcome;
}

/**
 * Checks that all ranks see the first rank's directory, without which no save would be whole,
 * before hours of work.
 */
async function requireShared(directory: string, group: ProcessGroup): Promise<void> {
  const call = { tag: 'saves', identity: 'shared directory' };
  const own = group.rank === 0 ? `${MARK}${globalThis.crypto.randomUUID()}` : '';
  const failure = group.rank === 0 ? await writeMark(directory, own) : '';
  const [first] = await exchangeTexts(group, JSON.stringify([own, failure]), call);
  const [mark, problem] = JSON.parse(first!) as [string, string];
  if (problem !== '') {
    throw new UsageError(`--out: ${directory} can't be written (${problem}).`);
  }
  const isSeen = existsSync(join(directory, mark));
  const blind = (await exchangeTexts(group, isSeen ? '' : hostname(), call)).findIndex(Boolean);
  const names = await exchangeTexts(group, hostname(), call);
  if (group.rank === 0) {
    await rm(join(directory, mark), { force: true });
  }
  if (blind !== -1) {
    throw new UsageError(
      `--save-every: rank ${blind} on ${names[blind]} does not see ${directory} of rank 0 on ${names[0]}. Give an --out that all hosts share, or leave --save-every out.`,
    );
  }
}

async function writeMark(directory: string, mark: string): Promise<string> {
  try {
    makeDirectory(directory);
    await removeParts(directory);
    await writeFile(join(directory, mark), '');
    return '';
  } catch (error) {
    return (error as Error).message;
  }
}
