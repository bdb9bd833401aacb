// The kernel that makes random numbers.

import type { View } from '../view.js';

/** The call of the kernel of this file; the comment states what it computes. */
export interface RandomCalls {
  /**
   * Random numbers that are equal to the bit on all devices: out[i] = n * scale, computed in f32
   * and rounded to out's dtype. The integer n is made of word (e mod 4) of dropout's generator at e
   * = counterOffset + i. For 'uniform' n = 2 floor(word / 2^8) + 1 - 2^24. For 'normal' n / 2^21 is
   * the normal number below which the part (first + word * range / 2^32) / 2^32 of the distribution
   * lies, where range 0 stands for 2^32; see random-recipe.ts.
   */
  random: {
    kind: 'uniform' | 'normal';
    out: View;
    key0: number;
    key1: number;
    counterOffset: number;
    scale: number;
    first: number;
    range: number;
  };
}
