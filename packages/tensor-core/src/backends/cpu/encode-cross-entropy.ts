// Encodes the commands of assembly/cross-entropy.ts.

import { OP_CROSS_ENTROPY, OP_CROSS_ENTROPY_BACKWARD } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';

export function crossEntropy(call: KernelCalls['crossEntropy'], w: CommandWriter): void {
  const { rows, cols } = call;
  w.start(OP_CROSS_ENTROPY, 'crossEntropy').view(call.logits).address(call.targets);
  w.address(call.loss).address(call.lse).int(rows, cols);
  w.commit(w.chunksFor(rows * cols * 1.5, rows));
}

export function crossEntropyBackward(
  call: KernelCalls['crossEntropyBackward'],
  w: CommandWriter,
): void {
  const { rows, cols, first = 0, classes = cols } = call;
  w.start(OP_CROSS_ENTROPY_BACKWARD, 'crossEntropyBackward').view(call.logits);
  w.address(call.targets).address(call.lse).address(call.dLoss).view(call.out);
  w.int(rows, cols, first, classes);
  w.commit(w.chunksFor(rows * cols * 1.5, rows));
}
