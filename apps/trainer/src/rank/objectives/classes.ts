// The loss of a classifier or a reranker: that of each text or pair by itself.

import {
  classificationLoss,
  classifyDocuments,
  type TypedDocument,
} from '@shardweave/nn/embedding';
import { affine, type Tensor } from '@shardweave/tensor-core';
import type { ExampleBatch } from '../../data/example-data.js';
import { rowLengthOf } from '../../data/row-length.js';
import type { OnJudged } from '../../figures/figures.js';
import type { ClassHead } from '../../task/task-head.js';
import { backwardOf, type ObjectiveOptions } from './language.js';
import type { BackwardOptions, Objective } from './objective.js';

export class ClassObjective implements Objective<ExampleBatch> {
  readonly #options: ObjectiveOptions;
  readonly #head: ClassHead;
  readonly #hasTypes: boolean;

  /** @param hasTypes whether the model tells the texts of a pair apart by the types of tokens */
  constructor(options: ObjectiveOptions, head: ClassHead, hasTypes: boolean) {
    this.#options = options;
    this.#head = head;
    this.#hasTypes = hasTypes;
  }

  async backward(batch: ExampleBatch, { scale, onPhase }: BackwardOptions): Promise<Tensor> {
    onPhase('forward');
    const { loss } = await this.#forward(batch);
    return backwardOf(loss, { scale, onPhase });
  }

  async loss(batch: ExampleBatch, onJudged?: OnJudged): Promise<Tensor> {
    const { loss, logits } = await this.#forward(batch);
    if (onJudged !== undefined && batch.examples.length > 0) {
      const all = (await logits.toArray()) as Float32Array;
      const [, width = 1] = logits.shape;
      let from = 0;
      for (const [i, { texts, labels }] of batch.examples.entries()) {
        onJudged({ logits: all.subarray(from, from + texts.length * width), labels }, i);
        from += texts.length * width;
      }
    }
    return loss;
  }

  async #forward({ examples }: ExampleBatch): Promise<{ loss: Tensor; logits: Tensor }> {
    const { module, config } = this.#options;
    const { labels, problemType, kind, weights } = this.#head;
    // A rank without an example computes one that counts for nothing, as others wait for it.
    const isEmpty = examples.length === 0;
    const texts = isEmpty ? [EMPTY] : examples.flatMap((example) => example.texts);
    const logits = await classifyDocuments(
      module,
      this.#hasTypes ? texts : texts.map(({ ids }) => ids),
      { rowLength: rowLengthOf(texts, config.seq) },
    );
    const isOne = problemType === 'single_label_classification';
    const wanted = examples.flatMap((example) =>
      isOne || kind === 'rerank' ? example.labels : hot(example.labels, labels.length),
    );
    const loss = classificationLoss(logits, isEmpty ? hot([], isOne ? 1 : logits.size) : wanted, {
      problemType,
      ...(weights && { [isOne ? 'classWeights' : 'posWeights']: weights }),
      divisor: 1,
    });
    return { loss: isEmpty ? affine(loss, 0, 0) : loss, logits };
  }
}

const EMPTY: TypedDocument = { ids: [0], tokenTypes: [0] };

/** 1 for each of some labels, and 0 for the others. */
function hot(labels: readonly number[], count: number): number[] {
  return Array.from({ length: count }, (_, id) => Number(labels.includes(id)));
}
