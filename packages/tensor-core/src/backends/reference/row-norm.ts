// Layer normalization over rows (Ba et al., 2016) with biased variance, root mean square
// normalization (Zhang and Sennrich, 2019), which does not center rows, and their gradients.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { addRows, type Open } from './elements.js';

export function rowNorm(call: KernelCalls['rowNorm'], open: Open): void {
  const { rows, cols, eps, isCentered, weightOffset = 0 } = call;
  const x = addRows(call, open); // [rows, cols]
  const out = open(call.out); // [rows, cols]
  const weight = call.weight && open(call.weight); // [cols]
  const bias = call.bias && open(call.bias); // [cols]
  const means = call.mean && open(call.mean); // [rows]
  const rstds = open(call.rstd); // [rows]
  for (let r = 0; r < rows; r++) {
    let mean = 0;
    for (let j = 0; isCentered && j < cols; j++) {
      mean += x.get(r * cols + j) / cols;
    }
    let meanSquare = 0;
    for (let j = 0; j < cols; j++) {
      meanSquare += (x.get(r * cols + j) - mean) ** 2 / cols;
    }
    const rstd = 1 / Math.sqrt(meanSquare + eps);
    for (let j = 0; j < cols; j++) {
      const normalized = (x.get(r * cols + j) - mean) * rstd;
      const scale = weight === undefined ? 1 : weight.get(j) + weightOffset;
      out.set(r * cols + j, normalized * scale + (bias?.get(j) ?? 0));
    }
    means?.set(r, mean);
    rstds.set(r, rstd);
  }
}

export function rowNormBackward(call: KernelCalls['rowNormBackward'], open: Open): void {
  const { rows, cols, isCentered, weightOffset = 0 } = call;
  const x = open(call.x);
  const weight = call.weight && open(call.weight);
  const mean = call.mean && open(call.mean);
  const rstd = open(call.rstd);
  const dy = open(call.dy);
  const dSum = call.dSum && open(call.dSum);
  const dx = call.dx && open(call.dx);
  const dWeight = call.dWeight && open(call.dWeight);
  const dBias = call.dBias && open(call.dBias);
  const weightSums = new Float64Array(cols);
  const biasSums = new Float64Array(cols);
  for (let r = 0; r < rows; r++) {
    const normalized = (j: number) => (x.get(r * cols + j) - (mean?.get(r) ?? 0)) * rstd.get(r);
    const upstream = (j: number) =>
      dy.get(r * cols + j) * (weight === undefined ? 1 : weight.get(j) + weightOffset);
    let meanUpstream = 0;
    let meanProduct = 0;
    for (let j = 0; j < cols; j++) {
      meanUpstream += isCentered ? upstream(j) / cols : 0;
      meanProduct += (upstream(j) * normalized(j)) / cols;
      weightSums[j]! += dy.get(r * cols + j) * normalized(j);
      biasSums[j]! += dy.get(r * cols + j);
    }
    for (let j = 0; j < cols; j++) {
      const at = r * cols + j;
      const own = rstd.get(r) * (upstream(j) - meanUpstream - normalized(j) * meanProduct);
      dx?.set(at, own + (dSum?.get(at) ?? 0));
    }
  }
  for (let j = 0; j < cols; j++) {
    dWeight?.set(j, weightSums[j]!);
    dBias?.set(j, biasSums[j]!);
  }
}
