// One step of a run again, each of its rows alone: who of them made the loss and the gradients.

import { absoluteData } from '../data/data-parts.js';
import { loadTokenizer } from '../data/tokenizer.js';
import { UsageError } from '../errors.js';
import { counted } from '../format.js';
import type { RowTold, StepMetrics } from '../rank/events.js';
import type { PreparedRun, TokenFiles } from '../run-config.js';
import { type ComputeAgainOptions, computeAgain } from './compute-again.js';
import { planAgain } from './plan-again.js';
import { readRecordedRun, startOf } from './recorded-run.js';
import { rowPlaces } from './row-places.js';
import { differenceIn } from './verify-run.js';

export interface ReplayOptions
  extends Pick<
    ComputeAgainOptions,
    'entry' | 'env' | 'signal' | 'data' | 'onNote' | 'onTokenized'
  > {
  readonly step: number;
  /** Whether each row is computed alone, too. */
  readonly withRows: boolean;
  /** Called with the number of steps that were computed, and of all. */
  readonly onProgress: (done: number, total: number) => void;
}

/** A row with its texts as people read them. */
export interface ReplayedRow extends Omit<RowTold, 'tokens' | 'origin'> {
  /** The texts of an example, or the documents of a row of tokens. */
  readonly texts: readonly string[];
  /** Where each of its documents is in the data; see rowPlaces. */
  readonly places: readonly string[];
}

export interface Replayed {
  readonly metrics: StepMetrics;
  /** How the step differs from its line in the record; undefined where it does not. */
  readonly difference: string | undefined;
  /** The largest gradient norm first; none where they were not asked for. */
  readonly rows: readonly ReplayedRow[];
}

/**
 * Computes a step of the run in `directory` again.
 * @throws {UsageError} where what the run had is not there any more, and for rows of a task that
 * compares the rows of a step with each other
 */
export async function replayStep(directory: string, options: ReplayOptions): Promise<Replayed> {
  const { step, withRows, onNote, onProgress } = options;
  const run = await readRecordedRun(directory);
  const most = Math.max(0, ...run.lines.keys());
  if (step > most) {
    throw new UsageError(
      `--step ${step}: the record of ${directory} has steps up to ${most}. Give one of these.`,
    );
  }
  const { config } = startOf(run, step) ?? run.starts[0]!;
  if (withRows && config.head.kind === 'embed') {
    throw new UsageError(
      '--rows: the pairs of --task embed are told apart from all others of their step, so none is anything alone. Leave --rows out.',
    );
  }
  const plan = planAgain(run, { first: step, last: step });
  const total = step - plan.from.step;
  const place = plan.from.path ?? 'the first weights';
  onNote(`Step ${step} of ${directory}: computing ${counted(total, 'step')} from ${place}.`);
  const found: RowTold[] = [];
  let metrics: StepMetrics | undefined;
  let tokens: TokenFiles | undefined;
  await computeAgain(plan, {
    ...options,
    hashAt: run.lines.get(step)?.hash === undefined ? [] : [step],
    ...(withRows && { last: { rowsOf: step } }),
    onStep: (own) => {
      onProgress(own.step - plan.from.step, total);
      metrics = own.step === step ? own : undefined;
      return true;
    },
    onTokens: (own) => {
      tokens = own;
    },
    onEvent: (event) => {
      if (event.type === 'row') {
        found.push(event.row);
      }
    },
  });
  if (metrics === undefined) {
    throw new UsageError(`${directory}: the loss is no number before step ${step}. See verify.`);
  }
  const difference = differenceIn(metrics, run.lines.get(step), config);
  const data = options.data === undefined ? config.data : absoluteData(options.data);
  return { metrics, difference, rows: await readable(found, { ...config, data }, tokens!) };
}

/** Rows with texts, by their norms; of equal ones the first row first. */
async function readable(
  rows: readonly RowTold[],
  config: PreparedRun,
  { train }: TokenFiles,
): Promise<ReplayedRow[]> {
  const origins = rows.map(({ origin }) => origin);
  const places = rows.length === 0 ? [] : await rowPlaces(origins, config, train);
  const { tokenizer: name, model } = config;
  const isText = rows.some(({ tokens }) => tokens.length > 0);
  const tokenizer = isText
    ? await loadTokenizer(name, model.kind === 'directory' ? model.path : undefined)
    : undefined;
  return rows
    .map(({ tokens, origin: _, ...row }, i) => {
      return { ...row, texts: tokens.map((ids) => tokenizer!.decode(ids)), places: places[i]! };
    })
    .sort((a, b) => larger(a.gradNorm, b.gradNorm) || a.row - b.row);
}

/** The order of two numbers, the larger one first and NaN before all. */
function larger(one: number, other: number): number {
  const rank = (value: number) => (Number.isNaN(value) ? Number.POSITIVE_INFINITY : value);
  return rank(one) === rank(other) ? 0 : rank(other) - rank(one);
}
