// Cross-entropy fused with log-softmax over rows, and its gradient with respect to the logits.
// Logits that are larger than a binding are taken in blocks of rows.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { isSameView, type KernelContext, sliceView } from '../../queue/context.js';
import { eachRowBlock } from '../../queue/row-blocks.js';
import { through32 } from '../elementwise/cast.js';
import { hasWholeRows, runRows, storeRow } from './rows.js';

export function crossEntropy(ctx: KernelContext, call: KernelCalls['crossEntropy']): void {
  const { logits, targets, loss, lse, rows, cols } = call;
  runRows(ctx, {
    key: `crossEntropy ${logits.dtype}`,
    rows,
    cols,
    bindings: [
      { name: 'x', type: logits.dtype, access: 'read' },
      { name: 'targets', type: 'raw', access: 'read' },
      { name: 'loss', type: 'f32', access: 'read_write' },
      { name: 'lse', type: 'f32', access: 'read_write' },
    ],
    perRow: ['targets', 'loss', 'lse'],
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
    views: [logits, targets, loss, lse],
  });
}

export function crossEntropyBackward(
  ctx: KernelContext,
  call: KernelCalls['crossEntropyBackward'],
): void {
  const { logits, targets, lse, dLoss, out, rows, cols } = call;
  if (hasWholeRows(out, cols)) {
    backwardRows(ctx, call);
    return;
  }
  // 16-bit rows of odd length are computed in f32 and cast. A block has no more rows than bind in
  // f32, and it starts at a whole word.
  const op = 'crossEntropyBackward';
  const views = [logits, targets, lse, dLoss, { ...out, dtype: 'f32' as const }];
  const blocks = { strides: [cols, 1, 1, 1, cols], rows, op, multiple: 2 };
  eachRowBlock(ctx, views, blocks, (parts, first, numRows) => {
    const [logitsPart, targetsPart, lsePart, dLossPart] = parts as [View, View, View, View];
    const part = { logits: logitsPart, targets: targetsPart, lse: lsePart, dLoss: dLossPart };
    through32(ctx, sliceView(out, first * cols, numRows * cols), (wide) =>
      backwardRows(ctx, { ...call, ...part, out: wide, rows: numRows }),
    );
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
    perRow: ['targets', 'lse', 'd_loss'],
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
