// Encodes the commands of assembly/cum-sum.ts.

import { OP_CUM_SUM } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';

export function cumSum(call: KernelCalls['cumSum'], w: CommandWriter): void {
  const { x, out, outer, dim, inner } = call;
  w.start(OP_CUM_SUM, 'cumSum').view(x).view(out).int(outer, dim, inner);
  w.int(call.isReverse ? 1 : 0);
  w.commit(w.chunksFor(outer * dim * inner * 2, outer * inner));
}
