// The loss of pairs of answers, of which one is preferred. Both answers of a pair are in one call,
// packed into rows with those of the batch's other pairs.

import type { TypedDocument } from '@shardweave/nn/embedding';
import {
  type Answer,
  answerLogProbs,
  dpoLoss,
  orpoLoss,
  type PreferenceLoss,
} from '@shardweave/nn/preference';
import { affine, cast, cat, gt, reshape, slice, sum, type Tensor } from '@shardweave/tensor-core';
import type { ExampleBatch, TaskExample } from '../../data/example-data.js';
import { rowLengthOf } from '../../data/row-length.js';
import type { OnJudged } from '../../figures/figures.js';
import type { RunConfig } from '../../run-config.js';
import type { PreferenceTask } from '../../task/task-head.js';
import { backwardOf, type ObjectiveOptions } from './language.js';
import type { BackwardOptions, Objective, TaskModule } from './objective.js';

export interface PreferenceOptions extends ObjectiveOptions {
  readonly config: Pick<RunConfig, 'seq' | 'dpoBeta' | 'labelSmoothing' | 'orpoLambda'>;
}

export class PreferenceObjective implements Objective<ExampleBatch> {
  readonly figures = ['accuracy', 'margin'] as const;
  readonly #options: PreferenceOptions;
  readonly #task: PreferenceTask;

  constructor(options: PreferenceOptions, task: PreferenceTask) {
    this.#options = options;
    this.#task = task;
  }

  async backward(batch: ExampleBatch, { scale, onPhase }: BackwardOptions): Promise<Tensor> {
    onPhase('forward');
    const { loss, margins } = await this.#forward(batch);
    const own = margins.detach();
    const told = [sum(cast(gt(own, 0), 'f32')), sum(own)];
    const found = await backwardOf(loss, { scale, onPhase });
    const factor = batch.examples.length === 0 ? 0 : 1;
    const all = [found, ...told.map((figure) => affine(figure, factor, 0))];
    return cat(
      all.map((value) => reshape(value, [1])),
      { axis: 0 },
    );
  }

  async loss(batch: ExampleBatch, onJudged?: OnJudged): Promise<Tensor> {
    const { loss, margins } = await this.#forward(batch);
    if (onJudged !== undefined && batch.examples.length > 0) {
      const all = (await margins.toArray()) as Float32Array;
      for (const i of batch.examples.keys()) {
        onJudged({ logits: all.subarray(i, i + 1), labels: [] }, i);
      }
    }
    return loss;
  }

  async #forward({ examples }: ExampleBatch): Promise<PreferenceLoss> {
    const { module, config } = this.#options;
    const { seq, dpoBeta: beta, labelSmoothing, orpoLambda: lambda } = config;
    // A rank without a pair computes one that counts for nothing, as others wait for it.
    const isEmpty = examples.length === 0;
    const pairs = isEmpty ? [EMPTY] : examples;
    const logProbs = reshape(await pairLogProbs(module, pairs, seq), [pairs.length, 2]);
    const half = (start: number) =>
      reshape(slice(logProbs, { axis: 1, start, end: start + 1 }), [pairs.length]);
    const halves = { chosen: half(0), rejected: half(1) };
    const numbersOf = (of: (pair: TaskExample, half: 0 | 1) => number) => ({
      chosen: pairs.map((pair) => of(pair, 0)),
      rejected: pairs.map((pair) => of(pair, 1)),
    });
    const found =
      this.#task === 'dpo'
        ? dpoLoss(halves, {
            ...{ reference: numbersOf(referenceOf), beta, labelSmoothing, divisor: 1 },
          })
        : orpoLoss(halves, { lengths: numbersOf(lengthOf), lambda, divisor: 1 });
    return isEmpty ? { ...found, loss: affine(found.loss, 0, 0) } : found;
  }
}

/** The logarithms of the probabilities of pairs' answers, f32 [2 pairs], the chosen one first. */
export function pairLogProbs(
  module: TaskModule,
  pairs: readonly TaskExample[],
  seq: number,
): Promise<Tensor> {
  const texts = pairs.flatMap((pair) => pair.texts);
  const answers = texts.map(({ ids, tokenTypes }): Answer => {
    return { ids, promptLength: ids.length - countOf(tokenTypes) };
  });
  // A row has no place for the last token of an answer, after which nothing is predicted.
  const places = texts.map(({ ids, tokenTypes }) => ({
    ids: Array.from(ids).slice(1),
    tokenTypes,
  }));
  return answerLogProbs(module, answers, { rowLength: rowLengthOf(places, seq) });
}

const LETTER: TypedDocument = { ids: [0, 0], tokenTypes: [0, 1] };
const EMPTY: TaskExample = { texts: [LETTER, LETTER], labels: [0, 0] };

function countOf(tokenTypes: ArrayLike<number>): number {
  return Array.from(tokenTypes).reduce((sum, type) => sum + type, 0);
}

/** The number of an answer's tokens. */
function lengthOf({ texts }: TaskExample, half: 0 | 1): number {
  return countOf(texts[half]!.tokenTypes);
}

function referenceOf({ labels }: TaskExample, half: 0 | 1): number {
  const found = labels[half];
  if (found === undefined) {
    throw new TypeError('A pair has no reference: findReferences comes before its step.');
  }
  return found;
}
