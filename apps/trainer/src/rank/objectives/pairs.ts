// The losses of an embedder: of pairs among all pairs of the step, over all ranks, or of pairs with
// scores.

import type { ProcessGroup } from '@shardweave/collectives';
import {
  cachedInfoNce,
  cosineSimilarityLoss,
  embedDocuments,
  infoNce,
  type TypedDocument,
} from '@shardweave/nn/embedding';
import { affine, cat, slice, type Tensor } from '@shardweave/tensor-core';
import type { ExampleBatch } from '../../data/example-data.js';
import { rowLengthOf } from '../../data/row-length.js';
import type { RunConfig } from '../../run-config.js';
import { backwardOf, type ObjectiveOptions } from './language.js';
import type { BackwardOptions, Objective } from './objective.js';

export interface PairOptions extends ObjectiveOptions {
  readonly config: Pick<
    RunConfig,
    'temperature' | 'symmetric' | 'chunkSize' | 'matryoshkaDims' | 'seq'
  >;
  /** The group that reduces gradients gathers embeddings before them. */
  readonly groups: { readonly reduce: ProcessGroup };
}

/** The texts of a batch by what they are. */
interface Parts {
  readonly queries: readonly TypedDocument[];
  readonly documents: readonly TypedDocument[];
  readonly negatives: readonly TypedDocument[];
}

export class PairObjective implements Objective<ExampleBatch> {
  readonly #options: PairOptions;

  constructor(options: PairOptions) {
    this.#options = options;
  }

  async backward(batch: ExampleBatch, { scale, onPhase }: BackwardOptions): Promise<Tensor> {
    const { module, config, groups } = this.#options;
    onPhase('forward');
    const parts = partsOf(batch);
    const texts = Object.values(parts).flat();
    const count = parts.queries.length;
    if (isScored(batch) || texts.length <= config.chunkSize) {
      return backwardOf(await this.loss(batch), { scale, onPhase });
    }
    const idsOf = (list: readonly TypedDocument[]) => list.map(({ ids }) => ids);
    const loss = await cachedInfoNce(
      module,
      {
        queries: idsOf(parts.queries),
        documents: idsOf(parts.documents),
        ...(parts.negatives.length > 0 && { negatives: idsOf(parts.negatives) }),
      },
      {
        ...this.#lossOptions(),
        group: groups.reduce,
        chunkSize: config.chunkSize,
        rowLength: rowLengthOf(texts, config.seq),
        gradientScale: scale * count,
      },
    );
    return affine(loss, count, 0);
  }

  async loss(batch: ExampleBatch): Promise<Tensor> {
    const { groups } = this.#options;
    const { queries, documents, negatives } = partsOf(batch);
    const texts = [...queries, ...documents, ...negatives];
    const rows = await this.#embed(texts);
    const count = queries.length;
    const part = (start: number, end: number) => slice(rows, { axis: 0, start, end });
    const [own, others] = [part(0, count), part(count, 2 * count)];
    if (isScored(batch)) {
      const scores = batch.examples.map(({ labels }) => labels[0]!);
      return affine(cosineSimilarityLoss(own, others, scores), count, 0);
    }
    const loss = await infoNce(own, others, {
      ...this.#lossOptions(),
      group: groups.reduce,
      ...(negatives.length > 0 && { negatives: part(2 * count, texts.length) }),
    });
    return affine(loss, count, 0);
  }

  /** Embeds texts a chunk at a time, f32 [texts, width]. */
  async #embed(texts: readonly TypedDocument[]): Promise<Tensor> {
    const { module, config } = this.#options;
    const rowLength = rowLengthOf(texts, config.seq);
    const chunks: Tensor[] = [];
    for (let first = 0; first < texts.length; first += config.chunkSize) {
      const ids = texts.slice(first, first + config.chunkSize).map((text) => text.ids);
      chunks.push(await embedDocuments(module, ids, { rowLength }));
    }
    return cat(chunks, { axis: 0 });
  }

  #lossOptions() {
    const { temperature, symmetric, matryoshkaDims } = this.#options.config;
    return { temperature, symmetric, ...(matryoshkaDims && { matryoshkaDims }) };
  }
}

function isScored({ examples }: ExampleBatch): boolean {
  return examples[0]?.labels.length === 1;
}

function partsOf({ examples }: ExampleBatch): Parts {
  return {
    queries: examples.map(({ texts }) => texts[0]!),
    documents: examples.map(({ texts }) => texts[1]!),
    negatives: examples.flatMap(({ texts }) => texts.slice(2)),
  };
}
