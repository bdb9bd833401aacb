// Each rule of sampling is compared with probabilities that were computed by hand.

import { drawToken, NnConfigError, type SamplingOptions } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';

/** Logits with the probabilities 0.1, 0.4, 0.2 and 0.3 at temperature 1. */
const LOGITS = Float32Array.from([0.1, 0.4, 0.2, 0.3], Math.log);
const DRAWS = 1000;

/**
 * Counts how often each token is drawn in a thousand draws with evenly spaced random numbers. The
 * counts are exact to one draw.
 */
function counts(options: SamplingOptions, logits = LOGITS): number[] {
  const found = Array.from(logits, () => 0);
  for (let i = 0; i < DRAWS; i++) {
    found[drawToken(logits, (i + 0.5) / DRAWS, options)]! += 1;
  }
  return found;
}

function expectCounts(options: SamplingOptions, weights: readonly number[]): void {
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const found = counts(options);
  for (const [token, weight] of weights.entries()) {
    const expected = (DRAWS * weight) / total;
    expect(Math.abs(found[token]! - expected), `${found}`).toBeLessThanOrEqual(weight > 0 ? 1 : 0);
  }
}

/** Draws as drawToken does, with all tokens sorted where some are left out. */
function drawBySort(
  logits: Float32Array,
  uniform: number,
  { temperature, topK, topP, minP }: { readonly [name in keyof SamplingOptions]-?: number },
): number {
  const isCut = topK < logits.length || topP < 1 || minP > 0;
  const order = [...logits.keys()]
    .sort((a, b) => (isCut ? logits[b]! - logits[a]! : 0) || a - b)
    .slice(0, topK);
  const most = logits.reduce((a, b) => Math.max(a, b));
  const weights = order.map((token) => {
    const below = logits[token]! - most;
    return below === 0 || Number.isNaN(below) ? 1 : Math.exp(below / temperature);
  });
  const sum = (all: readonly number[]) => all.reduce((a, b) => a + b, 0);
  const isKept = (weight: number, i: number) =>
    i === 0 || (weight >= minP && (topP === 1 || sum(weights.slice(0, i)) < topP * sum(weights)));
  const kept = weights.filter(isKept);
  const at = kept.findIndex((_, i) => sum(kept.slice(0, i + 1)) > uniform * sum(kept));
  return order[at]!;
}

describe('drawToken', () => {
  it.each<[string, SamplingOptions, number[]]>([
    ['as probable as they are', {}, [0.1, 0.4, 0.2, 0.3]],
    ['by the roots at temperature 2', { temperature: 2 }, [0.1, 0.4, 0.2, 0.3].map(Math.sqrt)],
    ['by the squares at temperature 0.5', { temperature: 0.5 }, [0.01, 0.16, 0.04, 0.09]],
    ['the likeliest at temperature 0', { temperature: 0 }, [0, 1, 0, 0]],
    ['the likeliest two', { topK: 2 }, [0, 0.4, 0, 0.3]],
    ['all, of more than there are', { topK: 9 }, [0.1, 0.4, 0.2, 0.3]],
    ['as many as pass a probability of 0.69', { topP: 0.69 }, [0, 0.4, 0, 0.3]],
    ['one more where they fall short of 0.71', { topP: 0.71 }, [0, 0.4, 0.2, 0.3]],
    ['at least one, of the smallest probability', { topP: 1e-6 }, [0, 1, 0, 0]],
    ['those at least half as probable as the likeliest', { minP: 0.4999 }, [0, 0.4, 0.2, 0.3]],
    ['but not those below', { minP: 0.51 }, [0, 0.4, 0, 0.3]],
    ['the likeliest alone where minP is 1', { minP: 1 }, [0, 1, 0, 0]],
    // After topK has left two tokens, the likelier one has the probability 0.4 / 0.7 = 0.57.
    ['topP of what topK left', { topK: 2, topP: 0.56 }, [0, 1, 0, 0]],
    // At temperature 0.5 the two likeliest tokens have 0.25 of a total of 0.3, which is 0.83.
    ['topP after the temperature', { temperature: 0.5, topP: 0.82 }, [0, 0.16, 0, 0.09]],
    ['minP after the temperature', { temperature: 0.5, minP: 0.3 }, [0, 0.16, 0, 0.09]],
  ])('draws %s', (_, options, weights) => {
    expectCounts(options, weights);
  });

  it('takes as few tokens as reach topP exactly', () => {
    // The weights are all 1 and add up exactly, so two of four tokens reach exactly one half.
    const even = new Float32Array(4);
    expect(counts({ topP: 0.5 }, even)).toEqual([500, 500, 0, 0]);
    expect(counts({ topP: 0.75 }, even)).toEqual([333, 334, 333, 0]);
  });

  it('takes the lower of equal tokens first, and zeros of both signs as equal', () => {
    const equal = Float32Array.from([-3, -0, 0, -0, -7]);
    expect(counts({ topK: 2 }, equal)).toEqual([0, 500, 500, 0, 0]);
    expect(counts({ minP: 1 }, equal)).toEqual([0, 333, 334, 333, 0]);
    expect(drawToken(equal, 0, { temperature: 0 })).toBe(1);
    expect(drawToken(equal, 0.9, { topK: 3 })).toBe(3);
  });

  it('orders large vocabularies, large and infinite logits', () => {
    const many = Float32Array.from({ length: 150_000 }, (_, i) => -((i * 7919) % 150_000) / 1000);
    const best = many.indexOf(0);
    expect(drawToken(many, 0, { topK: 3 })).toBe(best);
    expect(drawToken(Float32Array.from([1e30, -1e30]), 0.999999, { topK: 9 })).toBe(0);
    const masked = Float32Array.from([Number.NEGATIVE_INFINITY, 2, Number.NEGATIVE_INFINITY]);
    expect(counts({}, masked)).toEqual([0, 1000, 0]);
    const sure = Float32Array.from([1, Number.POSITIVE_INFINITY]);
    expect(counts({}, sure)).toEqual([0, 1000]);
    expect(drawToken(LOGITS, 1 - 2 ** -53, { topK: 2 })).toBe(3);
  });

  it('draws what a sort of all tokens would', () => {
    let state = 1;
    const random = () => {
      state = (state * 1664525 + 1013904223) >>> 0;
      return state / 2 ** 32;
    };
    for (let i = 0; i < 600; i++) {
      const spread = [0.01, 1, 5, 30][i % 4]!;
      const round = i % 3 === 0 ? Math.round : (x: number) => x; // many are equal
      const length = 1 + (i % 9 === 0 ? i : i % 200);
      const logits = Float32Array.from({ length }, () =>
        random() < 0.02 ? Number.NEGATIVE_INFINITY : round((random() + random() - 1) * 3 * spread),
      );
      const options = {
        temperature: [1, 0.7, 2, 0.1][(i >> 2) % 4]!,
        topK: i % 2 === 0 ? logits.length : 1 + Math.floor(random() * 60),
        topP: i % 5 < 3 ? 1 : 0.05 + 0.95 * random(),
        minP: i % 7 < 4 ? 0 : 0.3 * random(),
      };
      const uniform = random();
      const about = JSON.stringify({ logits: [...logits], uniform, options });
      expect(drawToken(logits, uniform, options), about).toBe(drawBySort(logits, uniform, options));
    }
  });

  it('looks at every token once or twice where none is left out', () => {
    let numReads = 0;
    const logits = new Proxy(
      Float32Array.from({ length: 500 }, (_, i) => i % 7),
      {
        get: (target, key) => {
          numReads += typeof key === 'string' && /^[0-9]+$/.test(key) ? 1 : 0;
          return Reflect.get(target, key, target) as unknown;
        },
      },
    );
    drawToken(logits, 0.999);
    expect(numReads).toBeLessThanOrEqual(4 * 500);
  });

  it('never draws what has no weight, however sums are rounded', () => {
    for (let length = 2; length < 600; length += 7) {
      const logits = Float32Array.from({ length }, (_, i) => Math.sin(i) * 3);
      logits[length - 1] = Number.NEGATIVE_INFINITY;
      expect(drawToken(logits, 1 - 2 ** -53)).toBeLessThan(length - 1);
    }
  });

  it('refuses logits that are not numbers', () => {
    expect(() => drawToken(Float32Array.from([0, Number.NaN]), 0.5)).toThrow(NnConfigError);
    expect(() => drawToken(new Float32Array(0), 0.5)).toThrow(NnConfigError);
  });
});
