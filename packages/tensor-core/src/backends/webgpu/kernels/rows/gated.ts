// A gate multiplies an activation of one operand by another, as in SwiGLU. In f32 it moves 12 bytes
// per element, and 20 for both gradients.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../../../kind-table.js';
import { INTEGER_DIVIDE } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { eachRowBlock } from '../../queue/row-blocks.js';
import { ACTIVATIONS, DERIVATIVES, FUNCTIONS, map, SLOPES } from '../elementwise/elementwise.js';

/** WGSL `at(i)`: the element of gate and up that belongs to element i of [rows, cols]. */
const OPERANDS = `${INTEGER_DIVIDE}
fn at(i: u32) -> u32 { return i + divide(i, P.cols) * P.gap; }`;

export function gated(ctx: KernelContext, call: KernelCalls['gated']): void {
  const { kind, gate, up, out, rows, cols, row } = call;
  const strides = [row, row, cols];
  eachRowBlock(
    ctx,
    [gate, up, out],
    { strides, rows, op: 'gated' },
    ([gatePart, upPart, outPart]) => {
      map(ctx, {
        name: `gated ${kind}`,
        inputs: { gate: gatePart!, up: upPart! },
        out: outPart!,
        integers: { cols, gap: row - cols },
        isWhole: true,
        helpers: `${ACTIVATIONS}${OPERANDS}`,
        value: `let e = at(i); let x = load_gate(e); return ${ofKind('gated', FUNCTIONS, kind)} * load_up(e);`,
      });
    },
  );
}

export function gatedBackward(ctx: KernelContext, call: KernelCalls['gatedBackward']): void {
  const { kind, of, gate, up, dy, out, outUp, rows, cols, row } = call;
  if (outUp !== undefined) {
    gatedBackward(ctx, { ...call, of: 'gate', outUp: undefined });
    gatedBackward(ctx, { ...call, of: 'up', out: outUp, outUp: undefined });
    return;
  }
  const toGate = `load_dy(d) * load_up(e) * (${ofKind('gatedBackward', DERIVATIVES, kind)})`;
  const toUp = `load_dy(d) * (${FUNCTIONS[kind]})`;
  const value =
    of === 'both'
      ? `let half = divide(i, P.cols);
  let line = half >> 1u;
  let d = i - (half - line) * P.cols;
  let e = at(d);
  let x = load_gate(e);
  if ((half & 1u) == 0u) { return ${toGate}; }
  return ${toUp};`
      : `let d = i; let e = at(i); let x = load_gate(e); return ${of === 'gate' ? toGate : toUp};`;
  const strides = [row, row, cols, of === 'both' ? 2 * cols : cols];
  eachRowBlock(
    ctx,
    [gate, up, dy, out],
    { strides, rows, op: 'gated' },
    ([gatePart, upPart, dyPart, outPart]) => {
      map(ctx, {
        name: `gatedBackward ${kind} of ${of}`,
        inputs: { gate: gatePart!, up: upPart!, dy: dyPart! },
        out: outPart!,
        integers: { cols, gap: row - cols },
        isWhole: true,
        helpers: `${ACTIVATIONS}${SLOPES}${OPERANDS}`,
        value,
      });
    },
  );
}
