// The contrastive loss with in-batch negatives (InfoNCE; van den Oord et al., 2018), over one rank
// or all. A row of logits is a query's similarities with all documents, and documents are its
// classes: so it is a head's product with its loss, whose logits never lie in memory all at once.

import {
  add,
  affine,
  cast,
  cat,
  isTensor,
  linearCrossEntropy,
  reshape,
  ShapeError,
  slice,
  type Tensor,
} from '@shardweave/tensor-core';
import {
  above,
  checkOptions,
  checkValue,
  FINITE,
  FLAG,
  having,
  type OptionRule,
  type OptionRules,
  optional,
  whole,
} from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { type EmbeddingGroup, gatherRows } from './gather-rows.js';
import { l2Normalize } from './l2-normalize.js';

/** Options of the loss, without its embeddings. */
export interface ContrastiveOptions {
  /** What similarities are divided by. Default 0.05. */
  readonly temperature?: number | undefined;
  /**
   * Whether documents choose their queries too, among all queries: the loss is then the mean of
   * both directions. Default false.
   */
  readonly symmetric?: boolean | undefined;
  /**
   * Matryoshka: the loss is a sum of losses, one for the first n numbers of the embeddings with
   * each of these n, normalized for each. By default it is that of the embeddings as they are.
   */
  readonly matryoshkaDims?: readonly number[] | undefined;
  /** The factor of each of matryoshkaDims. Default 1 each. */
  readonly matryoshkaWeights?: readonly number[] | undefined;
  /** The ranks whose batches are one. Default: this rank alone. */
  readonly group?: EmbeddingGroup | undefined;
}

/** Options of infoNce. */
export interface InfoNceOptions extends ContrastiveOptions {
  /**
   * Hard negatives, [any number, width]: further documents, which are nobody's own, and so
   * negatives of every query.
   */
  readonly negatives?: Tensor | undefined;
}

const listOf = (rule: OptionRule): OptionRule => ({
  expected: `a list, each ${rule.expected}`,
  holds: (value) => Array.isArray(value) && value.length > 0 && value.every(rule.holds),
});

export const CONTRASTIVE_RULES: OptionRules<ContrastiveOptions> = {
  temperature: optional(above(0)),
  symmetric: optional(FLAG),
  matryoshkaDims: optional(listOf(whole(1))),
  matryoshkaWeights: optional(listOf(FINITE)),
  group: optional(having('a process group', 'allGather')),
};

const TENSOR: OptionRule = { expected: 'a tensor', holds: isTensor };

/**
 * The cross-entropy of choosing, for each query, its own document among all: the mean over queries
 * of -log softmax(query . documents / temperature)[own], f32 []. Row i of `documents` is the own
 * document of row i of `queries`, both [batch, width]. Similarities are dot products: embeddings of
 * length 1 make them cosines.
 *
 * Over a group the loss is exactly that of one process with the batches of all ranks in rank order,
 * and has the same bits on each rank. One all-gather of embeddings serves it; every rank must call
 * it, with equally many rows. Each rank computes the whole loss, so it has the gradients that its
 * own documents get from other ranks' queries without a further exchange. Those of its own rows are
 * worldSize times the loss's, so that the usual averaging of parameters' gradients over ranks (DDP,
 * FSDP) gives one process's gradients.
 * @throws {ShapeError} where embeddings are not [rows, width] of one width, with as many documents
 * as queries
 * @throws {NnConfigError} for options that cannot work
 */
export async function infoNce(
  queries: Tensor,
  documents: Tensor,
  options: InfoNceOptions = {},
): Promise<Tensor> {
  checkOptions<InfoNceOptions>('infoNce', options, {
    ...CONTRASTIVE_RULES,
    negatives: optional(TENSOR),
  });
  checkValue('infoNce', 'queries', queries, TENSOR);
  checkValue('infoNce', 'documents', documents, TENSOR);
  const { negatives, group, matryoshkaDims: dims, matryoshkaWeights } = options;
  requireRows(queries, documents, negatives);
  const width = queries.shape[1]!;
  requireDims(dims, matryoshkaWeights, width);
  const parts = [queries, documents, ...(negatives === undefined ? [] : [negatives])];
  return queries.device.scope(async () => {
    const own = parts.map((part) => cast(part, 'f32'));
    const all = (group?.worldSize ?? 1) === 1 ? own : await gatherParts(own, group!);
    if (dims === undefined) {
      return lossOf(all, options);
    }
    const losses = dims.map((end, i) => {
      const cut = all.map((part) => l2Normalize(slice(part, { axis: 1, start: 0, end })));
      return affine(lossOf(cut, options), matryoshkaWeights?.[i] ?? 1, 0);
    });
    return losses.reduce((sum, loss) => add(sum, loss));
  });
}

/** The parts of all ranks, each as one tensor in rank order, by one all-gather. */
async function gatherParts(parts: readonly Tensor[], group: EmbeddingGroup): Promise<Tensor[]> {
  const gathered = await gatherRows(cat(parts, { axis: 0 }), group); // [ranks, rows, width]
  let start = 0;
  return parts.map(({ shape }) => {
    const [rows, width] = shape as [number, number];
    const part = slice(gathered, { axis: 1, start, end: start + rows });
    start += rows;
    return reshape(part, [-1, width]);
  });
}

function lossOf(
  [queries, documents, negatives]: readonly Tensor[],
  { temperature = 0.05, symmetric = false }: ContrastiveOptions,
): Tensor {
  const candidates =
    negatives === undefined ? documents! : cat([documents!, negatives], { axis: 0 });
  const forth = choiceLoss(queries!, candidates, temperature);
  return symmetric
    ? affine(add(forth, choiceLoss(documents!, queries!, temperature)), 0.5, 0)
    : forth;
}

/** The mean loss of choosing candidate i for row i. */
function choiceLoss(rows: Tensor, candidates: Tensor, temperature: number): Tensor {
  const { device } = rows;
  const own = device.tensor(Uint32Array.from({ length: rows.shape[0]! }, (_, i) => i));
  return linearCrossEntropy(affine(rows, 1 / temperature, 0), own, { weight: candidates });
}

function requireRows(queries: Tensor, documents: Tensor, negatives: Tensor | undefined): void {
  const [rows, width] = queries.shape;
  const isFit =
    queries.rank === 2 &&
    rows! > 0 &&
    documents.shape.join() === queries.shape.join() &&
    (negatives === undefined || (negatives.rank === 2 && negatives.shape[1] === width));
  if (!isFit) {
    const shapes = [queries, documents, negatives].map(
      (part) => part && `[${part.shape.join(', ')}]`,
    );
    throw new ShapeError(
      `infoNce: expected queries [batch, width], documents of that shape and negatives of that width, got ${shapes.filter((text) => text !== undefined).join(', ')}. Hard negatives are an option beside the documents.`,
    );
  }
}

function requireDims(
  dims: readonly number[] | undefined,
  weights: readonly number[] | undefined,
  width: number,
): void {
  const most = Math.max(...(dims ?? [0]));
  if (most > width) {
    throw new NnConfigError(
      `infoNce: expected matryoshkaDims up to the embeddings' width, ${width}, got ${most}.`,
    );
  }
  if (weights !== undefined && weights.length !== dims?.length) {
    throw new NnConfigError(
      `infoNce: expected a matryoshkaWeight for each of ${dims?.length ?? 0} matryoshkaDims, got ${weights.length}.`,
    );
  }
}
