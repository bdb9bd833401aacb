// Computes steps of a run again, and compares what they come to with what its record says, to the
// bit: numbers in JSON are as exact as the floats that they were.

import { hash } from 'node:crypto';
import { CheckpointError, openSave } from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { hashSave } from '@shardweave/nn';
import { UsageError } from '../errors.js';
import { pathOf, savesOf } from '../files/save-directory.js';
import { counted } from '../format.js';
import { isKept } from '../output/run-monitor.js';
import type { StepLine } from '../output/run-records.js';
import type { StepMetrics } from '../rank/events.js';
import type { PreparedRun } from '../run-config.js';
import { decidingDifferences } from '../saves/saved-run.js';
import { type ComputeAgainOptions, computeAgain } from './compute-again.js';
import { type AgainPlan, planAgain } from './plan-again.js';
import { type RecordedRun, readRecordedRun, startOf } from './recorded-run.js';

/** What lines are compared by, in the order in which a step comes to it. */
export const COMPARED = {
  targets: 'number of targets',
  lr: 'learning rate',
  lossScale: 'loss scale',
  loss: 'loss',
  gradNorm: 'gradient norm',
  skipped: 'being skipped',
  validLoss: 'loss of the evaluation',
  hash: 'hash of the weights',
} as const;

export interface VerifyOptions
  extends Pick<
    ComputeAgainOptions,
    'entry' | 'env' | 'signal' | 'data' | 'ranks' | 'onNote' | 'onTokenized'
  > {
  /** Default: all steps of the record. */
  readonly steps?: { readonly first: number; readonly last: number } | undefined;
  /** Called with the number of steps that were computed, and of all. */
  readonly onProgress: (done: number, total: number) => void;
}

export interface Verified {
  readonly isEqual: boolean;
  /** A sentence for people. */
  readonly text: string;
}

/**
 * Verifies steps of the run in `directory`.
 * @throws {UsageError} where what the run had is not there any more
 */
export async function verifyRun(directory: string, options: VerifyOptions): Promise<Verified> {
  const run = await readRecordedRun(directory);
  const range = rangeOf(run, options.steps);
  const plan = planAgain(run, range);
  const total = range.last - plan.from.step;
  const { first, last } = range;
  options.onNote(
    `${first === last ? `Step ${first}` : `Steps ${first} to ${last}`} of ${directory}: computing ${counted(total, 'step')} from ${placeOf(plan)}.`,
  );
  const saved = await checkSaves(run, { from: plan.from.step, last: range.last });
  const damage = saved.damage ?? (options.steps === undefined ? endProblem(run) : undefined);
  if (damage !== undefined) {
    return { isEqual: false, text: damage };
  }
  const hashAt = [
    ...[...run.lines.values()].flatMap((line) => (line.hash ? [line.step] : [])),
    ...saved.hashes.keys(),
  ];
  const found = { equal: 0, hashes: 0, difference: undefined as string | undefined };
  const classes = new Set<string>();
  await computeAgain(plan, {
    ...options,
    hashAt,
    onEvent: (event) => {
      if (event.type === 'ready') {
        classes.add(event.ready.numericClass);
      }
    },
    onStep: (metrics) => {
      options.onProgress(metrics.step - plan.from.step, total);
      if (metrics.step < range.first) {
        return true; // what it came to is in the steps that are asked for
      }
      const line = run.lines.get(metrics.step);
      found.difference = run.altered.has(metrics.step)
        ? 'its line in metrics.jsonl is not as a run writes it'
        : (differenceIn(metrics, line, startOf(run, metrics.step)!.config) ??
          saveDifference(metrics, saved.hashes.get(metrics.step)));
      if (found.difference === undefined) {
        found.equal += 1;
        found.hashes += line?.hash === undefined ? 0 : 1;
      }
      return found.difference === undefined;
    },
  });
  const numSteps = range.last - range.first + 1;
  if (found.difference === undefined && found.equal === numSteps) {
    return { isEqual: true, text: equalText(numSteps, found.hashes) };
  }
  const step = range.first + found.equal;
  const then = startOf(run, step)!.numericClasses.join(' and ');
  const here = [...classes].sort().join(' and ');
  const classText =
    then === here
      ? `Both were computed by ${here}.`
      : `It was computed by ${then}, and here by ${here}: other classes need not round alike.`;
  const what =
    found.difference ??
    `the command of the record that began before it ends with step ${startOf(run, step)!.config.steps}. A line of type start may be missing from events.jsonl`;
  return {
    isEqual: false,
    text: `Step ${step} is not equal: ${what}. ${found.equal} of ${counted(numSteps, 'step')} ${found.equal === 1 ? 'is' : 'are'} equal${found.equal === 0 ? '' : ', all before it'}. ${classText}`,
  };
}

function equalText(numSteps: number, numHashes: number): string {
  const hashes =
    numHashes === 0
      ? 'There are no hashes of weights in these steps: --hash-every N of train records them.'
      : `So ${numHashes === 1 ? 'is the hash' : `are ${numHashes} hashes`} of all weights and optimizer state.`;
  return `${numSteps} of ${counted(numSteps, 'step')} equal, in losses and gradient norms, to the bit. ${hashes}`;
}

function placeOf({ from }: AgainPlan): string {
  return from.path === undefined ? 'the first weights' : `${from.path}`;
}

/** @throws {UsageError} for steps that the record does not have */
function rangeOf(
  { directory, lines }: RecordedRun,
  asked: VerifyOptions['steps'],
): { readonly first: number; readonly last: number } {
  const all = [...lines.keys()];
  if (all.length === 0) {
    throw new UsageError(`${directory} has no steps in its record, so there is nothing to verify.`);
  }
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const range = asked ?? { first: least, last: most };
  if (range.last > most || range.first > range.last) {
    throw new UsageError(
      `--steps ${range.first}..${range.last}: the record of ${directory} has steps ${least} to ${most}. Give some of these.`,
    );
  }
  return range;
}

/** How a step differs from its line; undefined where it does not. */
export function differenceIn(
  metrics: StepMetrics,
  line: StepLine | undefined,
  config: PreparedRun,
): string | undefined {
  if (line === undefined) {
    return isKept(metrics, config) ? 'it has no line in metrics.jsonl' : undefined;
  }
  const own = { ...metrics, loss: Number.isFinite(metrics.loss) ? metrics.loss : null };
  for (const [name, words] of Object.entries(COMPARED) as [keyof typeof COMPARED, string][]) {
    const [was, is] = [line[name], own[name]];
    // Other runs evaluate and hash at other steps, which changes nothing of this one.
    if (was !== undefined && is !== undefined && was !== is) {
      return `its ${words} is ${was} in the record, and ${is} here`;
    }
  }
  if (config.hashEvery && line.step % config.hashEvery === 0 && line.hash === undefined) {
    return `its line has no hash, which --hash-every ${config.hashEvery} put there`;
  }
  return undefined;
}

/** Why a save is not the state that a step comes to; undefined where it is. */
function saveDifference({ step, hash: own }: StepMetrics, saved: string | undefined) {
  return saved !== undefined && own !== undefined && saved !== own
    ? `the save of step ${step} holds weights or optimizer state of another hash, ${saved}, than is computed here, ${own}`
    : undefined;
}

/** What the record lacks at its end; undefined where it has all steps that were saved. */
function endProblem({ directory, lines, saves }: RecordedRun): string | undefined {
  const [last, saved] = [lines.keys(), saves.map(({ step }) => step)].map((steps) =>
    Math.max(0, ...steps),
  ) as [number, number];
  return saved > last
    ? `The record of ${directory} ends with step ${last}, but there is a save of step ${saved}: lines are missing from metrics.jsonl.`
    : undefined;
}

interface CheckedSaves {
  /** What is wrong with one of them. */
  readonly damage?: string;
  /** The hashes of what they hold, by their steps. */
  readonly hashes: ReadonlyMap<number, string>;
}

/** Reads the saves from step `from` to step `last`, and compares them with the record. */
async function checkSaves(
  run: RecordedRun,
  { from, last }: { readonly from: number; readonly last: number },
): Promise<CheckedSaves> {
  const { directory, saves, lines } = run;
  const hashes = new Map<number, string>();
  const damaged = (damage: string) => ({ damage, hashes });
  const misnamed = saves.find(({ path, step }) => path !== pathOf(savesOf(directory), step));
  if (misnamed !== undefined) {
    return damaged(
      `${misnamed.path} is not what its name says: it holds the state after step ${misnamed.step}.`,
    );
  }
  for (const save of saves.filter(({ step }) => step >= from && step <= last)) {
    if ('problem' in save) {
      return damaged(`${save.path} is damaged: ${save.problem}`);
    }
    const { path, step, record } = save;
    const found = await savedHash(path);
    if ('problem' in found) {
      return damaged(`${path} is damaged: ${found.problem}`);
    }
    for (const expected of [lines.get(step)?.hash, record.hash]) {
      if (expected !== undefined && found.hash !== expected) {
        return damaged(
          `${path} is not the state after step ${step}: its hash is ${found.hash}, and the record has ${expected}.`,
        );
      }
    }
    const [other] = decidingDifferences(
      record.config,
      (startOf(run, step) ?? run.starts[0]!).config,
    );
    if (other !== undefined) {
      return damaged(
        `${path} is no save of this run: its ${other.flag} is ${other.was}, and ${other.is} in the record.`,
      );
    }
    hashes.set(step, found.hash);
  }
  return { hashes };
}

async function savedHash(
  path: string,
): Promise<{ readonly hash: string } | { readonly problem: string }> {
  try {
    const save = await openSave(pieceDirectory(path));
    return { hash: await hashSave(save, { sha256: (bytes) => hash('sha256', bytes, 'buffer') }) };
  } catch (error) {
    if (error instanceof CheckpointError) {
      return { problem: error.message };
    }
    throw error;
  }
}
