// Encodes the commands of assembly/rotary.ts.

import { OP_ROTARY } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';

export function rotary(call: KernelCalls['rotary'], w: CommandWriter): void {
  const { tokens, heads, numRotated, half, period, offset } = call;
  w.start(OP_ROTARY, 'rotary').view(call.x).address(call.frequencies).address(call.positions);
  w.view(call.out).int(tokens, heads, numRotated, half, period, offset, call.isInverse ? 1 : 0);
  w.commit(w.chunksFor(tokens * (heads + 4) * half, tokens));
}
