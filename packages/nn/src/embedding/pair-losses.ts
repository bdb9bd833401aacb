// Losses of pairs and triples of embeddings, after sentence-transformers' of the same names. All
// are f32 [], and means over rows; embeddings are [rows, width].

import {
  add,
  affine,
  cast,
  cat,
  crossEntropy,
  mean,
  mul,
  relu,
  reshape,
  ShapeError,
  sqrt,
  square,
  sub,
  sum,
  type Tensor,
} from '@shardweave/tensor-core';
import { above, atLeast, checkOptions, optional } from '../check-options.js';
import { l2Normalize, squaredNorms } from './l2-normalize.js';

/** Added to a logit, it leaves out that class: f32 has no exponential below -104. */
const LEFT_OUT = -1e9;

/**
 * The mean squared difference between the cosine of each pair and its score.
 * @param scores one for each row, usually from 0 to 1
 * @throws {ShapeError} unless a and b are [rows, width] and there is one score for each row
 */
export function cosineSimilarityLoss(a: Tensor, b: Tensor, scores: ArrayLike<number>): Tensor {
  requireRows('cosineSimilarityLoss', [a, b], scores);
  return a.device.scope(() => mean(square(sub(cosines(a, b), scoresOn(a, scores)))));
}

/** Options of coSentLoss. */
export interface CoSentOptions {
  /** What cosines are multiplied by: 1 / temperature. Default 20. */
  readonly scale?: number | undefined;
}

/**
 * log(1 + the sum of exp(scale * (cosine of i - cosine of j)) over all i, j where pair i has the
 * lower score): pairs shall have the order of their scores (Su, 2022). It is 0 where all scores are
 * equal.
 * @throws {ShapeError} unless a and b are [rows, width] and there is one score for each row
 */
export function coSentLoss(
  a: Tensor,
  b: Tensor,
  scores: ArrayLike<number>,
  options: CoSentOptions = {},
): Tensor {
  checkOptions<CoSentOptions>('coSentLoss', options, { scale: optional(above(0)) });
  requireRows('coSentLoss', [a, b], scores);
  const { device } = a;
  const count = scores.length;
  const mask = Float32Array.from({ length: count * count }, (_, at) => {
    const [i, j] = [Math.floor(at / count), at % count];
    return scores[i]! < scores[j]! ? 0 : LEFT_OUT;
  });
  return device.scope(() => {
    const scaled = affine(cosines(a, b), options.scale ?? 20, 0);
    const apart = sub(reshape(scaled, [count, 1]), scaled); // [count, count]
    const logits = reshape(add(apart, device.tensor(mask, [count, count])), [1, -1]);
    // The loss of class 0, whose logit is 0, is the logarithm of 1 + the sum of all exponentials.
    const all = cat([device.zeros([1, 1]), logits], { axis: 1 });
    return crossEntropy(all, device.tensor(Uint32Array.of(0)));
  });
}

/**
 * The mean squared difference between each query's margin and a given one, such as a teacher's. A
 * margin is query . positive - query . negative.
 * @param margins one for each row
 * @throws {ShapeError} unless all are [rows, width] and there is one margin for each row
 */
export function marginMseLoss(
  [queries, positives, negatives]: EmbeddingTriple,
  margins: ArrayLike<number>,
): Tensor {
  requireRows('marginMseLoss', [queries, positives, negatives], margins);
  return queries.device.scope(() => {
    const apart = sub(cast(positives, 'f32'), cast(negatives, 'f32'));
    const found = sum(mul(cast(queries, 'f32'), apart), { axis: 1 });
    return mean(square(sub(found, scoresOn(queries, margins))));
  });
}

/**
 * Rows of an anchor (or query), of what is to be near it, and of what is to be far: each [rows,
 * width].
 */
export type EmbeddingTriple = readonly [anchors: Tensor, positives: Tensor, negatives: Tensor];

/** Options of tripletLoss. */
export interface TripletOptions {
  /** By how much the negative shall be farther than the positive. Default 5. */
  readonly margin?: number | undefined;
}

/**
 * The mean of max(0, distance to the positive - distance to the negative + margin), by Euclidean
 * distances. Equal rows have the distance 1e-12 and no gradient from it.
 * @throws {ShapeError} unless all three are [rows, width]
 */
export function tripletLoss(
  [anchors, positives, negatives]: EmbeddingTriple,
  options: TripletOptions = {},
): Tensor {
  checkOptions<TripletOptions>('tripletLoss', options, { margin: optional(atLeast(0)) });
  requireRows('tripletLoss', [anchors, positives, negatives]);
  return anchors.device.scope(() => {
    const apart = sub(distances(anchors, positives), distances(anchors, negatives));
    return mean(relu(affine(apart, 1, options.margin ?? 5)));
  });
}

function distances(a: Tensor, b: Tensor): Tensor {
  return sqrt(squaredNorms(sub(cast(a, 'f32'), cast(b, 'f32'))));
}

function cosines(a: Tensor, b: Tensor): Tensor {
  return sum(mul(l2Normalize(cast(a, 'f32')), l2Normalize(cast(b, 'f32'))), { axis: 1 });
}

function scoresOn({ device }: Tensor, scores: ArrayLike<number>): Tensor {
  return device.tensor(Float32Array.from(scores), [scores.length]);
}

function requireRows(op: string, rows: readonly Tensor[], scores?: ArrayLike<number>): void {
  const [first] = rows as [Tensor];
  const isAlike = rows.every(({ shape }) => shape.join() === first.shape.join());
  const count = scores?.length ?? first.shape[0];
  if (first.rank !== 2 || !isAlike || count !== first.shape[0] || count === 0) {
    const shapes = rows.map(({ shape }) => `[${shape.join(', ')}]`).join(', ');
    throw new ShapeError(
      `${op}: expected embeddings [rows, width] of one shape${scores === undefined ? '' : ' and a number for each row'}, got ${shapes}${scores === undefined ? '' : ` and ${scores.length} numbers`}.`,
    );
  }
}
