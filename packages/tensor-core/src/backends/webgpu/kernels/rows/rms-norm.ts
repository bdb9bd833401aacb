// Root mean square normalization over rows, and its gradients. With a residual the rows are those
// of x + residual, rounded as they are stored. Each use adds and rounds again instead of reading
// what was stored, so no barrier is needed.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { defineKernel } from '../../kernel/kernel.js';
import { INTEGER_DIVIDE } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { through32 } from '../elementwise/cast.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from '../elementwise/elementwise.js';
import { reduceInto } from './reduce.js';
import {
  eachPartBlock,
  hasWholeRows,
  optional,
  present,
  rowsPerPart,
  runRows,
  storeRow,
  summed,
  withWholeRows,
} from './rows.js';

export function rmsNorm(ctx: KernelContext, call: KernelCalls['rmsNorm']): void {
  const { x, residual, sum, weight, weightOffset, out, rstd, rows, cols, eps } = call;
  withWholeRows(ctx, [out, sum], cols, ([outRows, sumRows]) => {
    const scale = (j: string) => (weight === undefined ? '' : ` * (load_weight(${j}) + P.offset)`);
    runRows(ctx, {
      key: `rmsNorm ${x.dtype} ${residual?.dtype} ${sum?.dtype} via ${sumRows?.dtype} ${weight?.dtype} to ${outRows!.dtype}`,
      rows,
      cols,
      bindings: [
        { name: 'x', type: x.dtype, access: 'read' },
        ...optional('residual', residual),
        ...optional('weight', weight),
        { name: 'out', type: outRows!.dtype, access: 'read_write' },
        ...optional('sum', sumRows, 'read_write'),
        { name: 'rstd', type: 'f32', access: 'read_write' },
      ],
      perRow: ['rstd'],
      shared: ['weight'],
      params: { eps: 'f32', offset: 'f32' },
      helpers: summed(residual, sum?.dtype),
      body: `
  var squares = 0.0;
  for (var j = me; j < P.cols; j += LANES) { let v = summed(base + j); squares = fma(v, v, squares); }
  let factor = 1.0 / sqrt(reduce_add(squares, me) / f32(P.cols) + P.eps);
  ${storeRow(outRows!, (j) => `summed(base + ${j}) * factor${scale(j)}`)}
  ${sumRows === undefined ? '' : storeRow(sumRows, (j) => `summed(base + ${j})`, 'sum')}
  if (me == 0u) { store_rstd(row, factor); }`,
      values: { eps, offset: weightOffset },
      views: [x, ...present(residual), ...present(weight), outRows!, ...present(sumRows), rstd],
    });
  });
}

export function rmsNormBackward(ctx: KernelContext, call: KernelCalls['rmsNormBackward']): void {
  if (call.dx !== undefined) {
    inputGradient(ctx, { ...call, dx: call.dx });
  }
  if (call.dWeight !== undefined) {
    weightGradient(ctx, { ...call, dWeight: call.dWeight });
  }
}

function inputGradient(
  ctx: KernelContext,
  call: KernelCalls['rmsNormBackward'] & { readonly dx: View },
): void {
  const { x, weight, weightOffset, rstd, dy, dSum, dx, rows, cols } = call;
  if (!hasWholeRows(dx, cols)) {
    through32(ctx, dx, (wide) => inputGradient(ctx, { ...call, dx: wide }));
    return;
  }
  const scale = weight === undefined ? '' : ' * (load_weight(j) + P.offset)';
  const rest = (j: string) => (dSum === undefined ? '' : ` + load_d_sum(base + ${j})`);
  runRows(ctx, {
    key: `rmsNormBackward ${x.dtype} ${weight?.dtype} ${dy.dtype} ${dSum?.dtype} to ${dx.dtype}`,
    rows,
    cols,
    bindings: [
      { name: 'x', type: x.dtype, access: 'read' },
      ...optional('weight', weight),
      { name: 'rstd', type: 'f32', access: 'read' },
      { name: 'dy', type: dy.dtype, access: 'read' },
      ...optional('d_sum', dSum),
      { name: 'out', type: dx.dtype, access: 'read_write' },
    ],
    perRow: ['rstd'],
    shared: ['weight'],
    params: { offset: 'f32' },
    helpers: `
fn upstream(base: u32, j: u32) -> f32 { return load_dy(base + j)${scale}; }
fn gradient(base: u32, j: u32, factor: f32, mean_product: f32) -> f32 {
  return factor * (upstream(base, j) - load_x(base + j) * factor * mean_product);
}`,
    body: `
  let factor = load_rstd(row);
  var product = 0.0;
  for (var j = me; j < P.cols; j += LANES) {
    product = fma(upstream(base, j), load_x(base + j) * factor, product);
  }
  let mean_product = reduce_add(product, me) / f32(P.cols);
  ${storeRow(dx, (j) => `gradient(base, ${j}, factor, mean_product)${rest(j)}`)}`,
    values: { offset: weightOffset },
    views: [x, ...present(weight), rstd, dy, ...present(dSum), dx],
  });
}

/** Sums the weight's gradient over blocks of rows, [parts, cols], and reduces the parts. */
function weightGradient(
  ctx: KernelContext,
  call: KernelCalls['rmsNormBackward'] & { readonly dWeight: View },
): void {
  const { x, dy, dWeight, rows, cols } = call;
  const perPart = rowsPerPart(ctx, call);
  const parts = Math.ceil(rows / perPart);
  const key = `rmsNorm weight gradient ${x.dtype} ${dy.dtype}`;
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [
        { name: 'x', type: x.dtype, access: 'read' },
        { name: 'rstd', type: 'f32', access: 'read' },
        { name: 'dy', type: dy.dtype, access: 'read' },
        { name: 'weights', type: 'f32', access: 'read_write' },
      ],
      params: { rows: 'u32', cols: 'u32', per_part: 'u32', words: 'u32', per_lane: 'u32' },
      workgroupSize: ELEMENTWISE_SIZE,
      body: `${INTEGER_DIVIDE}
fn sum_block(u: u32) {
  let part = divide(u, P.cols);
  let j = u - part * P.cols;
  var weight = 0.0;
  for (var r = part * P.per_part; r < min((part + 1u) * P.per_part, P.rows); r++) {
    weight = fma(load_dy(r * P.cols + j), load_x(r * P.cols + j) * load_rstd(r), weight);
  }
  store_weights(u, weight);
}
${elementwiseMain('sum_block(u);')}`,
    }),
  );
  const words = parts * cols;
  ctx.withScratch('f32', words, (weights) => {
    eachPartBlock(ctx, { ...call, perPart }, (views, numRows, partOf) => {
      const sums = partOf(weights);
      const { grid, perLane } = elementwiseGrid(ctx, sums.size);
      ctx.dispatch(compiled, {
        params: { rows: numRows, cols, per_part: perPart, words: sums.size, per_lane: perLane },
        views: [...views, sums],
        grid,
      });
    });
    reduceInto(ctx, {
      kind: 'sum',
      x: weights,
      out: dWeight,
      outer: 1,
      dim: parts,
      inner: cols,
    });
  });
}
