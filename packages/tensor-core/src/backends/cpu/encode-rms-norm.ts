// Encodes the commands of assembly/rms-norm.ts.

import {
  F32,
  NORM_PART_ROWS,
  OP_REDUCE,
  OP_RMS_NORM,
  OP_RMS_NORM_BACKWARD,
  REDUCE_SUM,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { type CommandWriter, columnUnits } from './command-writer.js';

export function rmsNorm(call: KernelCalls['rmsNorm'], w: CommandWriter): void {
  const { rows, cols } = call;
  w.start(OP_RMS_NORM, 'rmsNorm').view(call.x).view(call.residual).view(call.weight);
  w.view(call.sum).view(call.out).address(call.rstd).int(rows, cols).float(call.eps);
  w.float(call.weightOffset);
  w.commit(w.chunksFor(rows * cols, rows));
}

export function rmsNormBackward(call: KernelCalls['rmsNormBackward'], w: CommandWriter): void {
  const { rows, cols, dWeight } = call;
  const numParts = Math.ceil(rows / NORM_PART_ROWS);
  const parts = dWeight === undefined ? 0 : w.temp(numParts * cols * 4);
  w.start(OP_RMS_NORM_BACKWARD, 'rmsNormBackward').view(call.x).view(call.weight);
  w.view(call.rstd).view(call.dy).view(call.dSum).view(call.dx).int(parts, rows, cols);
  w.float(call.weightOffset);
  w.commit(w.chunksFor(rows * cols * 1.5, numParts));
  if (dWeight !== undefined) {
    w.start(OP_REDUCE, 'rmsNormBackward').int(REDUCE_SUM, parts, F32).view(dWeight);
    w.int(1, numParts, cols);
    w.commit(w.chunksFor(numParts * cols * 0.4, columnUnits(1, cols)));
    w.release();
  }
}
