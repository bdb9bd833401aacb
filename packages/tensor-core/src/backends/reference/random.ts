// Random numbers, each of which is an integer that random-recipe.ts makes of a word of the
// generator, times a scale.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { normalTable, randomInteger } from '../../random-recipe.js';
import { wordsOf } from './dropout.js';
import type { Open } from './elements.js';

export function random(call: KernelCalls['random'], open: Open): void {
  const { key0, key1, counterOffset } = call;
  const out = open(call.out);
  const wordAt = wordsOf(key0, key1);
  const table = normalTable();
  const scale = Math.fround(call.scale);
  for (let i = 0; i < out.size; i++) {
    const integer = randomInteger(wordAt(counterOffset + i), call, table);
    out.set(i, Math.fround(integer * scale));
  }
}
