// Float64 twin of causal self-attention over packed queries, keys and values.

import { dropoutTwin, type TwinMask } from './dropout.js';
import type { TwinArray } from './twin-array.js';

export function attentionTwin(
  qkv: TwinArray, // [batch, seq, 3 * dim]
  options: { readonly numHeads: number; readonly mask?: TwinMask | undefined },
): TwinArray {
  const { numHeads, mask } = options;
  const [batch, seq, width] = qkv.shape as [number, number, number];
  const dim = width / 3;
  const headDim = dim / numHeads;
  const at = (b: number, t: number, part: number, head: number, d: number) =>
    qkv.data[(b * seq + t) * width + part * dim + head * headDim + d]!;

  const weights = new Float64Array(batch * numHeads * seq * seq);
  for (let b = 0; b < batch; b++) {
    for (let head = 0; head < numHeads; head++) {
      for (let t = 0; t < seq; t++) {
        const row = ((b * numHeads + head) * seq + t) * seq;
        let total = 0;
        for (let s = 0; s <= t; s++) {
          let score = 0;
          for (let d = 0; d < headDim; d++) {
            score += at(b, t, 0, head, d) * at(b, s, 1, head, d);
          }
          weights[row + s] = Math.exp(score / Math.sqrt(headDim));
          total += weights[row + s]!;
        }
        for (let s = 0; s <= t; s++) {
          weights[row + s]! /= total;
        }
      }
    }
  }
  const shape = [batch, numHeads, seq, seq];
  const used = mask === undefined ? weights : dropoutTwin({ shape, data: weights }, mask).data;

  const out = new Float64Array(batch * seq * dim);
  for (let b = 0; b < batch; b++) {
    for (let t = 0; t < seq; t++) {
      for (let column = 0; column < dim; column++) {
        const head = Math.floor(column / headDim);
        let sum = 0;
        for (let s = 0; s < seq; s++) {
          const weight = used[((b * numHeads + head) * seq + t) * seq + s]!;
          sum += weight * at(b, s, 2, head, column % headDim);
        }
        out[(b * seq + t) * dim + column] = sum;
      }
    }
  }
  return { shape: [batch, seq, dim], data: out };
}
