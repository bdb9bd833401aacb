// Layer normalization over rows and its gradients. The variance is a second pass over the row, since
// E[x^2] - E[x]^2 cancels in f32.

import type { KernelCalls, View } from '../../../backend.js';
import type { KernelContext } from '../context.js';
import { type Binding, defineKernel } from '../kernel.js';
import { INTEGER_DIVIDE } from '../wgsl.js';
import { through32 } from './cast.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from './elementwise.js';
import { reduceInto } from './reduce.js';
import { hasWholeRows, runRows, storeRow } from './rows.js';

/** Rows summed by one invocation of the parameter gradients, before partial sums are added up. */
const ROWS_PER_PART_SOFTWARE = 256;
const ROWS_PER_PART_HARDWARE = 64;

export function layerNorm(ctx: KernelContext, call: KernelCalls['layerNorm']): void {
  const { x, weight, bias, out, mean, rstd, rows, cols, eps } = call;
  if (!hasWholeRows(out, cols)) {
    through32(ctx, out, (wide) => layerNorm(ctx, { ...call, out: wide }));
    return;
  }
  const scale = (j: string) => (weight === undefined ? '' : ` * load_weight(${j})`);
  const shift = (j: string) => (bias === undefined ? '' : ` + load_bias(${j})`);
  runRows(ctx, {
    key: `layerNorm ${x.dtype} ${weight?.dtype} ${bias?.dtype} to ${out.dtype}`,
    rows,
    cols,
    bindings: [
      { name: 'x', type: x.dtype, access: 'read' },
      ...optional('weight', weight),
      ...optional('bias', bias),
      { name: 'out', type: out.dtype, access: 'read_write' },
      { name: 'mean', type: 'f32', access: 'read_write' },
      { name: 'rstd', type: 'f32', access: 'read_write' },
    ],
    params: { eps: 'f32' },
    body: `
  let n = f32(P.cols);
  var sum = 0.0;
  for (var j = me; j < P.cols; j += LANES) { sum += load_x(base + j); }
  let average = reduce_add(sum, me) / n;
  var squares = 0.0;
  for (var j = me; j < P.cols; j += LANES) { let d = load_x(base + j) - average; squares = fma(d, d, squares); }
  let factor = 1.0 / sqrt(reduce_add(squares, me) / n + P.eps);
  ${storeRow(out, (j) => `(load_x(base + ${j}) - average) * factor${scale(j)}${shift(j)}`)}
  if (me == 0u) { store_mean(row, average); store_rstd(row, factor); }`,
    values: { eps },
    views: [x, ...present(weight), ...present(bias), out, mean, rstd],
  });
}

export function layerNormBackward(
  ctx: KernelContext,
  call: KernelCalls['layerNormBackward'],
): void {
  const { x, weight, mean, rstd, dy, dx, rows, cols } = call;
  if (!hasWholeRows(dx, cols)) {
    through32(ctx, dx, (wide) => layerNormBackward(ctx, { ...call, dx: wide }));
    return;
  }
  const scale = weight === undefined ? '' : ' * load_weight(j)';
  runRows(ctx, {
    key: `layerNormBackward ${x.dtype} ${weight?.dtype} ${dy.dtype} to ${dx.dtype}`,
    rows,
    cols,
    bindings: [
      { name: 'x', type: x.dtype, access: 'read' },
      ...optional('weight', weight),
      { name: 'mean', type: 'f32', access: 'read' },
      { name: 'rstd', type: 'f32', access: 'read' },
      { name: 'dy', type: dy.dtype, access: 'read' },
      { name: 'out', type: dx.dtype, access: 'read_write' },
    ],
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
  ${storeRow(dx, (j) => `gradient(base, ${j}, average, factor, mean_up, mean_product)`)}`,
    values: {},
    views: [x, ...present(weight), mean, rstd, dy, dx],
  });
}

/** Partial sums over blocks of rows, [parts, cols], added up by the reduction kernel. */
export function layerNormParamGrad(
  ctx: KernelContext,
  call: KernelCalls['layerNormParamGrad'],
): void {
  const { x, mean, rstd, dy, dWeight, dBias, rows, cols } = call;
  const perPart = ctx.profile.isSoftware ? ROWS_PER_PART_SOFTWARE : ROWS_PER_PART_HARDWARE;
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
      const { grid } = elementwiseGrid(ctx, words);
      const perLane = Math.ceil(words / (grid[0] * grid[1] * ELEMENTWISE_SIZE[0]));
      ctx.dispatch(compiled, {
        params: { rows, cols, per_part: perPart, words, per_lane: perLane },
        views: [x, mean, rstd, dy, weights, biases],
        grid,
      });
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

function optional(name: string, view: View | undefined): Binding[] {
  return view === undefined ? [] : [{ name, type: view.dtype, access: 'read' }];
}

function present(view: View | undefined): View[] {
  return view === undefined ? [] : [view];
}
