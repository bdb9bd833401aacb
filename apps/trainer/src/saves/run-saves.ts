// The saves of a run as its ranks make them: when one is due, how it is written beside the next
// steps, and which ones are kept. All ranks decide alike, so that each save is one of all of them.
//
// Note [good saves]: a save is good once its weights had a finite loss on the rows that follow, and
// none is removed before a newer one is good. So only the newest on the disk can be anything
// else, whenever the process is killed: their order is the record, and nothing is written for it.

import { existsSync } from 'node:fs';
import { rm, writeFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { exchangeTexts, type ProcessGroup } from '@shardweave/collectives';
import { StoreError } from '@shardweave/shard-store';
import { TrainerError, UsageError } from '../errors.js';
import { makeDirectory } from '../files/make-directory.js';
import {
  findSaves,
  MARK,
  pathOf,
  removeParts,
  removeSave,
  savesOf,
  setAside,
  stepsIn,
} from '../files/save-directory.js';
import type { SaveEvery } from '../flags/flag-kinds.js';
import type { BaseModel } from '../model/base-model.js';
import type { EmitRankEvent } from '../rank/events.js';
import { isOfAnotherRank, type Saving } from '../rank/strategies/model-saves.js';
import { sumOverRanks } from '../rank/strategies/sum-over-ranks.js';
import { makesSaves, type PreparedRun } from '../run-config.js';
import { describeSystemError } from '../system-error.js';
import { extraOf, isModelAlone, type SavedRun, tokensOf } from './saved-run.js';
import { type SaveFailed, type SaveOutcome, writeAtRest, writeCaptured } from './write-save.js';

export interface RunSavesOptions {
  readonly config: PreparedRun;
  readonly saving: Saving;
  /** The group over which ranks decide between steps. */
  readonly group: ProcessGroup;
  /** The group over which saves are written beside steps; nothing else is sent there. */
  readonly background: ProcessGroup;
  readonly emit: EmitRankEvent;
  readonly numericClass: string;
  readonly tiles?: SavedRun['tiles'];
  readonly base: BaseModel | undefined;
  /** What the evaluations are losses on, and the best one until now. */
  readonly valid?: SavedRun['valid'];
  readonly best?: SavedRun['best'];
  /** The step of the run's own save that it goes on from, which is not known to be good. */
  readonly from?: number | undefined;
  /** Once it is aborted, the run ends after the present step, with a save where one can be. */
  readonly wrapUp: AbortSignal;
  /** A clock in milliseconds, of which the first rank's counts. Default performance.now. */
  readonly now?: () => number;
}

/** How far a run is after a step. */
export interface StepProgress
  extends Pick<SavedRun, 'step' | 'updates' | 'scaler' | 'validLoss' | 'best'> {
  /** The loss of this step, which is that of the weights before it. */
  readonly loss: number;
  readonly isLast: boolean;
  /** The hash of the state; absent where the run has none. Collective. */
  readonly hash?: (() => Promise<{ readonly hash: string }>) | undefined;
}

export class RunSaves {
  readonly #options: RunSavesOptions;
  readonly #directory: string;
  readonly #numericClasses: readonly string[];
  /** Whether all ranks see the directory. */
  readonly #isShared: boolean;
  readonly #now: () => number;
  /** The best evaluation, whose save is kept; its save may be on its way. */
  #best: SavedRun['best'];
  /** The steps of the saves after which no loss was finite yet. */
  #unproven: readonly number[];
  /** The steps of the saves that this command has begun. */
  readonly #begun = new Set<number>();
  /** The time when the last save began, on the first rank's clock. */
  #lastMs: number;
  /** The step of the save with which a run ends that was asked to; it goes on from there. */
  #stoppedAt: number | undefined;
  /** The save that is being written. Rejects where ranks have lost each other. */
  #writing: Promise<SaveOutcome | undefined> = Promise.resolve(undefined);

  private constructor(
    options: RunSavesOptions,
    found: { readonly numericClasses: readonly string[]; readonly isShared: boolean },
  ) {
    const { numericClasses, isShared } = found;
    this.#options = options;
    this.#isShared = isShared;
    this.#directory = savesOf(options.config.out!);
    this.#numericClasses = numericClasses;
    this.#best = options.best;
    this.#unproven = options.from === undefined ? [] : [options.from];
    this.#now = options.now ?? (() => performance.now());
    this.#lastMs = this.#now();
  }

  /**
   * Makes the directory ready. Collective. Where a rank does not see the directory of the first
   * one, a run that would save at Ctrl-C alone is warned, and saves nothing.
   * @throws {UsageError} where it is to make other saves, naming the rank and its host
   */
  static async open(options: RunSavesOptions): Promise<RunSaves> {
    const { config, background, numericClass, emit } = options;
    const classes = await exchangeTexts(background, numericClass, CALL);
    const blind = await blindRank(savesOf(config.out!), background);
    if (blind !== undefined && makesSaves(config)) {
      throw new UsageError(
        `--save-every: ${blind}. Give an --out that all hosts share, or leave --save-every out.`,
      );
    }
    if (blind !== undefined && background.rank === 0) {
      emit({ type: 'warning', text: `Ctrl-C will save nothing: ${blind}.` });
    }
    const isShared = blind === undefined;
    return new RunSaves(options, { numericClasses: [...new Set(classes)], isShared });
  }

  /**
   * To be called after each step. Begins a save where one is due, which is written while the next
   * steps run: those wait before they change what it has not read. Collective.
   * @returns whether the run ends here because it was asked to
   */
  async after(progress: StepProgress): Promise<boolean> {
    const { step, best, loss, isLast } = progress;
    if (Number.isFinite(loss)) {
      this.prove();
    }
    this.#best = best;
    const { saveEvery, final, again } = this.#options.config;
    const isBest = best?.step === step;
    const { isAsked, isTime } = await this.#decide(saveEvery);
    const isStopping = (isAsked && !isLast) || step === again?.until;
    const isStep = saveEvery?.steps !== undefined && step % saveEvery.steps === 0;
    // Weights that are not known to be good are not saved again and again.
    const isDue = (isTime || isStep) && this.#unproven.length === 0;
    const isKept = saveEvery === undefined ? isBest && final === 'best' : isLast || isBest || isDue;
    if (isStopping && this.#isShared) {
      this.#stoppedAt = step;
    }
    if (isKept || this.#stoppedAt === step) {
      await this.#begin(progress);
    }
    return isStopping;
  }

  /** Waits for the save that is on its way. */
  async settle(): Promise<void> {
    await this.#writing;
  }

  /** Takes the saves so far as good, for a loss was finite after them, and removes old ones. */
  prove(): void {
    if (this.#unproven.length === 0) {
      return;
    }
    this.#unproven = [];
    const best = this.#best?.step; // one to come has no save yet that could take its place
    this.#writing = this.#writing.then(async (outcome) => {
      if (!isFailure(outcome)) {
        await this.#prune(best).catch(() => undefined); // tried again after the next save
      }
      return outcome;
    });
    this.#writing.catch(() => undefined); // whoever waits for it sees the error
  }

  /**
   * Sets aside the saves of a run that has diverged which are not known to be good. Collective.
   * @returns a sentence about them and the last good one
   */
  async setUnprovenAside(): Promise<string> {
    await this.settle();
    const own = this.#options.background.rank === 0 ? await this.#sortOut() : '';
    const [text] = await exchangeTexts(this.#options.background, own, CALL);
    return text!;
  }

  async #sortOut(): Promise<string> {
    const there = stepsIn(this.#directory);
    if (there.length === 0 && !makesSaves(this.#options.config)) {
      return '';
    }
    const isUnproven = (step: number) => this.#unproven.includes(step);
    const texts: string[] = [];
    for (const step of there.filter(isUnproven).reverse()) {
      const path = pathOf(this.#directory, step);
      const how = await setAside(path).then(
        (aside) => {
          this.#tellGone(step);
          return `is kept as ${aside}`;
        },
        (error: unknown) => `has to be removed by hand (${describeSystemError(error)})`,
      );
      texts.push(`${path} was not good and ${how}.`);
    }
    const good = there.filter((step) => !isUnproven(step)).at(-1);
    texts.push(
      good === undefined
        ? 'No save is good.'
        : `The last good save is ${pathOf(this.#directory, good)}: convert --from makes a model of it.`,
    );
    return texts.join(' ');
  }

  /**
   * Removes the saves of a run that makes them for its end alone, those of an earlier command that
   * was killed, too. To be called by one rank.
   */
  async removeOwn(): Promise<void> {
    if (this.#options.config.saveEvery !== undefined) {
      return;
    }
    for (const save of await findSaves(this.#directory)) {
      if (this.#begun.has(save.step) || ('record' in save && isForTheEnd(save.record))) {
        await this.#remove(save.step);
      }
    }
  }

  /**
   * Waits for the save with which a run ends early.
   * @returns its directory; undefined where none can be written
   * @throws {TrainerError} where it failed
   */
  async last(): Promise<string | undefined> {
    const outcome = await this.#writing;
    if (outcome === undefined) {
      return undefined;
    }
    if (isFailure(outcome)) {
      const before =
        this.#options.config.again !== undefined
          ? 'The steps after it go on from it, in the folder that TMPDIR names: let that be one with room.'
          : stepsIn(this.#directory).length === 0
            ? 'There is no save before it, so the run begins anew.'
            : `Saves before it are in ${this.#directory}: go on from them with --resume auto.`;
      throw new TrainerError(`The last save failed: ${outcome.failure} ${before}`);
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
  async #decide({ minutes }: SaveEvery = {}): Promise<{
    readonly isAsked: boolean;
    readonly isTime: boolean;
  }> {
    const { group, wrapUp } = this.#options;
    const isDue = minutes !== undefined && this.#now() - this.#lastMs >= minutes * 60_000;
    const wishes = Float32Array.of(Number(wrapUp.aborted), Number(isDue && group.rank === 0));
    if (group.worldSize > 1) {
      const bytes = new Uint8Array(wishes.buffer);
      await group.allReduce(bytes, bytes, { dtype: 'f32', op: 'sum', tag: 'save' });
    }
    return { isAsked: wishes[0]! > 0, isTime: wishes[1]! > 0 };
  }

  async #begin(progress: StepProgress): Promise<void> {
    const { saving, background, emit } = this.#options;
    await this.#writing; // one at a time
    const startMs = this.#now();
    this.#lastMs = startMs;
    const { step } = progress;
    this.#unproven = [...this.#unproven, step];
    this.#begun.add(step);
    const hashed = await progress.hash?.();
    const extra = extraOf({ ...this.#record(progress), hash: hashed?.hash });
    const options = { directory: this.#directory, step, group: background, extra };
    const isBeside = 'capture' in saving;
    const captured = isBeside ? await saving.capture().catch(asFailure) : undefined;
    const beginMs = this.#now() - startMs;
    const writing = !isBeside
      ? writeAtRest(saving.save, options)
      : isFailure(captured)
        ? Promise.resolve(captured)
        : writeCaptured(captured!, options);
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
      }
      return outcome;
    });
    this.#writing.catch(() => undefined); // whoever waits for it sees the error
    if (!isBeside) {
      await this.#writing;
    }
  }

  #record({ step, updates, scaler, validLoss, best }: StepProgress): SavedRun {
    const { config, base, valid, tiles } = this.#options;
    return {
      ...{ step, updates, scaler, validLoss, best, valid, base, config, tiles },
      numericClasses: this.#numericClasses,
      tokens: tokensOf(config),
    };
  }

  /**
   * Removes saves other than the newest ones and the best one; where none were asked for, those
   * that this command has made, and no others.
   */
  async #prune(best: number | undefined): Promise<void> {
    const { config, background } = this.#options;
    const { keep, saveEvery } = config;
    const steps = background.rank === 0 ? stepsIn(this.#directory) : [];
    const old =
      saveEvery === undefined
        ? steps.filter((step) => this.#begun.has(step))
        : steps.slice(0, -keep);
    for (const step of old) {
      if (step !== best && step !== this.#stoppedAt) {
        await this.#remove(step);
      }
    }
  }

  async #remove(step: number): Promise<void> {
    await removeSave(this.#directory, step);
    this.#tellGone(step);
  }

  #tellGone(step: number): void {
    const directory = pathOf(this.#directory, step);
    this.#options.emit({ type: 'saveGone', save: { step, directory } });
  }
}

/**
 * Whether a run that nobody has asked for saves has made this one, to leave its best weights or to
 * go on from. Behind the model it would be an older state that --init-from took for the newest.
 */
function isForTheEnd(record: SavedRun): boolean {
  return record.config.saveEvery === undefined && !isModelAlone(record);
}

const CALL = { tag: 'saves', identity: 'saves' };

/**
 * The message of a disk that can't take a save, on all ranks: the one that has the disk, and those
 * that are told.
 */
function asFailure(error: unknown): SaveFailed {
  if (error instanceof StoreError || isOfAnotherRank(error)) {
    return { failure: error.message };
  }
  throw error;
}

function isFailure(outcome: object | undefined): outcome is SaveFailed {
  return outcome !== undefined && 'failure' in outcome;
}

/**
 * Looks whether all ranks see the first rank's directory, without which no save would be whole,
 * before hours of work. Collective.
 * @returns what says of one that it does not; undefined where all do
 * @throws {UsageError} where the first rank can't write there
 */
async function blindRank(directory: string, group: ProcessGroup): Promise<string | undefined> {
  const call = { tag: 'saves', identity: 'shared directory' };
  const own = group.rank === 0 ? `${MARK}${globalThis.crypto.randomUUID()}` : '';
  const failure = group.rank === 0 ? await writeMark(directory, own) : '';
  const [first] = await exchangeTexts(group, JSON.stringify([own, failure]), call);
  const [mark, problem] = JSON.parse(first!) as [string, string];
  if (problem !== '') {
    throw new UsageError(`--out: ${directory} can't be written (${problem}).`);
  }
  const isSeen = existsSync(join(directory, mark));
  const hosts = await exchangeTexts(group, isSeen ? '' : hostname(), call);
  const blind = hosts.findIndex((host) => host !== '');
  const names = await exchangeTexts(group, hostname(), call);
  if (group.rank === 0) {
    await rm(join(directory, mark), { force: true });
  }
  return blind < 0
    ? undefined
    : `rank ${blind} on ${names[blind]} does not see ${directory} of rank 0 on ${names[0]}`;
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
