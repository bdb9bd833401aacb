// Root mean square normalization over rows (Zhang and Sennrich, 2019), and its gradients.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { addRows, type Open } from './elements.js';

export function rmsNorm(call: KernelCalls['rmsNorm'], open: Open): void {
  const { rows, cols, eps, weightOffset } = call;
  const x = addRows(call, open); // [rows, cols]
  const out = open(call.out); // [rows, cols]
  const weight = call.weight && open(call.weight); // [cols]
  const rstds = open(call.rstd); // [rows]
  for (let r = 0; r < rows; r++) {
    let meanSquare = 0;
    for (let j = 0; j < cols; j++) {
      meanSquare += x.get(r * cols + j) ** 2 / cols;
    }
    const rstd = 1 / Math.sqrt(meanSquare + eps);
    for (let j = 0; j < cols; j++) {
      const scale = weight === undefined ? 1 : weight.get(j) + weightOffset;
      out.set(r * cols + j, x.get(r * cols + j) * rstd * scale);
    }
    rstds.set(r, rstd);
  }
}

export function rmsNormBackward(call: KernelCalls['rmsNormBackward'], open: Open): void {
  const { rows, cols, weightOffset } = call;
  const x = open(call.x);
  const weight = call.weight && open(call.weight);
  const rstd = open(call.rstd);
  const dy = open(call.dy);
  const dSum = call.dSum && open(call.dSum);
  const dx = call.dx && open(call.dx);
  const dWeight = call.dWeight && open(call.dWeight);
  const weightSums = new Float64Array(cols);
  for (let r = 0; r < rows; r++) {
    const normalized = (j: number) => x.get(r * cols + j) * rstd.get(r);
    const upstream = (j: number) =>
      dy.get(r * cols + j) * (weight === undefined ? 1 : weight.get(j) + weightOffset);
    let meanProduct = 0;
    for (let j = 0; j < cols; j++) {
      meanProduct += (upstream(j) * normalized(j)) / cols;
      weightSums[j]! += dy.get(r * cols + j) * normalized(j);
    }
    for (let j = 0; j < cols; j++) {
      const at = r * cols + j;
      const own = rstd.get(r) * (upstream(j) - normalized(j) * meanProduct);
      dx?.set(at, own + (dSum?.get(at) ?? 0));
    }
  }
  weightSums.forEach((sum, j) => {
    dWeight?.set(j, sum);
  });
}
