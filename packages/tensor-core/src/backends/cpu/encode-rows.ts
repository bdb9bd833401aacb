// Encodes the commands of kernels that work row by row: assembly/reduce.ts, softmax.ts,
// layer-norm.ts, embedding.ts and cross-entropy.ts. Costs are rough ns per element on one thread.

import {
  COLUMN_BLOCK,
  F32,
  NORM_PART_ROWS,
  OP_CROSS_ENTROPY,
  OP_CROSS_ENTROPY_BACKWARD,
  OP_EMBEDDING,
  OP_EMBEDDING_BACKWARD,
  OP_EXTREMUM_BACKWARD,
  OP_LAYER_NORM,
  OP_LAYER_NORM_BACKWARD,
  OP_LAYER_NORM_PARAM_GRAD,
  OP_REDUCE,
  OP_RMS_NORM,
  OP_RMS_NORM_BACKWARD,
  OP_ROTARY,
  OP_SOFTMAX,
  OP_SOFTMAX_BACKWARD,
  REDUCE_MAX,
  REDUCE_MEAN,
  REDUCE_MIN,
  REDUCE_SUM,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../kind-table.js';
import type { CommandWriter } from './command-writer.js';

const REDUCE_CODES = {
  sum: REDUCE_SUM,
  mean: REDUCE_MEAN,
  max: REDUCE_MAX,
  min: REDUCE_MIN,
} as const;

export function reduce(call: KernelCalls['reduce'], w: CommandWriter): void {
  const { outer, dim, inner } = call;
  w.start(OP_REDUCE, 'reduce').int(ofKind('reduce', REDUCE_CODES, call.kind));
  w.view(call.x).view(call.out).int(outer, dim, inner);
  w.commit(unitChunks(w, outer * dim * inner * 0.4, outer, inner));
}

export function extremumBackward(call: KernelCalls['extremumBackward'], w: CommandWriter): void {
  const { outer, dim, inner } = call;
  w.start(OP_EXTREMUM_BACKWARD, 'extremumBackward');
  w.view(call.x).view(call.y).view(call.dy).view(call.out).int(outer, dim, inner);
  w.commit(unitChunks(w, outer * dim * inner, outer, inner));
}

export function softmax(call: KernelCalls['softmax'], w: CommandWriter): void {
  const { rows, cols, scale, isLog, causalRows } = call;
  w.start(OP_SOFTMAX, 'softmax').view(call.x).view(call.out);
  w.int(rows, cols)
    .float(scale)
    .int(isLog ? 1 : 0, causalRows);
  w.commit(rowChunks(w, rows * cols * 2, rows));
}

export function softmaxBackward(call: KernelCalls['softmaxBackward'], w: CommandWriter): void {
  const { rows, cols, scale, isLog } = call;
  w.start(OP_SOFTMAX_BACKWARD, 'softmaxBackward').view(call.y).view(call.dy).view(call.out);
  w.int(rows, cols)
    .float(scale)
    .int(isLog ? 1 : 0);
  w.commit(rowChunks(w, rows * cols, rows));
}

export function layerNorm(call: KernelCalls['layerNorm'], w: CommandWriter): void {
  const { rows, cols } = call;
  w.start(OP_LAYER_NORM, 'layerNorm').view(call.x).view(call.weight).view(call.bias).view(call.out);
  w.address(call.mean).address(call.rstd).int(rows, cols).float(call.eps);
  w.view(call.residual).view(call.sum);
  w.commit(rowChunks(w, rows * cols, rows));
}

export function layerNormBackward(call: KernelCalls['layerNormBackward'], w: CommandWriter): void {
  const { rows, cols } = call;
  if (call.dx !== undefined) {
    w.start(OP_LAYER_NORM_BACKWARD, 'layerNormBackward').view(call.x).view(call.weight);
    w.view(call.mean).view(call.rstd).view(call.dy).view(call.dx).int(rows, cols).view(call.dSum);
    w.commit(rowChunks(w, rows * cols, rows));
  }
  if (call.dWeight === undefined && call.dBias === undefined) {
    return;
  }
  w.start(OP_LAYER_NORM_PARAM_GRAD, 'layerNormBackward').view(call.x);
  w.view(call.mean).view(call.rstd).view(call.dy).view(call.dWeight).view(call.dBias);
  w.int(rows, cols);
  // Each strip of columns is a pass over all rows, so there are no more strips than threads.
  w.commit(Math.min(w.chunksFor(rows * cols), w.threads, Math.ceil(cols / 16)));
}

export function rmsNorm(call: KernelCalls['rmsNorm'], w: CommandWriter): void {
  const { rows, cols } = call;
  w.start(OP_RMS_NORM, 'rmsNorm').view(call.x).view(call.residual).view(call.weight);
  w.view(call.sum).view(call.out).address(call.rstd).int(rows, cols).float(call.eps);
  w.float(call.weightOffset);
  w.commit(rowChunks(w, rows * cols, rows));
}

export function rmsNormBackward(call: KernelCalls['rmsNormBackward'], w: CommandWriter): void {
  const { rows, cols, dWeight } = call;
  const numParts = Math.ceil(rows / NORM_PART_ROWS);
  const parts = dWeight === undefined ? 0 : w.temp(numParts * cols * 4);
  w.start(OP_RMS_NORM_BACKWARD, 'rmsNormBackward').view(call.x).view(call.weight);
  w.view(call.rstd).view(call.dy).view(call.dSum).view(call.dx).int(parts, rows, cols);
  w.float(call.weightOffset);
  w.commit(rowChunks(w, rows * cols * 1.5, numParts));
  if (dWeight !== undefined) {
    w.start(OP_REDUCE, 'rmsNormBackward').int(REDUCE_SUM, parts, F32).view(dWeight);
    w.int(1, numParts, cols);
    w.commit(unitChunks(w, numParts * cols * 0.4, 1, cols));
    w.release();
  }
}

export function rotary(call: KernelCalls['rotary'], w: CommandWriter): void {
  const { tokens, heads, numRotated, half, period, offset } = call;
  w.start(OP_ROTARY, 'rotary').view(call.x).address(call.frequencies).address(call.positions);
  w.view(call.out).int(tokens, heads, numRotated, half, period, offset, call.isInverse ? 1 : 0);
  w.commit(rowChunks(w, tokens * (heads + 4) * half, tokens));
}

export function embedding(call: KernelCalls['embedding'], w: CommandWriter): void {
  const { rows, cols, count } = call;
  w.start(OP_EMBEDDING, 'embedding').view(call.table).address(call.ids).view(call.out);
  w.int(rows, cols, count);
  w.commit(rowChunks(w, count * cols * 0.5, count));
}

export function embeddingBackward(call: KernelCalls['embeddingBackward'], w: CommandWriter): void {
  const { rows, cols, count } = call;
  const heads = w.temp(rows * 4);
  const links = w.temp(count * 4);
  w.start(OP_EMBEDDING_BACKWARD, 'embeddingBackward').address(call.ids).view(call.dy);
  w.view(call.dTable).int(rows, cols, count, heads, links);
  w.commit(rowChunks(w, (rows + count) * cols * 0.5, rows));
  w.release();
}

export function crossEntropy(call: KernelCalls['crossEntropy'], w: CommandWriter): void {
  const { rows, cols } = call;
  w.start(OP_CROSS_ENTROPY, 'crossEntropy').view(call.logits).address(call.targets);
  w.address(call.loss).address(call.lse).int(rows, cols);
  w.commit(rowChunks(w, rows * cols * 1.5, rows));
}

export function crossEntropyBackward(
  call: KernelCalls['crossEntropyBackward'],
  w: CommandWriter,
): void {
  const { rows, cols, first = 0, classes = cols } = call;
  w.start(OP_CROSS_ENTROPY_BACKWARD, 'crossEntropyBackward').view(call.logits);
  w.address(call.targets).address(call.lse).address(call.dLoss).view(call.out);
  w.int(rows, cols, first, classes);
  w.commit(rowChunks(w, rows * cols * 1.5, rows));
}

function rowChunks(w: CommandWriter, ns: number, rows: number): number {
  return Math.max(1, Math.min(w.chunksFor(ns), rows));
}

/**
 * Returns the chunks of a kernel whose units are rows (where inner is 1), or else blocks of columns
 * of one outer index.
 */
function unitChunks(w: CommandWriter, ns: number, outer: number, inner: number): number {
  return rowChunks(w, ns, inner === 1 ? outer : outer * Math.ceil(inner / COLUMN_BLOCK));
}
