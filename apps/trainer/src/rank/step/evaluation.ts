// The loss on data that is not trained on. It is the same number on every rank and for every
// strategy.

import type { ProcessGroup } from '@shardweave/collectives';
import type { Device } from '@shardweave/tensor-core';
import type { Dataset, MicroBatch } from '../../data/dataset.js';
import type { Examples } from '../../data/example-data.js';
import type { OwnBatch } from '../../data/own-rows.js';
import type { Parts } from '../../data/row-order.js';
import { embeddingFigures } from '../../figures/embedding-figures.js';
import type { Figures, Judged, OnJudged } from '../../figures/figures.js';
import { scoreboardOf } from '../../figures/task-figures.js';
import type { RunConfig } from '../../run-config.js';
import type { TaskModule } from '../objectives/objective.js';
import type { OwnObjective } from '../objectives/own.js';
import type { TaskStrategy } from '../strategies/strategy.js';
import { sumOfMicroSteps } from '../strategies/sum-over-ranks.js';
import { type Asked, answerFigures } from './answers.js';

export interface Evaluated {
  readonly loss: number;
  /** What a task is judged by beside its loss. */
  readonly figures?: Figures | undefined;
}

export interface EvaluationOptions {
  readonly config: Pick<RunConfig, 'head' | 'batch' | 'seq' | 'chunkSize' | 'ranks'> &
    Partial<Pick<RunConfig, 'gradientGroups' | 'strategy'>> &
    Pick<Parts, 'groupCounts'>;
  readonly rank: number;
  readonly device: Device;
  readonly strategy: Pick<TaskStrategy, 'module' | 'objective'> &
    Partial<Pick<TaskStrategy, 'text'>>;
  /** What the model of `strategy.text` is asked; by default nothing. */
  readonly asked?: Asked | undefined;
  /** The data, each row of which is taken once. */
  readonly data: Dataset;
  /** The group of all ranks of the job. */
  readonly group: ProcessGroup;
  /** Whether the evaluation is given up, with the same answer on all ranks; asked at each step. */
  readonly isGivenUp?: (() => Promise<boolean>) | undefined;
  /** Ends answers with its reason. */
  readonly signal?: AbortSignal | undefined;
  /** Called with the number of steps done, and of all; then with that of answers. */
  readonly onStep?: (done: number, total: number) => void;
}

/**
 * The mean loss over the targets of `data` that count, with dropout off and without gradients, and
 * what the task is judged by; training then goes on as if nothing had happened. Rows are divided by
 * rank and micro-step as in training. Collective.
 * @returns undefined where it was given up
 */
export async function evaluate(options: EvaluationOptions): Promise<Evaluated | undefined> {
  const { config, device, strategy, data, group, asked, isGivenUp, signal } = options;
  const { head } = config;
  const examples = data as unknown as Examples; // which all tasks but the first have
  const board = scoreboardOf(head, examples.count);
  const loss = await meanLoss(options, { first: 0, end: data.numSteps, onJudged: board?.add });
  if (loss === undefined) {
    return undefined;
  }
  const { module } = strategy;
  if (asked !== undefined && Number.isFinite(loss)) {
    const { text } = strategy as TaskStrategy;
    const parts = { asked, device, text, group, isGivenUp, signal, onAnswer: options.onStep };
    const figures = await evaluating(module, () => answerFigures(parts));
    return figures && { loss, figures };
  }
  if (head.kind !== 'embed') {
    return { loss, figures: await board?.figures(group) };
  }
  const parts = { device, module, group, config, head, data: examples };
  return { loss, figures: await evaluating(module, () => embeddingFigures(parts)) };
}

/** Runs `body` with dropout off. */
export async function evaluating<T>(module: TaskModule, body: () => Promise<T>): Promise<T> {
  module.eval();
  try {
    return await body();
  } finally {
    module.train();
  }
}

/**
 * The loss on the rows of step `step` (from 0), or of the next one in which a target counts: what
 * the present weights are worth, for the price of one forward. Undefined where none of the data
 * counts. Collective.
 */
export async function lossAhead(
  options: EvaluationOptions,
  step: number,
): Promise<number | undefined> {
  const { data } = options;
  for (let first = step; first < step + data.numSteps; first++) {
    if ((await data.numTargets(first)) > 0) {
      return meanLoss(options, { first, end: first + 1 });
    }
  }
  return undefined;
}

/**
 * How many times the loss of a module's batch its two halves have, on the rows of the first step: 1
 * for a sum over rows, and 2 for a mean, which the trainer would divide once more. Undefined where
 * no target counts. Collective.
 */
export async function halvesRatio(
  options: EvaluationOptions,
  objective: Pick<OwnObjective, 'halvesLoss'>,
): Promise<number | undefined> {
  const { module } = options.strategy;
  const loss = (batch: OwnBatch | MicroBatch) => objective.halvesLoss(batch);
  const halves = { loss } as unknown as TaskStrategy['objective'];
  const whole = await lossAhead(options, 0);
  const parts = await lossAhead({ ...options, strategy: { module, objective: halves } }, 0);
  return whole === undefined || parts === undefined ? undefined : parts / whole;
}

interface Steps {
  readonly first: number;
  readonly end: number;
  /** Called with each example of a classifier, and its place among all of the data. */
  readonly onJudged?: OnJudged | undefined;
}

async function meanLoss(
  { config, rank, device, strategy, data, group, onStep, isGivenUp }: EvaluationOptions,
  { first, end, onJudged }: Steps,
): Promise<number | undefined> {
  const { module, objective } = strategy;
  /** The sums of losses: one, or with groups one for each micro-step, whose group is the same. */
  const own = [0];
  let numTargets = 0;
  const isWhole = await evaluating(module, async () => {
    for (let step = first; step < end; step++) {
      if ((await isGivenUp?.()) === true) {
        return false;
      }
      numTargets += await data.numTargets(step);
      for (let microStep = 0; microStep < data.numMicroSteps; microStep++) {
        const batch = await data.microBatch(step, rank, microStep);
        const first = step * config.batch + batch.firstRow;
        const onExample = onJudged && ((judged: Judged, i: number) => onJudged(judged, first + i));
        const loss = await device.noGrad(() =>
          device.scope(async () => (await objective.loss(batch, onExample)).item()),
        );
        const place = config.gradientGroups === undefined ? 0 : microStep;
        own[place] = (own[place] ?? 0) + loss;
      }
      onStep?.(step + 1, end);
    }
    return true;
  });
  if (!isWhole) {
    return undefined;
  }
  return (await sumOfMicroSteps(own, config, { rank, group, tag: 'valid loss' })) / numTargets;
}
