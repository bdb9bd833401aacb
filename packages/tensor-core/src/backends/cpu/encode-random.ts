// Encodes the commands of assembly/random.ts.

import { OP_RANDOM, RANDOM_NORMAL, RANDOM_UNIFORM } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { normalTable } from '../../random-recipe.js';
import type { CommandWriter } from './command-writer.js';

export function random(call: KernelCalls['random'], w: CommandWriter): void {
  const { kind, out, key0, key1, counterOffset, scale, first, range } = call;
  const isNormal = kind === 'normal';
  w.start(OP_RANDOM, 'random').int(isNormal ? RANDOM_NORMAL : RANDOM_UNIFORM);
  w.view(out).int(out.size, key0, key1, counterOffset, Math.floor(counterOffset / 2 ** 32));
  w.float(scale).int(first, range);
  if (isNormal) {
    w.payload(new Uint8Array(normalTable().buffer), [0]);
  }
  w.commit(w.chunksFor(out.size * (isNormal ? 6 : 2)));
}
