// Encodes the commands of assembly/softmax.ts.

import { OP_SOFTMAX, OP_SOFTMAX_BACKWARD } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';

export function softmax(call: KernelCalls['softmax'], w: CommandWriter): void {
  const { rows, cols, scale, isLog, causalRows } = call;
  w.start(OP_SOFTMAX, 'softmax').view(call.x).view(call.out);
  w.int(rows, cols)
    .float(scale)
    .int(isLog ? 1 : 0, causalRows);
  w.commit(w.chunksFor(rows * cols * 2, rows));
}

export function softmaxBackward(call: KernelCalls['softmaxBackward'], w: CommandWriter): void {
  const { rows, cols, scale, isLog } = call;
  w.start(OP_SOFTMAX_BACKWARD, 'softmaxBackward').view(call.y).view(call.dy).view(call.out);
  w.int(rows, cols)
    .float(scale)
    .int(isLog ? 1 : 0);
  w.commit(w.chunksFor(rows * cols, rows));
}
