// Cross-entropy fused with log-softmax over rows, and its gradient with respect to the logits.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Open } from './elements.js';

export function crossEntropy(call: KernelCalls['crossEntropy'], open: Open): void {
  const { rows, cols } = call;
  const logits = open(call.logits); // [rows, cols]
  const targets = open(call.targets); // [rows]
  const loss = open(call.loss); // [rows]
  const lse = open(call.lse); // [rows]
  for (let r = 0; r < rows; r++) {
    let max = Number.NEGATIVE_INFINITY;
    for (let j = 0; j < cols; j++) {
      max = Math.max(max, logits.get(r * cols + j));
    }
    let sum = 0;
    for (let j = 0; j < cols; j++) {
      sum += Math.exp(logits.get(r * cols + j) - max);
    }
    const logSumExp = max + Math.log(sum);
    const target = targets.get(r);
    const hasTarget = target >= 0 && target < cols;
    loss.set(r, hasTarget ? logSumExp - logits.get(r * cols + target) : 0);
    lse.set(r, logSumExp);
  }
}

export function crossEntropyBackward(call: KernelCalls['crossEntropyBackward'], open: Open): void {
  const { rows, cols, first = 0, classes = cols } = call;
  const logits = open(call.logits);
  const targets = open(call.targets);
  const lse = open(call.lse);
  const dLoss = open(call.dLoss);
  const out = open(call.out);
  for (let r = 0; r < rows; r++) {
    const target = targets.get(r);
    const hasTarget = target >= 0 && target < classes;
    for (let j = 0; j < cols; j++) {
      const probability = Math.exp(logits.get(r * cols + j) - lse.get(r));
      const slope = probability - (first + j === target ? 1 : 0);
      out.set(r * cols + j, hasTarget ? dLoss.get(r) * slope : 0);
    }
  }
}
