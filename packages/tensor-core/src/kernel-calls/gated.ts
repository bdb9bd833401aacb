// Gated activations, as in the feed-forward layers of Llama and Gemma.

import type { View } from '../view.js';

/** The activation that a gate applies to its first operand. */
export type GateKind = 'silu' | 'gelu' | 'geluTanh';

/** The calls of the kernels of this file; the comments state what each computes. */
export interface GatedCalls {
  /**
   * out[r, c] = f(gate[r, c]) * up[r, c] of floats, where out is dense [rows, cols]. Rows of gate
   * and up are `row` elements apart: cols, or 2 * cols where they are the halves of one operand.
   */
  gated: {
    kind: GateKind;
    gate: View;
    up: View;
    out: View;
    rows: number;
    cols: number;
    row: number;
  };
  /**
   * The gradients of gated. With `of` 'gate', out = dy * up * f'(gate), and with 'up', out = dy *
   * f(gate), both dense [rows, cols]. With 'both', outUp receives up's beside gate's in out; where
   * it is absent, out is [rows, 2 * cols] and has gate's first.
   */
  gatedBackward: {
    kind: GateKind;
    of: 'gate' | 'up' | 'both';
    gate: View;
    up: View;
    dy: View;
    out: View;
    outUp?: View | undefined;
    rows: number;
    cols: number;
    row: number;
  };
}
