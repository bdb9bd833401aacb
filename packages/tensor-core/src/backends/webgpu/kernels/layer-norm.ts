// Layer normalization over rows and its gradients. The variance is a second pass over the row,
// since E[x^2] - E[x]^2 cancels in f32.

import type { KernelCalls } from '../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../view.js';
import type { KernelContext } from '../context.js';
import { defineKernel, linearGrid } from '../kernel.js';
import { INTEGER_DIVIDE, mainHead } from '../wgsl.js';
import { through32 } from './cast.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from './elementwise.js';
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

export function layerNorm(ctx: KernelContext, call: KernelCalls['layerNorm']): void {
  const { x, residual, sum, weight, bias, out, mean, rstd, rows, cols, eps } = call;
  const scale = (j: string) => (weight === undefined ? '' : ` * load_weight(${j})`);
  const shift = (j: string) => (bias === undefined ? '' : ` + load_bias(${j})`);
  withWholeRows(ctx, [out, sum], cols, ([outRows, sumRows]) => {
    runRows(ctx, {
      key: `layerNorm ${x.dtype} ${residual?.dtype} ${sum?.dtype} via ${sumRows?.dtype} ${weight?.dtype} ${bias?.dtype} to ${outRows!.dtype}`,
      rows,
      cols,
      bindings: [
        { name: 'x', type: x.dtype, access: 'read' },
        ...optional('residual', residual),
        ...optional('weight', weight),
        ...optional('bias', bias),
        { name: 'out', type: outRows!.dtype, access: 'read_write' },
        ...optional('sum', sumRows, 'read_write'),
        { name: 'mean', type: 'f32', access: 'read_write' },
        { name: 'rstd', type: 'f32', access: 'read_write' },
      ],
      perRow: ['mean', 'rstd'],
      shared: ['weight', 'bias'],
      params: { eps: 'f32' },
      helpers: summed(residual, sum?.dtype),
      body: `
  let n = f32(P.cols);
  var total = 0.0;
  for (var j = me; j < P.cols; j += LANES) { total += summed(base + j); }
  let average = reduce_add(total, me) / n;
  var squares = 0.0;
  for (var j = me; j < P.cols; j += LANES) { let d = summed(base + j) - average; squares = fma(d, d, squares); }
  let factor = 1.0 / sqrt(reduce_add(squares, me) / n + P.eps);
  ${storeRow(outRows!, (j) => `(summed(base + ${j}) - average) * factor${scale(j)}${shift(j)}`)}
  ${sumRows === undefined ? '' : storeRow(sumRows, (j) => `summed(base + ${j})`, 'sum')}
  if (me == 0u) { store_mean(row, average); store_rstd(row, factor); }`,
      values: { eps },
      views: [
        x,
        ...present(residual),
        ...present(weight),
        ...present(bias),
        outRows!,
        ...present(sumRows),
        mean,
        rstd,
      ],
    });
  });
}

export function layerNormBackward(
  ctx: KernelContext,
  call: KernelCalls['layerNormBackward'],
): void {
  const { x, weight, mean, rstd, dy, dSum, dx, rows, cols } = call;
  if (!hasWholeRows(dx, cols)) {
    through32(ctx, dx, (wide) => layerNormBackward(ctx, { ...call, dx: wide }));
    return;
  }
  const scale = weight === undefined ? '' : ' * load_weight(j)';
  const rest = (j: string) => (dSum === undefined ? '' : ` + load_d_sum(base + ${j})`);
  runRows(ctx, {
    key: `layerNormBackward ${x.dtype} ${weight?.dtype} ${dy.dtype} ${dSum?.dtype} to ${dx.dtype}`,
    rows,
    cols,
    bindings: [
      { name: 'x', type: x.dtype, access: 'read' },
      ...optional('weight', weight),
      { name: 'mean', type: 'f32', access: 'read' },
      { name: 'rstd', type: 'f32', access: 'read' },
      { name: 'dy', type: dy.dtype, access: 'read' },
      ...optional('d_sum', dSum),
      { name: 'out', type: dx.dtype, access: 'read_write' },
    ],
    perRow: ['mean', 'rstd'],
    shared: ['weight'],
    params: {},
    helpers: `
fn upstream(base: u32, j: u32) -> f32 { return load_dy(base + j)${scale}; }
fn gradient(base: u32, j: u32, average: f32, factor: f32, mean_up: f32, mean_product: f32) -> f32 {
  let normalized = (load_x(base + j) - average) * factor;
  return factor * (upstream(base, j) - mean_up - normalized * mean_product);
}`,
    body: `
  let n = f32(P.cols);
  let average = load_mean(row);
  let factor = load_rstd(row);
  var up = 0.0;
  var product = 0.0;
  for (var j = me; j < P.cols; j += LANES) {
    let u = upstream(base, j);
    up += u;
    product = fma(u, (load_x(base + j) - average) * factor, product);
  }
  let mean_up = reduce_add(up, me) / n;
  let mean_product = reduce_add(product, me) / n;
  ${storeRow(dx, (j) => `gradient(base, ${j}, average, factor, mean_up, mean_product)${rest(j)}`)}`,
    values: {},
    views: [x, ...present(weight), mean, rstd, dy, ...present(dSum), dx],
  });
}

/** Partial sums over blocks of rows, [parts, cols], which one more kernel adds up. */
export function layerNormParamGrad(
  ctx: KernelContext,
  call: KernelCalls['layerNormParamGrad'],
): void {
  const { x, dy, dWeight, dBias, rows, cols } = call;
  const perPart = rowsPerPart(ctx, call);
  const parts = Math.ceil(rows / perPart);
  const key = `layerNormParamGrad ${x.dtype} ${dy.dtype}`;
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [
        { name: 'x', type: x.dtype, access: 'read' },
        { name: 'mean', type: 'f32', access: 'read' },
        { name: 'rstd', type: 'f32', access: 'read' },
        { name: 'dy', type: dy.dtype, access: 'read' },
        { name: 'weights', type: 'f32', access: 'read_write' },
        { name: 'biases', type: 'f32', access: 'read_write' },
      ],
      params: { rows: 'u32', cols: 'u32', per_part: 'u32', words: 'u32', per_lane: 'u32' },
      workgroupSize: ELEMENTWISE_SIZE,
      body: `${INTEGER_DIVIDE}
fn sum_block(u: u32) {
  let part = divide(u, P.cols);
  let j = u - part * P.cols;
  var weight = 0.0;
  var bias = 0.0;
  for (var r = part * P.per_part; r < min((part + 1u) * P.per_part, P.rows); r++) {
    let g = load_dy(r * P.cols + j);
    weight = fma(g, (load_x(r * P.cols + j) - load_mean(r)) * load_rstd(r), weight);
    bias += g;
  }
  store_weights(u, weight);
  store_biases(u, bias);
}
${elementwiseMain('sum_block(u);')}`,
    }),
  );
  const words = parts * cols;
  ctx.withScratch('f32', words, (weights) => {
    ctx.withScratch('f32', words, (biases) => {
      eachPartBlock(ctx, { ...call, perPart }, (views, numRows, partOf) => {
        const sums = [partOf(weights), partOf(biases)];
        const { grid, perLane } = elementwiseGrid(ctx, sums[0]!.size);
        ctx.dispatch(compiled, {
          params: {
            rows: numRows,
            cols,
            per_part: perPart,
            words: sums[0]!.size,
            per_lane: perLane,
          },
          views: [...views, ...sums],
          grid,
        });
      });
      if (!ctx.profile.isSoftware && dWeight?.dtype === 'f32' && dBias?.dtype === 'f32') {
        addParts(ctx, { weights, biases, dWeight, dBias, parts, cols });
        return;
      }
      const sum = { kind: 'sum', outer: 1, dim: parts, inner: cols } as const;
      if (dWeight !== undefined) {
        reduceInto(ctx, { ...sum, x: weights, out: dWeight });
      }
      if (dBias !== undefined) {
        reduceInto(ctx, { ...sum, x: biases, out: dBias });
      }
    });
  });
}

/**
 * Columns that a workgroup adds up, whole sectors of each row, and how many of its lanes share one.
 */
const GROUP_COLUMNS = 32;
const COLUMN_LANES = 8;

/**
 * Both gradients by one dispatch: the first half of the workgroups adds up weights, the second
 * biases.
 */
function addParts(
  ctx: KernelContext,
  call: {
    readonly weights: View;
    readonly biases: View;
    readonly dWeight: View;
    readonly dBias: View;
    readonly parts: number;
    readonly cols: number;
  },
): void {
  const { weights, biases, dWeight, dBias, parts, cols } = call;
  const size = [GROUP_COLUMNS * COLUMN_LANES, 1, 1] as const;
  const key = 'layerNormParamGrad parts';
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [
        { name: 'weights', type: 'f32', access: 'read' },
        { name: 'biases', type: 'f32', access: 'read' },
        { name: 'd_weight', type: 'f32', access: 'read_write' },
        { name: 'd_bias', type: 'f32', access: 'read_write' },
      ],
      params: { parts: 'u32', cols: 'u32', half: 'u32' },
      workgroupSize: size,
      body: `
var<workgroup> sums: array<f32, ${size[0]}>;
${mainHead(size)}
  let is_bias = group >= P.half;
  let column = (group - select(0u, P.half, is_bias)) * ${GROUP_COLUMNS}u + lane % ${GROUP_COLUMNS}u;
  let first = lane / ${GROUP_COLUMNS}u;
  var sum = 0.0;
  if (column < P.cols) {
    for (var p = first; p < P.parts; p += ${COLUMN_LANES}u) {
      let i = p * P.cols + column;
      if (is_bias) { sum += load_biases(i); } else { sum += load_weights(i); }
    }
  }
  sums[lane] = sum;
  for (var s = ${COLUMN_LANES / 2}u; s > 0u; s >>= 1u) {
    workgroupBarrier();
    if (first < s) { sums[lane] += sums[lane + s * ${GROUP_COLUMNS}u]; }
  }
  if (first == 0u && column < P.cols) {
    if (is_bias) { store_d_bias(column, sums[lane]); } else { store_d_weight(column, sums[lane]); }
  }
}`,
    }),
  );
  const half = Math.ceil(cols / GROUP_COLUMNS);
  ctx.dispatch(compiled, {
    params: { parts, cols, half },
    views: [weights, biases, dWeight, dBias],
    grid: linearGrid(2 * half),
  });
}
