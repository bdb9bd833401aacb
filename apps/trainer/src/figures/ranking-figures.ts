// The figures of a ranking: where in the order of a query's documents those are that answer it.

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
  const gain = (place: number) => (place <= CUT ? 1 / Math.log2(place + 1) : 0);
  const found = places.reduce((sum, place) => sum + gain(place), 0);
  const best = places.reduce((sum, _, i) => sum + gain(i + 1), 0);
  return found / best;
}

/**
 * The place of a score in the order of all scores, from the highest. Others that are as high come
 * before it, so that a model that tells nothing apart is not praised; so do all before NaN.
 */
export function placeOf(scores: ArrayLike<number>, index: number): number {
  const own = scores[index]!;
  let place = 1;
  for (let i = 0; i < scores.length; i++) {
    if (i !== index && !(scores[i]! < own)) {
      place++;
    }
  }
  return place;
}

/** Spearman's correlation: Pearson's of the places, where equal values share the mean of theirs. */
export function spearman(a: readonly number[], b: readonly number[]): number {
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
