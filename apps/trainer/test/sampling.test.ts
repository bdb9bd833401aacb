import { describe, expect, it } from 'vitest';
import { drawToken, sampleTokens } from '../src/model/sampling.js';

const LOGITS = Float32Array.from([0, 3, 1, 2]);

describe('drawToken', () => {
  it('draws by the softmax of the likeliest, divided by the temperature', () => {
    // 1000 evenly spaced draws count probabilities to within one draw each.
    const counts = new Map<number, number>();
    for (let i = 0; i < 1000; i++) {
      const token = drawToken(LOGITS, (i + 0.5) / 1000, { temperature: 2, topK: 3 });
      counts.set(token, (counts.get(token) ?? 0) + 1);
    }
    const weights = [Math.exp(1.5), Math.exp(1), Math.exp(0.5)];
    const total = weights[0]! + weights[1]! + weights[2]!;
    expect([...counts.keys()].sort()).toEqual([1, 2, 3]);
    for (const [i, token] of [1, 3, 2].entries()) {
      expect(Math.abs(counts.get(token)! - (1000 * weights[i]!) / total)).toBeLessThanOrEqual(1);
    }
  });

  it('survives large logits and a draw at the very end', () => {
    expect(drawToken(Float32Array.from([1e30, -1e30]), 0.999999, { temperature: 1, topK: 9 })).toBe(
      0,
    );
    expect(drawToken(LOGITS, 1 - 2 ** -53, { temperature: 1, topK: 2 })).toBe(3);
  });
});

describe('sampleTokens', () => {
  it('feeds back what it drew, the last tokens of the context alone', async () => {
    const seen: number[][] = [];
    const tokens = await sampleTokens(
      Uint32Array.from([7, 8]),
      async (context) => {
        seen.push([...context]);
        const logits = new Float32Array(10);
        logits[seen.length] = 100;
        return logits;
      },
      { temperature: 1, topK: 5, count: 3, context: 3, uniform: () => 0.5 },
    );
    expect([...tokens]).toEqual([1, 2, 3]);
    expect(seen).toEqual([
      [7, 8],
      [7, 8, 1],
      [8, 1, 2],
    ]);
  });
});
