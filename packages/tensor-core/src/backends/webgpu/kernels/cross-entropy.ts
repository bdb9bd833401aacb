// Cross-entropy fused with log-softmax over rows, and its gradient to the logits. Logits larger than
// a binding go in blocks of rows.

import type { KernelCalls, View } from '../../../backend.js';
import { isSameView, type KernelContext, sliceView } from '../context.js';
import { through32 } from './cast.js';
import { hasWholeRows, runRows, storeRow } from './rows.js';

export function crossEntropy(ctx: KernelContext, call: KernelCalls['crossEntropy']): void {
  const { logits, targets, loss, lse, rows, cols } = call;
  eachRows(ctx, 'crossEntropy', [logits], { rows, cols }, (first, numRows) => {
    const perRow = (view: View) => sliceView(view, first, numRows);
    runRows(ctx, {
      key: `crossEntropy ${logits.dtype}`,
      rows: numRows,
      cols,
      bindings: [
        { name: 'x', type: logits.dtype, access: 'read' },
        { name: 'targets', type: 'raw', access: 'read' },
        { name: 'loss', type: 'f32', access: 'read_write' },
        { name: 'lse', type: 'f32', access: 'read_write' },
      ],
      params: {},
      body: `
  var most = load_x(base);
  for (var j = me; j < P.cols; j += LANES) { let v = load_x(base + j); most = select(most, v, v > most || is_nan(v)); }
  most = reduce_max(most, me);
  var sum = 0.0;
  for (var j = me; j < P.cols; j += LANES) { sum += exp(load_x(base + j) - most); }
  let total = most + log(reduce_add(sum, me));
  if (me == 0u) {
    let t = load_targets(row);
    store_lse(row, total);
    store_loss(row, select(0.0, total - load_x(base + min(t, P.cols - 1u)), t < P.cols));
  }`,
      values: {},
      views: [
        sliceView(logits, first * cols, numRows * cols),
        perRow(targets),
        perRow(loss),
        perRow(lse),
      ],
    });
  });
}

export function crossEntropyBackward(
  ctx: KernelContext,
  call: KernelCalls['crossEntropyBackward'],
): void {
  const { logits, targets, lse, dLoss, out, rows, cols } = call;
  eachRows(ctx, 'crossEntropyBackward', [logits, out], { rows, cols }, (first, numRows) => {
    const block = (view: View) => sliceView(view, first * cols, numRows * cols);
    const perRow = (view: View) => sliceView(view, first, numRows);
    const part = {
      logits: block(logits),
      targets: perRow(targets),
      lse: perRow(lse),
      dLoss: perRow(dLoss),
      rows: numRows,
      cols,
    };
    if (hasWholeRows(out, cols)) backwardRows(ctx, { ...part, out: block(out) });
    else through32(ctx, block(out), (wide) => backwardRows(ctx, { ...part, out: wide }));
  });
}

function backwardRows(ctx: KernelContext, call: KernelCalls['crossEntropyBackward']): void {
  const { logits, targets, lse, dLoss, out, rows, cols } = call;
  const isInPlace = isSameView(logits, out);
  const value = (j: string) =>
    `slope * (exp(load_x(base + ${j}) - total) - select(0.0, 1.0, ${j} == t))`;
  runRows(ctx, {
    key: `crossEntropyBackward ${isInPlace ? 'in place' : logits.dtype} to ${out.dtype}`,
    rows,
    cols,
    bindings: [
      ...(isInPlace ? [] : [{ name: 'x', type: logits.dtype, access: 'read' as const }]),
      { name: 'targets', type: 'raw', access: 'read' },
      { name: 'lse', type: 'f32', access: 'read' },
      { name: 'd_loss', type: 'f32', access: 'read' },
      { name: 'out', type: out.dtype, access: 'read_write' },
    ],
    aliases: isInPlace ? { x: 'out' } : {},
    params: {},
    body: `
  let t = load_targets(row);
  let has_target = t < P.cols;
  let slope = load_d_loss(row);
  let total = load_lse(row);
  ${storeRow(out, (j) => `select(0.0, ${value(j)}, has_target)`)}`,
    values: {},
    views: [...(isInPlace ? [] : [logits]), targets, lse, dLoss, out],
  });
}

/** Blocks of rows that bind at once; all but the last start at whole words. */
function eachRows(
  ctx: KernelContext,
  op: string,
  views: readonly View[],
  { rows, cols }: { rows: number; cols: number },
  body: (first: number, numRows: number) => void,
): void {
  const dtypes = views.map((v) => v.dtype);
  const step = ctx.windowUnits([...dtypes, 'f32'], cols, { multiple: cols % 2 === 0 ? 1 : 2, op });
  for (let first = 0; first < rows; first += step) body(first, Math.min(step, rows - first));
}
