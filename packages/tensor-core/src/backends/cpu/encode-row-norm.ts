// Encodes the commands of assembly/row-norm.ts.

import {
  F32,
  NORM_PART_ROWS,
  OP_REDUCE,
  OP_ROW_NORM,
  OP_ROW_NORM_BACKWARD,
  OP_ROW_NORM_PART_SUMS,
  REDUCE_SUM,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { View } from '../../view.js';
import { type CommandWriter, columnUnits } from './command-writer.js';

export function rowNorm(call: KernelCalls['rowNorm'], w: CommandWriter): void {
  const { rows, cols, weightOffset = 0 } = call;
  w.start(OP_ROW_NORM, 'rowNorm').view(call.x).view(call.residual).view(call.weight);
  w.view(call.bias).view(call.sum).view(call.out).address(call.mean).address(call.rstd);
  w.int(rows, cols).float(call.eps).float(weightOffset);
  w.commit(w.chunksFor(rows * cols, rows));
}

export function rowNormBackward(call: KernelCalls['rowNormBackward'], w: CommandWriter): void {
  const { rows, cols, isCentered, weightOffset = 0, dWeight, dBias } = call;
  const numParts = Math.ceil(rows / NORM_PART_ROWS);
  const partsOf = (gradient: View | undefined) =>
    gradient === undefined ? 0 : w.temp(numParts * cols * 4);
  const [weights, biases] = [partsOf(dWeight), partsOf(dBias)];
  const hasParts = weights !== 0 || biases !== 0;
  w.start(OP_ROW_NORM_BACKWARD, 'rowNormBackward').view(call.x).view(call.weight);
  w.address(call.mean).address(call.rstd).view(call.dy).view(call.dSum).view(call.dx);
  w.int(weights, biases, rows, cols).float(weightOffset);
  w.commit(w.chunksFor(rows * cols * 1.5, hasParts ? numParts : rows));
  if (isCentered && hasParts) {
    w.start(OP_ROW_NORM_PART_SUMS, 'rowNormBackward').int(weights).view(dWeight);
    w.int(biases).view(dBias).int(numParts, cols);
    w.commit(w.chunksFor(numParts * cols * 0.8, columnUnits(1, cols)));
  } else if (dWeight !== undefined) {
    w.start(OP_REDUCE, 'rowNormBackward').int(REDUCE_SUM, weights, F32).view(dWeight);
    w.int(1, numParts, cols);
    w.commit(w.chunksFor(numParts * cols * 0.4, columnUnits(1, cols)));
  }
  w.release();
}
