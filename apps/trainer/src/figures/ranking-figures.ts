// The figures of a ranking: where in the order of a query's documents those are that answer it.

import { log64 } from '@shardweave/dtypes/float64';
import type { Figures } from './figures.js';

/** How many of the first documents are looked at. */
const CUT = 10;

/**
 * The figures of queries, of each of which the places (from 1) of all its answers are given, and of
 * whose answers there is at least one. nDCG is that of documents that answer or do not (Järvelin
 * and Kekäläinen, 2002), MRR has no cut.
 */
export function rankingFigures(places: readonly (readonly number[])[]): Figures {
  const mean = (of: (places: readonly number[]) => number) =>
    places.reduce((sum, own) => sum + of(own), 0) / places.length;
  const recall = (cut: number) =>
    mean((own) => own.filter((place) => place <= cut).length / own.length);
  return {
    values: {
      [`ndcg@${CUT}`]: mean(ndcg),
      mrr: mean((own) => 1 / Math.min(...own)),
      'recall@1': recall(1),
      [`recall@${CUT}`]: recall(CUT),
    },
  };
}

function ndcg(places: readonly number[]): number {
  const gain = (place: number) => (place <= CUT ? Math.LN2 / log64(place + 1) : 0);
  const found = places.reduce((sum, place) => sum + gain(place), 0);
  const best = places.reduce((sum, _, i) => sum + gain(i + 1), 0);
  return found / best;
}

/**
 * The places of answers in the order of all scores, from the highest; the first one first. What is
 * no answer and as high comes before them, so that a model that tells nothing apart is not praised;
 * so do all before NaN.
 */
export function placesOf(scores: ArrayLike<number>, answers: readonly number[]): number[] {
  const isAnswer = new Set(answers);
  const before = answers.map((answer) => {
    let others = 0;
    for (let i = 0; i < scores.length; i++) {
      others += Number(!isAnswer.has(i) && !(scores[i]! < scores[answer]!));
    }
    return others;
  });
  return before.sort((a, b) => a - b).map((others, i) => others + i + 1);
}

/**
 * Spearman's correlation: Pearson's of the places, where equal values share the mean of theirs. NaN
 * where all values of a side are equal, or one of them is NaN.
 */
export function spearman(a: readonly number[], b: readonly number[]): number {
  if ([...a, ...b].some(Number.isNaN)) {
    return Number.NaN; // which has no place in an order
  }
  const [x, y] = [meanPlaces(a), meanPlaces(b)];
  const middle = (a.length + 1) / 2;
  const product = (u: readonly number[], v: readonly number[]) =>
    u.reduce((sum, _, i) => sum + (u[i]! - middle) * (v[i]! - middle), 0);
  return product(x, y) / Math.sqrt(product(x, x) * product(y, y));
}

function meanPlaces(values: readonly number[]): number[] {
  const order = [...values.keys()].sort((i, j) => values[i]! - values[j]!);
  const places = new Array<number>(values.length);
  for (let first = 0; first < order.length; ) {
    let end = first + 1;
    while (end < order.length && values[order[end]!] === values[order[first]!]) {
      end++;
    }
    for (const i of order.slice(first, end)) {
      places[i] = (first + 1 + end) / 2;
    }
    first = end;
  }
  return places;
}
