// Softmax and log-softmax over rows of scale * x, with an optional causal mask, and their
// gradients. The forward kernel passes over a row three times: for the maximum, for the sum of
// exponentials, and to store.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import { isSameView, type KernelContext } from '../../queue/context.js';
import { through32 } from '../elementwise/cast.js';
import { hasWholeRows, runRows, storeRow } from './rows.js';

export function softmax(ctx: KernelContext, call: KernelCalls['softmax']): void {
  const { x, out, rows, cols, scale, isLog, causalRows } = call;
  if (!hasWholeRows(out, cols)) {
    through32(ctx, out, (wide) => softmax(ctx, { ...call, out: wide }));
    return;
  }
  const isInPlace = isSameView(x, out);
  const score = (j: string) => `P.scale * load_x(base + ${j})`;
  const value = (j: string) =>
    isLog ? `(${score(j)} - most) - shift` : `exp_of(${score(j)} - most) * shift`;
  const masked = isLog ? '-inf()' : '0.0';
  runRows(ctx, {
    key: `softmax${isLog ? ' log' : ''} ${isInPlace ? 'in place' : x.dtype} to ${out.dtype}`,
    rows,
    cols,
    bindings: [
      ...(isInPlace ? [] : [{ name: 'x', type: x.dtype, access: 'read' as const }]),
      { name: 'out', type: out.dtype, access: 'read_write' },
    ],
    aliases: isInPlace ? { x: 'out' } : {},
    params: { scale: 'f32', causal: 'u32' },
    body: `
  let visible = select(P.cols, (P.first_row + row) % max(P.causal, 1u) + P.cols - P.causal + 1u, P.causal > 0u);
  var most = ${score('0u')};
  for (var j = me; j < visible; j += LANES) { most = larger(most, ${score('j')}); }
  most = reduce_max(most, me);
  var sum = 0.0;
  for (var j = me; j < visible; j += LANES) { sum += exp_of(${score('j')} - most); }
  sum = reduce_add(sum, me);
  let shift = ${isLog ? 'log_of(sum)' : '1.0 / sum'};
  ${storeRow(out, (j) => `select(${masked}, ${value(j)}, ${j} < visible)`)}`,
    values: { scale, causal: causalRows },
    views: isInPlace ? [out] : [x, out],
  });
}

export function softmaxBackward(ctx: KernelContext, call: KernelCalls['softmaxBackward']): void {
  const { y, dy, out, rows, cols, scale, isLog } = call;
  if (!hasWholeRows(out, cols)) {
    through32(ctx, out, (wide) => softmaxBackward(ctx, { ...call, out: wide }));
    return;
  }
  const isInPlace = isSameView(dy, out);
  runRows(ctx, {
    key: `softmaxBackward${isLog ? ' log' : ''} ${y.dtype} ${isInPlace ? 'in place' : dy.dtype} to ${out.dtype}`,
    rows,
    cols,
    bindings: [
      { name: 'y', type: y.dtype, access: 'read' },
      ...(isInPlace ? [] : [{ name: 'dy', type: dy.dtype, access: 'read' as const }]),
      { name: 'out', type: out.dtype, access: 'read_write' },
    ],
    aliases: isInPlace ? { dy: 'out' } : {},
    params: { scale: 'f32' },
    body: `
  var sum = 0.0;
  for (var j = me; j < P.cols; j += LANES) {
    sum += ${isLog ? 'load_dy(base + j)' : 'load_dy(base + j) * load_y(base + j)'};
  }
  sum = reduce_add(sum, me);
  ${storeRow(out, (j) =>
    isLog
      ? `P.scale * (load_dy(base + ${j}) - exp_of(load_y(base + ${j})) * sum)`
      : `P.scale * load_y(base + ${j}) * (load_dy(base + ${j}) - sum)`,
  )}`,
    values: { scale },
    views: isInPlace ? [y, out] : [y, dy, out],
  });
}
