// Encodes the commands of assembly/row-norm.ts.

import {
  F32,
  NORM_PART_ROWS,
  OP_REDUCE,
  OP_ROW_NORM,
  OP_ROW_NORM_BACKWARD,
  OP_ROW_NORM_PARAM_GRAD,
  REDUCE_SUM,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { type CommandWriter, columnUnits } from './command-writer.js';

export function rowNorm(call: KernelCalls['rowNorm'], w: CommandWriter): void {
  const { rows, cols, weightOffset = 0 } = call;
  w.start(OP_ROW_NORM, 'rowNorm').view(call.x).view(call.residual).view(call.weight);
  w.view(call.bias).view(call.sum).view(call.out).address(call.mean).address(call.rstd);
  w.int(rows, cols).float(call.eps).float(weightOffset);
  w.commit(w.chunksFor(rows * cols, rows));
}

export function rowNormBackward(call: KernelCalls['rowNormBackward'], w: CommandWriter): void {
  const { rows, cols, isCentered, weightOffset = 0, dx, dWeight, dBias } = call;
  const numParts = Math.ceil(rows / NORM_PART_ROWS);
  const parts = isCentered || dWeight === undefined ? 0 : w.temp(numParts * cols * 4);
  const hasParts = parts !== 0;
  if (dx !== undefined || hasParts) {
    w.start(OP_ROW_NORM_BACKWARD, 'rowNormBackward').view(call.x).view(call.weight);
    w.address(call.mean).address(call.rstd).view(call.dy).view(call.dSum).view(dx);
    w.int(parts, rows, cols).float(weightOffset);
    w.commit(w.chunksFor(rows * cols * (hasParts ? 1.5 : 1), hasParts ? numParts : rows));
  }
  if (hasParts) {
    w.start(OP_REDUCE, 'rowNormBackward').int(REDUCE_SUM, parts, F32).view(dWeight);
    w.int(1, numParts, cols);
    w.commit(w.chunksFor(numParts * cols * 0.4, columnUnits(1, cols)));
    w.release();
  } else if (dWeight !== undefined || dBias !== undefined) {
    w.start(OP_ROW_NORM_PARAM_GRAD, 'rowNormBackward').view(call.x).address(call.mean);
    w.address(call.rstd).view(call.dy).view(dWeight).view(dBias).int(rows, cols);
    // Each strip of columns is a pass over all rows, so there are no more strips than threads.
    w.commit(Math.min(w.chunksFor(rows * cols), w.threads, Math.ceil(cols / 16)));
  }
}
