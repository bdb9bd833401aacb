// Cross-entropy fused with log-softmax over rows, and its gradient with respect to the logits.
// Logits that are larger than a binding are taken in blocks of rows.

import type { DType } from '@shardweave/dtypes';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { isSameView, type KernelContext, sliceView } from '../../queue/context.js';
import { through32 } from '../elementwise/cast.js';
import { hasWholeRows, runRows, storeRow } from './rows.js';

export function crossEntropy(ctx: KernelContext, call: KernelCalls['crossEntropy']): void {
  const { logits, targets, loss, lse, rows, cols } = call;
  eachRows(ctx, 'crossEntropy', [logits.dtype], { rows, cols, multiple: 1 }, (first, numRows) => {
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
  for (var j = me; j < P.cols; j += LANES) { most = larger(most, load_x(base + j)); }
  most = reduce_max(most, me);
  var sum = 0.0;
  for (var j = me; j < P.cols; j += LANES) { sum += exp_of(load_x(base + j) - most); }
  let total = most + log_of(reduce_add(sum, me));
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
  const { logits, targets, lse, dLoss, out, rows, cols, first: firstClass, classes } = call;
  // 16-bit rows of odd length are computed in f32 and cast. Blocks then have an even number of
  // rows, so that each starts at a whole word.
  const isWhole = hasWholeRows(out, cols);
  const dtypes = [logits.dtype, isWhole ? out.dtype : 'f32'] as const;
  const rowsAt = { rows, cols, multiple: isWhole ? 1 : 2 };
  eachRows(ctx, 'crossEntropyBackward', dtypes, rowsAt, (first, numRows) => {
    const block = (view: View) => sliceView(view, first * cols, numRows * cols);
    const perRow = (view: View) => sliceView(view, first, numRows);
    const part = {
      logits: block(logits),
      targets: perRow(targets),
      lse: perRow(lse),
      dLoss: perRow(dLoss),
      rows: numRows,
      cols,
      ...(firstClass === undefined ? {} : { first: firstClass }),
      ...(classes === undefined ? {} : { classes }),
    };
    if (isWhole) {
      backwardRows(ctx, { ...part, out: block(out) });
    } else {
      through32(ctx, block(out), (wide) => backwardRows(ctx, { ...part, out: wide }));
    }
  });
}

function backwardRows(ctx: KernelContext, call: KernelCalls['crossEntropyBackward']): void {
  const { logits, targets, lse, dLoss, out, rows, cols, first = 0, classes = cols } = call;
  const isInPlace = isSameView(logits, out);
  const value = (j: string) =>
    `slope * (exp_of(load_x(base + ${j}) - total) - select(0.0, 1.0, P.first + ${j} == t))`;
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
    params: { first: 'u32', classes: 'u32' },
    body: `
  let t = load_targets(row);
  let has_target = t < P.classes;
  let slope = load_d_loss(row);
  let total = load_lse(row);
  ${storeRow(out, (j) => `select(0.0, ${value(j)}, has_target)`)}`,
    values: { first, classes },
    views: [...(isInPlace ? [] : [logits]), targets, lse, dLoss, out],
  });
}

/**
 * Calls `body` for blocks of rows that bind at once. All blocks but the last have a multiple of
 * `multiple` rows.
 */
function eachRows(
  ctx: KernelContext,
  op: string,
  dtypes: readonly DType[],
  { rows, cols, multiple }: { rows: number; cols: number; multiple: number },
  body: (first: number, numRows: number) => void,
): void {
  const fit = rows <= multiple ? 1 : multiple;
  const step = ctx.windowUnits(dtypes, cols, { multiple: fit, op });
  for (let first = 0; first < rows; first += step) {
    body(first, Math.min(step, rows - first));
  }
}
