// Steps of Adam, AdamW and SGD as PyTorch's torch.optim defines them, over segments of flat views.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Open } from './elements.js';

export function adam(call: KernelCalls['adam'], open: Open): void {
  const param = open(call.param);
  const grad = open(call.grad);
  const expAvg = open(call.expAvg);
  const expAvgSq = open(call.expAvgSq);
  const gradScale = call.gradScale ? open(call.gradScale).get(0) : 1;
  for (const { start, length, group } of call.segments) {
    const { lr, beta1, beta2, eps, weightDecay, decoupled, ...rest } = call.groups[group]!;
    for (let i = start; i < start + length; i++) {
      const p = decoupled ? param.get(i) * (1 - lr * weightDecay) : param.get(i);
      const decay = decoupled || weightDecay === 0 ? 0 : weightDecay * p;
      const g = grad.get(i) * gradScale + decay;
      const m = beta1 * expAvg.get(i) + (1 - beta1) * g;
      const v = beta2 * expAvgSq.get(i) + (1 - beta2) * g * g;
      const denominator = Math.sqrt(v) / Math.sqrt(rest.biasCorrection2) + eps;
      param.set(i, p - ((lr / rest.biasCorrection1) * m) / denominator);
      expAvg.set(i, m);
      expAvgSq.set(i, v);
    }
  }
}

export function sgd(call: KernelCalls['sgd'], open: Open): void {
  const param = open(call.param);
  const grad = open(call.grad);
  const buffer = call.momentumBuffer && open(call.momentumBuffer);
  const gradScale = call.gradScale ? open(call.gradScale).get(0) : 1;
  for (const { start, length, group } of call.segments) {
    const { lr, momentum, dampening, weightDecay, nesterov, isFirstStep } = call.groups[group]!;
    for (let i = start; i < start + length; i++) {
      const p = param.get(i);
      const g = grad.get(i) * gradScale + (weightDecay === 0 ? 0 : weightDecay * p);
      let step = g;
      if (buffer !== undefined && momentum !== 0) {
        const moved = isFirstStep ? g : momentum * buffer.get(i) + (1 - dampening) * g;
        buffer.set(i, moved);
        step = nesterov ? g + momentum * moved : moved;
      }
      param.set(i, p - lr * step);
    }
  }
}
