// Encodes the commands of assembly/dropout.ts.

import { OP_DROPOUT } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { CommandWriter } from './command-writer.js';
import { fill } from './encode-cast.js';

export function dropout(call: KernelCalls['dropout'], w: CommandWriter): void {
  const { x, out, p, counterOffset } = call;
  if (p >= 1) {
    fill({ out, value: 0 }, w);
    return;
  }
  w.start(OP_DROPOUT, 'dropout').view(x).view(out).int(x.size);
  w.int(Math.floor(p * 2 ** 32)).float(1 / (1 - p));
  w.int(call.key0, call.key1, counterOffset, Math.floor(counterOffset / 2 ** 32));
  w.commit(w.chunksFor(x.size * 2));
}
