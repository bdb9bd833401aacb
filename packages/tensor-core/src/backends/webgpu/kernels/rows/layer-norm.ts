// Layer normalization over rows, and its gradients. The variance takes a second pass over the row,
// since E[x^2] - E[x]^2 loses its digits to cancellation in f32.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { type Binding, defineKernel, linearGrid } from '../../kernel/kernel.js';
import { INTEGER_DIVIDE, mainHead } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { through32 } from '../elementwise/cast.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from '../elementwise/elementwise.js';
import { withParts } from './part-sums.js';
import { reduceInto } from './reduce.js';
import {
  eachPartBlock,
  hasWholeRows,
  laneReductions,
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

type BackwardCall = KernelCalls['layerNormBackward'];
type InputCall = BackwardCall & { readonly dx: View };
type WholeCall = InputCall & { readonly dWeight: View; readonly dBias: View };

export function layerNormBackward(ctx: KernelContext, call: BackwardCall): void {
  if (isWhole(ctx, call)) {
    allGradients(ctx, call);
    return;
  }
  if (call.dx !== undefined) {
    inputGradient(ctx, { ...call, dx: call.dx });
  }
  if (call.dWeight !== undefined || call.dBias !== undefined) {
    parameterGradients(ctx, call);
  }
}

/**
 * The rows that a workgroup goes through where it also sums the parameters' gradients, and its
 * lanes. The 8,192 rows of a common training step give 131,072 invocations.
 */
const ROWS_PER_GROUP = 16;
const GROUP_LANES = 256;
/** The longest rows whose two sums fit into 16 KiB of workgroup memory beside what lanes share. */
const MAX_SUMMED_COLUMNS = 1536;

/** Whether one kernel for hardware reads the rows once for all gradients. */
function isWhole(ctx: KernelContext, call: BackwardCall): call is WholeCall {
  const { x, dy, dSum, dx, dWeight, dBias, cols } = call;
  return (
    !ctx.profile.isSoftware &&
    dx !== undefined &&
    dWeight?.dtype === 'f32' &&
    dBias?.dtype === 'f32' &&
    cols <= MAX_SUMMED_COLUMNS &&
    hasWholeRows(dx, cols) &&
    ctx.fits([x, dy, dx, ...present(dSum)])
  );
}

function allGradients(ctx: KernelContext, call: WholeCall): void {
  const { x, weight, mean, rstd, dy, dSum, dx, dWeight, dBias, rows, cols } = call;
  const parts = Math.ceil(rows / ROWS_PER_GROUP);
  const size = [GROUP_LANES, 1, 1] as const;
  const key = `layerNormBackward ${x.dtype} ${weight?.dtype} ${dy.dtype} ${dSum?.dtype} to ${dx.dtype} and parts`;
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [
        ...backwardBindings(call),
        // This can be the eighth buffer, and a device may allow no ninth.
        { name: 'sums', type: 'f32', access: 'read_write' },
      ],
      params: { rows: 'u32', cols: 'u32', biases: 'u32' },
      workgroupSize: size,
      body: `const LANES = ${GROUP_LANES}u;
var<workgroup> weight_sums: array<f32, ${MAX_SUMMED_COLUMNS}>;
var<workgroup> bias_sums: array<f32, ${MAX_SUMMED_COLUMNS}>;
${laneReductions(GROUP_LANES)}
${backwardHelpers(weight)}
${mainHead(size)}
  let me = lane;
  // A lane has columns of its own, here and below.
  for (var j = me; j < P.cols; j += LANES) { weight_sums[j] = 0.0; bias_sums[j] = 0.0; }
  let end = min((group + 1u) * ${ROWS_PER_GROUP}u, P.rows);
  for (var row = group * ${ROWS_PER_GROUP}u; row < end; row++) {
    let base = row * P.cols;
    ${backwardRow(
      call,
      `
    weight_sums[j] = fma(load_dy(base + j), normalized, weight_sums[j]);
    bias_sums[j] += load_dy(base + j);`,
    )}
  }
  for (var j = me; j < P.cols; j += LANES) {
    store_sums(group * P.cols + j, weight_sums[j]);
    store_sums(P.biases + group * P.cols + j, bias_sums[j]);
  }
}`,
    }),
  );
  withParts(ctx, 2 * parts * cols, (sums) => {
    ctx.dispatch(compiled, {
      params: { rows, cols, biases: parts * cols },
      views: [x, ...present(weight), mean, rstd, dy, ...present(dSum), dx, sums],
      grid: linearGrid(parts),
    });
    return { numParts: parts, outs: [dWeight, dBias] };
  });
}

function backwardBindings({ x, weight, dy, dSum, dx }: InputCall): Binding[] {
  return [
    { name: 'x', type: x.dtype, access: 'read' },
    ...optional('weight', weight),
    { name: 'mean', type: 'f32', access: 'read' },
    { name: 'rstd', type: 'f32', access: 'read' },
    { name: 'dy', type: dy.dtype, access: 'read' },
    ...optional('d_sum', dSum),
    { name: 'out', type: dx.dtype, access: 'read_write' },
  ];
}

function backwardHelpers(weight: View | undefined): string {
  return `
fn upstream(base: u32, j: u32) -> f32 { return load_dy(base + j)${weight === undefined ? '' : ' * load_weight(j)'}; }
fn gradient(base: u32, j: u32, average: f32, factor: f32, mean_up: f32, mean_product: f32) -> f32 {
  let normalized = (load_x(base + j) - average) * factor;
  return factor * (upstream(base, j) - mean_up - normalized * mean_product);
}`;
}

/**
 * Returns WGSL of the input's gradient for `row`. `beside` is added to the loop over elements,
 * where `normalized` is the element's value after normalization.
 */
function backwardRow({ dSum, dx }: InputCall, beside = ''): string {
  const rest = (j: string) => (dSum === undefined ? '' : ` + load_d_sum(base + ${j})`);
  return `
  let n = f32(P.cols);
  let average = load_mean(row);
  let factor = load_rstd(row);
  var up = 0.0;
  var product = 0.0;
  for (var j = me; j < P.cols; j += LANES) {
    let u = upstream(base, j);
    let normalized = (load_x(base + j) - average) * factor;
    up += u;
    product = fma(u, normalized, product);${beside}
  }
  let mean_up = reduce_add(up, me) / n;
  let mean_product = reduce_add(product, me) / n;
  ${storeRow(dx, (j) => `gradient(base, ${j}, average, factor, mean_up, mean_product)${rest(j)}`)}`;
}

function inputGradient(ctx: KernelContext, call: InputCall): void {
  const { x, weight, mean, rstd, dy, dSum, dx, rows, cols } = call;
  if (!hasWholeRows(dx, cols)) {
    through32(ctx, dx, (wide) => inputGradient(ctx, { ...call, dx: wide }));
    return;
  }
  runRows(ctx, {
    key: `layerNormBackward ${x.dtype} ${weight?.dtype} ${dy.dtype} ${dSum?.dtype} to ${dx.dtype}`,
    rows,
    cols,
    bindings: backwardBindings(call),
    perRow: ['mean', 'rstd'],
    shared: ['weight'],
    params: {},
    helpers: backwardHelpers(weight),
    body: backwardRow(call),
    values: {},
    views: [x, ...present(weight), mean, rstd, dy, ...present(dSum), dx],
  });
}

/** Sums parameters' gradients over blocks of rows, [parts, cols], and then adds up the parts. */
function parameterGradients(ctx: KernelContext, call: BackwardCall): void {
  const { x, dy, dWeight, dBias, rows, cols } = call;
  const perPart = rowsPerPart(ctx, call);
  const parts = Math.ceil(rows / perPart);
  const key = `layerNorm parameter gradients ${x.dtype} ${dy.dtype}`;
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
