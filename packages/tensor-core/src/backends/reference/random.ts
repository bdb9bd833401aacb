// Random numbers, each of which is an integer that random-recipe.ts makes of a word of the
// generator, times a scale.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { normalTable, randomInteger } from '../../random-recipe.js';
import { philox } from './dropout.js';
import type { Open } from './elements.js';

export function random(call: KernelCalls['random'], open: Open): void {
  const { key0, key1, counterOffset } = call;
  const out = open(call.out);
  const table = normalTable();
  const scale = Math.fround(call.scale);
  for (let i = 0; i < out.size; i++) {
    const element = counterOffset + i;
    const block = Math.floor(element / 4);
    const counter = [block % 2 ** 32, Math.floor(block / 2 ** 32), 0, 0] as const;
    const word = philox(counter, [key0, key1])[element % 4]!;
    out.set(i, Math.fround(randomInteger(word, call, table) * scale));
  }
}
