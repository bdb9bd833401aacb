// Softmax and log-softmax over rows of scale * x, with an optional causal mask, and their
// gradients.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Open } from './elements.js';

export function softmax(call: KernelCalls['softmax'], open: Open): void {
  const { rows, cols, scale, isLog, causalRows } = call;
  const x = open(call.x); // [rows, cols]
  const out = open(call.out); // [rows, cols]
  for (let r = 0; r < rows; r++) {
    const visible = causalRows > 0 ? (r % causalRows) + cols - causalRows + 1 : cols;
    const scores: number[] = [];
    for (let j = 0; j < visible; j++) {
      scores.push(scale * x.get(r * cols + j));
    }
    const max = scores.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
    const sum = scores.reduce((total, score) => total + Math.exp(score - max), 0);
    for (let j = 0; j < cols; j++) {
      const logarithm = j < visible ? scores[j]! - max - Math.log(sum) : Number.NEGATIVE_INFINITY;
      out.set(r * cols + j, isLog ? logarithm : Math.exp(logarithm));
    }
  }
}

export function softmaxBackward(call: KernelCalls['softmaxBackward'], open: Open): void {
  const { rows, cols, scale, isLog } = call;
  const y = open(call.y);
  const dy = open(call.dy);
  const out = open(call.out);
  for (let r = 0; r < rows; r++) {
    let sum = 0;
    for (let i = r * cols; i < (r + 1) * cols; i++) {
      sum += dy.get(i) * (isLog ? 1 : y.get(i));
    }
    for (let i = r * cols; i < (r + 1) * cols; i++) {
      const slope = isLog ? dy.get(i) - Math.exp(y.get(i)) * sum : y.get(i) * (dy.get(i) - sum);
      out.set(i, scale * slope);
    }
  }
}
