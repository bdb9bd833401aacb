// A gate multiplies an activation of one operand by another. Both may be halves of one tensor.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../kind-table.js';
import type { Open } from './elements.js';
import { DERIVATIVES, FUNCTIONS } from './elementwise.js';

export function gated(call: KernelCalls['gated'], open: Open): void {
  const { kind, rows, cols, row } = call;
  const gate = open(call.gate);
  const up = open(call.up);
  const out = open(call.out);
  const f = ofKind('gated', FUNCTIONS, kind);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < cols; c++) {
      const at = r * row + c;
      out.set(r * cols + c, f(gate.get(at)) * up.get(at));
    }
  }
}

export function gatedBackward(call: KernelCalls['gatedBackward'], open: Open): void {
  const { kind, of, rows, cols, row } = call;
  const gate = open(call.gate);
  const up = open(call.up);
  const dy = open(call.dy);
  const out = open(call.out);
  const outUp = call.outUp === undefined ? out : open(call.outUp);
  const isPacked = of === 'both' && call.outUp === undefined;
  const outRow = isPacked ? 2 * cols : cols;
  const f = ofKind('gatedBackward', FUNCTIONS, kind);
  const slope = ofKind('gatedBackward', DERIVATIVES, kind);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < cols; c++) {
      const at = r * row + c;
      const gradient = dy.get(r * cols + c);
      if (of !== 'up') {
        out.set(r * outRow + c, gradient * up.get(at) * slope(gate.get(at)));
      }
      if (of !== 'gate') {
        outUp.set(r * outRow + outRow - cols + c, gradient * f(gate.get(at)));
      }
    }
  }
}
