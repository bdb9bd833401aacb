// What the parts of a vocabulary make together of each token's cross-entropy. Pure arithmetic, in
// double precision; see Note [vocabulary parallel].

import { exp64, log64 } from '@shardweave/dtypes/float64';

/** How the words of a vocabulary are dealt out to ranks. */
export interface Vocabulary {
  readonly words: number;
  /** The words of each rank; the last one may have fewer. */
  readonly per: number;
}

/** What the ranks have computed, each from its own words. */
export interface PartSums extends Vocabulary {
  /**
   * For each rank the logSumExps of all tokens, and then the losses of all tokens: logSumExp minus
   * the target's logit where the target is a word of that rank.
   */
  readonly sums: Float32Array;
  /** The target of each token; one that is no word has no loss. */
  readonly ids: Int32Array;
  /** The rank that scales its slopes. */
  readonly rank: number;
}

/** What all words give for a token, by its index among those of all ranks. */
export interface WholeSums {
  /** The loss; 0 where the target is no word. */
  loss(token: number): number;
  /**
   * exp(logSumExp of the rank's words - logSumExp of all), their part of the probability; 0 where
   * the target is no word.
   */
  scale(token: number): number;
}

export function wholeSums({ sums, ids, rank, words, per }: PartSums): WholeSums {
  const numTokens = ids.length;
  const ranks = Array.from({ length: Math.ceil(words / per) }, (_, index) => index);
  const partOf = (owner: number, token: number) => sums[2 * numTokens * owner + token]!;
  const sumOfAll = (token: number) => {
    const parts = ranks.map((owner) => partOf(owner, token));
    const most = Math.max(...parts);
    return most + log64(parts.reduce((sum, part) => sum + exp64(part - most), 0));
  };
  const hasLoss = (token: number) => ids[token]! >= 0 && ids[token]! < words;
  return {
    loss: (token) => {
      if (!hasLoss(token)) {
        return 0;
      }
      const owner = Math.floor(ids[token]! / per);
      const logit = partOf(owner, token) - partOf(owner, numTokens + token);
      return sumOfAll(token) - logit;
    },
    scale: (token) => (hasLoss(token) ? exp64(partOf(rank, token) - sumOfAll(token)) : 0),
  };
}
