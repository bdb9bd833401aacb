// One hash over the results of a fixed sequence of operations: equal on all transports and ranks.

import type { ProcessGroup } from '../process-group.js';
import { patternElements } from './patterns.js';

/** Reductions of all float dtypes, small and large, hashed in order (FNV-1a, 32 bits). */
export async function transcriptHash(group: ProcessGroup): Promise<number> {
  let hash = 0x811c9dc5;
  for (const dtype of ['f32', 'f16', 'bf16'] as const) {
    for (const count of [5, 1023, 30_001]) {
      for (const op of ['sum', 'mean', 'max'] as const) {
        const input = patternElements(group.rank, count, dtype, count);
        const output = new Uint8Array(input.length);
        await group.allReduce(input, output, { dtype, op });
        for (const byte of output) {
          hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
        }
      }
    }
  }
  return hash;
}
