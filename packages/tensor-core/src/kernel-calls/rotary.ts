// The kernel of rotary position embeddings.

import type { View } from '../view.js';

/** The call of the kernel of this file; the comment states what it computes. */
export interface RotaryCalls {
  /**
   * In the heads h < numRotated of x [tokens, heads, 2 * half], columns j and j + half are a point
   * that turns by position * frequency j, or turns back if isInverse; other heads are copied.
   * frequencies is u32 [2, half] and holds the high and the low words of turns * 2^64, so that
   * angles are products of integers, modulo a turn. Token t stands at positions[t mod period] (u32
   * or i32, below 2^31), or at offset + t mod period.
   */
  rotary: {
    x: View;
    frequencies: View;
    positions: View | undefined; // [period]
    out: View;
    tokens: number;
    heads: number;
    numRotated: number;
    half: number;
    period: number;
    offset: number;
    isInverse: boolean;
  };
}
