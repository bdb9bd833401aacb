// Layer normalization over rows (Ba et al., 2016) with biased variance, and its gradients.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { addRows, type Open } from './elements.js';

export function layerNorm(call: KernelCalls['layerNorm'], open: Open): void {
  const { rows, cols, eps } = call;
  const x = addRows(call, open); // [rows, cols]
  const out = open(call.out); // [rows, cols]
  const weight = call.weight && open(call.weight); // [cols]
  const bias = call.bias && open(call.bias); // [cols]
  const means = open(call.mean); // [rows]
  const rstds = open(call.rstd); // [rows]
  for (let r = 0; r < rows; r++) {
    let mean = 0;
    for (let j = 0; j < cols; j++) {
      mean += x.get(r * cols + j) / cols;
    }
    let variance = 0;
    for (let j = 0; j < cols; j++) {
      variance += (x.get(r * cols + j) - mean) ** 2 / cols;
    }
    const rstd = 1 / Math.sqrt(variance + eps);
    for (let j = 0; j < cols; j++) {
      const normalized = (x.get(r * cols + j) - mean) * rstd;
      out.set(r * cols + j, normalized * (weight?.get(j) ?? 1) + (bias?.get(j) ?? 0));
    }
    means.set(r, mean);
    rstds.set(r, rstd);
  }
}

export function layerNormBackward(call: KernelCalls['layerNormBackward'], open: Open): void {
  const { rows, cols } = call;
  const x = open(call.x);
  const weight = call.weight && open(call.weight);
  const mean = open(call.mean);
  const rstd = open(call.rstd);
  const dy = open(call.dy);
  const dSum = call.dSum && open(call.dSum);
  const dx = call.dx && open(call.dx);
  for (let r = 0; r < rows; r++) {
    const normalized = (j: number) => (x.get(r * cols + j) - mean.get(r)) * rstd.get(r);
    const upstream = (j: number) => dy.get(r * cols + j) * (weight?.get(j) ?? 1);
    let meanUpstream = 0;
    let meanProduct = 0;
    for (let j = 0; j < cols; j++) {
      meanUpstream += upstream(j) / cols;
      meanProduct += (upstream(j) * normalized(j)) / cols;
    }
    for (let j = 0; j < cols; j++) {
      const centered = upstream(j) - meanUpstream - normalized(j) * meanProduct;
      dx?.set(r * cols + j, rstd.get(r) * centered + (dSum?.get(r * cols + j) ?? 0));
    }
  }
  const dWeight = call.dWeight && open(call.dWeight);
  const dBias = call.dBias && open(call.dBias);
  for (let j = 0; j < cols; j++) {
    let weightSum = 0;
    let biasSum = 0;
    for (let r = 0; r < rows; r++) {
      const gradient = dy.get(r * cols + j);
      weightSum += gradient * (x.get(r * cols + j) - mean.get(r)) * rstd.get(r);
      biasSum += gradient;
    }
    dWeight?.set(j, weightSum);
    dBias?.set(j, biasSum);
  }
}
