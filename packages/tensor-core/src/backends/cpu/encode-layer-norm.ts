// Encodes the commands of assembly/layer-norm.ts.

import {
  OP_LAYER_NORM,
  OP_LAYER_NORM_BACKWARD,
  OP_LAYER_NORM_PARAM_GRAD,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';

export function layerNorm(call: KernelCalls['layerNorm'], w: CommandWriter): void {
  const { rows, cols } = call;
  w.start(OP_LAYER_NORM, 'layerNorm').view(call.x).view(call.weight).view(call.bias).view(call.out);
  w.address(call.mean).address(call.rstd).int(rows, cols).float(call.eps);
  w.view(call.residual).view(call.sum);
  w.commit(w.chunksFor(rows * cols, rows));
}

export function layerNormBackward(call: KernelCalls['layerNormBackward'], w: CommandWriter): void {
  const { rows, cols } = call;
  if (call.dx !== undefined) {
    w.start(OP_LAYER_NORM_BACKWARD, 'layerNormBackward').view(call.x).view(call.weight);
    w.view(call.mean).view(call.rstd).view(call.dy).view(call.dx).int(rows, cols).view(call.dSum);
    w.commit(w.chunksFor(rows * cols, rows));
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
