// Encodes the commands of assembly/top-k.ts.

import { OP_TOP_K } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';

export function topK(call: KernelCalls['topK'], w: CommandWriter): void {
  const { x, out, outer, dim, inner, count } = call;
  w.start(OP_TOP_K, 'topK').view(x).address(out).int(outer, dim, inner, count);
  w.commit(w.chunksFor(outer * (dim + count * count) * inner * 2, outer * inner));
}
