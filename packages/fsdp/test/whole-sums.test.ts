// The cross-entropy of a token from what each rank knows of its own words.

import { expect, it } from 'vitest';
import { wholeSums } from '../src/unit/whole-sums.js';

const LOGITS = [
  [1, -2, 0.5, 3, 0],
  [90, 88, -90, 89, 91],
];

/** What ranks of `per` words would send for two tokens. */
function sumsOf(ids: Int32Array, per: number): Float32Array {
  const parts: number[] = [];
  for (let first = 0; first < 5; first += per) {
    const lse = LOGITS.map((row) =>
      Math.log(row.slice(first, first + per).reduce((sum, logit) => sum + Math.exp(logit), 0)),
    );
    const losses = [...ids].map((id, i) =>
      id >= first && id < first + per ? lse[i]! - LOGITS[i]![id]! : 0,
    );
    parts.push(...lse, ...losses);
  }
  return Float32Array.from(parts);
}

it.each([1, 2, 3])('losses and shares are those of all words, %i a rank', (per) => {
  const ids = Int32Array.of(3, 4);
  const sums = sumsOf(ids, per);
  const rank = 1;
  const whole = wholeSums({ sums, ids, rank, words: 5, per });
  for (const [i, row] of LOGITS.entries()) {
    const all = row.reduce((sum, logit) => sum + Math.exp(logit), 0);
    const own = row.slice(per, 2 * per).reduce((sum, logit) => sum + Math.exp(logit), 0);
    expect(whole.loss(i)).toBeCloseTo(Math.log(all) - row[ids[i]!]!, 4);
    expect(whole.scale(i)).toBeCloseTo(own / all, 5);
  }
});

it('a target that is no word has no loss and no slope', () => {
  const ids = Int32Array.of(-1, 5);
  const whole = wholeSums({ sums: sumsOf(ids, 3), ids, rank: 0, words: 5, per: 3 });
  expect([0, 1].map((i) => [whole.loss(i), whole.scale(i)])).toEqual([
    [0, 0],
    [0, 0],
  ]);
});
