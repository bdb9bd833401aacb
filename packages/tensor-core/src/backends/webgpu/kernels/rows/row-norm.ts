// Layer norm and RMS norm over rows, and their gradients. Rows of a layer norm are centered; their
// variance takes a second pass over the row, since E[x^2] - E[x]^2 loses its digits to cancellation
// in f32. With a residual the rows are those of x + residual, rounded as they are stored. Each use
// adds and rounds again instead of reading what was stored, so no barrier is needed.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { type Binding, defineKernel, linearGrid } from '../../kernel/kernel.js';
import { INTEGER_DIVIDE, mainHead } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import type { CompiledKernel } from '../../queue/pipelines.js';
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

export function rowNorm(ctx: KernelContext, call: KernelCalls['rowNorm']): void {
  const { isCentered, x, residual, sum, weight, weightOffset = 0, bias, out, mean, rstd } = call;
  const { rows, cols, eps } = call;
  const value = (j: string) => centered(call, `summed(base + ${j})`);
  const scale = (j: string) => (weight === undefined ? '' : ` * ${scaleOf(call, j)}`);
  const shift = (j: string) => (bias === undefined ? '' : ` + load_bias(${j})`);
  withWholeRows(ctx, [out, sum], cols, ([outRows, sumRows]) => {
    runRows(ctx, {
      key: `${nameOf('rowNorm', call)} ${x.dtype} ${residual?.dtype} ${sum?.dtype} via ${sumRows?.dtype} ${weight?.dtype} ${bias?.dtype} to ${outRows!.dtype}`,
      rows,
      cols,
      bindings: [
        { name: 'x', type: x.dtype, access: 'read' },
        ...optional('residual', residual),
        ...optional('weight', weight),
        ...optional('bias', bias),
        { name: 'out', type: outRows!.dtype, access: 'read_write' },
        ...optional('sum', sumRows, 'read_write'),
        ...optional('mean', mean, 'read_write'),
        { name: 'rstd', type: 'f32', access: 'read_write' },
      ],
      perRow: ['mean', 'rstd'],
      shared: ['weight', 'bias'],
      params: { eps: 'f32', offset: 'f32' },
      helpers: summed(residual, sum?.dtype),
      body: `
  let n = f32(P.cols);
  ${isCentered ? AVERAGE : ''}
  var squares = 0.0;
  for (var j = me; j < P.cols; j += LANES) { let d = ${value('j')}; squares = fma(d, d, squares); }
  let factor = 1.0 / sqrt(reduce_add(squares, me) / n + P.eps);
  ${storeRow(outRows!, (j) => `${value(j)} * factor${scale(j)}${shift(j)}`)}
  ${sumRows === undefined ? '' : storeRow(sumRows, (j) => `summed(base + ${j})`, 'sum')}
  if (me == 0u) { ${isCentered ? 'store_mean(row, average); ' : ''}store_rstd(row, factor); }`,
      values: { eps, offset: weightOffset },
      views: [
        x,
        ...present(residual),
        ...present(weight),
        ...present(bias),
        outRows!,
        ...present(sumRows),
        ...present(mean),
        rstd,
      ],
    });
  });
}

/** WGSL of a row's mean, over the same lanes as all sums of the row. */
const AVERAGE = `var total = 0.0;
  for (var j = me; j < P.cols; j += LANES) { total += summed(base + j); }
  let average = reduce_add(total, me) / n;`;

interface Centering {
  readonly isCentered: boolean;
}

/** Returns the kernel's name with what it does to rows, as keys begin. */
function nameOf(kernel: string, { isCentered }: Centering): string {
  return isCentered ? `${kernel} centered` : kernel;
}

/** Returns WGSL of an element, less `average` if rows are centered. */
function centered({ isCentered }: Centering, element: string): string {
  return isCentered ? `(${element} - average)` : element;
}

/** Returns WGSL of what column j is multiplied by. The weight of centered rows has no offset. */
function scaleOf({ isCentered }: Centering, j: string): string {
  return isCentered ? `load_weight(${j})` : `(load_weight(${j}) + P.offset)`;
}

type BackwardCall = KernelCalls['rowNormBackward'];
type InputCall = BackwardCall & { readonly dx: View };
type WholeCall = InputCall & {
  readonly isCentered: true;
  readonly dWeight: View;
  readonly dBias: View;
};

export function rowNormBackward(ctx: KernelContext, call: BackwardCall): void {
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

/** Whether one kernel reads the rows once for all gradients, which are those of a layer norm. */
function isWhole(ctx: KernelContext, call: BackwardCall): call is WholeCall {
  const { x, dy, dSum, dx, dWeight, dBias, cols, isCentered } = call;
  return (
    isCentered &&
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
  const key = `${nameOf('rowNormBackward', call)} ${x.dtype} ${weight?.dtype} ${dy.dtype} ${dSum?.dtype} to ${dx.dtype} and parts`;
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
${backwardHelpers(call)}
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

function backwardBindings({ x, weight, mean, dy, dSum, dx }: InputCall): Binding[] {
  return [
    { name: 'x', type: x.dtype, access: 'read' },
    ...optional('weight', weight),
    ...optional('mean', mean),
    { name: 'rstd', type: 'f32', access: 'read' },
    { name: 'dy', type: dy.dtype, access: 'read' },
    ...optional('d_sum', dSum),
    { name: 'out', type: dx.dtype, access: 'read_write' },
  ];
}

/**
 * Returns WGSL of the gradients of an element before and behind the weight. `mean_up` is 0 and
 * `average` means nothing unless rows are centered.
 */
function backwardHelpers(call: InputCall): string {
  const scale = call.weight === undefined ? '' : ` * ${scaleOf(call, 'j')}`;
  const up = call.isCentered ? 'upstream(base, j) - mean_up' : 'upstream(base, j)';
  return `
fn upstream(base: u32, j: u32) -> f32 { return load_dy(base + j)${scale}; }
fn gradient(base: u32, j: u32, average: f32, factor: f32, mean_up: f32, mean_product: f32) -> f32 {
  let normalized = ${centered(call, 'load_x(base + j)')} * factor;
  return factor * (${up} - normalized * mean_product);
}`;
}

/**
 * Returns WGSL of the input's gradient for `row`. `beside` is added to the loop over elements,
 * where `normalized` is the element's value after normalization.
 */
function backwardRow(call: InputCall, beside = ''): string {
  const { dSum, dx, isCentered } = call;
  const rest = (j: string) => (dSum === undefined ? '' : ` + load_d_sum(base + ${j})`);
  return `
  let n = f32(P.cols);
  let average = ${isCentered ? 'load_mean(row)' : '0.0'};
  let factor = load_rstd(row);
  var up = 0.0;
  var product = 0.0;
  for (var j = me; j < P.cols; j += LANES) {
    let u = upstream(base, j);
    let normalized = ${centered(call, 'load_x(base + j)')} * factor;
    ${isCentered ? 'up += u;' : ''}
    product = fma(u, normalized, product);${beside}
  }
  let mean_up = ${isCentered ? 'reduce_add(up, me) / n' : '0.0'};
  let mean_product = reduce_add(product, me) / n;
  ${storeRow(dx, (j) => `gradient(base, ${j}, average, factor, mean_up, mean_product)${rest(j)}`)}`;
}

function inputGradient(ctx: KernelContext, call: InputCall): void {
  const { x, weight, weightOffset = 0, mean, rstd, dy, dSum, dx, rows, cols } = call;
  if (!hasWholeRows(dx, cols)) {
    through32(ctx, dx, (wide) => inputGradient(ctx, { ...call, dx: wide }));
    return;
  }
  runRows(ctx, {
    key: `${nameOf('rowNormBackward', call)} ${x.dtype} ${weight?.dtype} ${dy.dtype} ${dSum?.dtype} to ${dx.dtype}`,
    rows,
    cols,
    bindings: backwardBindings(call),
    perRow: ['mean', 'rstd'],
    shared: ['weight'],
    params: { offset: 'f32' },
    helpers: backwardHelpers(call),
    body: backwardRow(call),
    values: { offset: weightOffset },
    views: [x, ...present(weight), ...present(mean), rstd, dy, ...present(dSum), dx],
  });
}

/** Sums parameters' gradients over blocks of rows, [parts, cols], and then adds up the parts. */
function parameterGradients(ctx: KernelContext, call: BackwardCall): void {
  const { dWeight, dBias, rows, cols, isCentered } = call;
  const perPart = rowsPerPart(ctx, call);
  const parts = Math.ceil(rows / perPart);
  const words = parts * cols;
  const compiled = partsKernel(ctx, call);
  const sumBlocks = (all: readonly View[]) =>
    eachPartBlock(ctx, { ...call, perPart }, (views, numRows, partOf) => {
      const sums = all.map(partOf);
      const { grid, perLane } = elementwiseGrid(ctx, sums[0]!.size);
      ctx.dispatch(compiled, {
        params: { rows: numRows, cols, per_part: perPart, words: sums[0]!.size, per_lane: perLane },
        views: [...views, ...sums],
        grid,
      });
    });
  const addUp = (x: View, out: View | undefined) => {
    if (out !== undefined) {
      reduceInto(ctx, { kind: 'sum', outer: 1, dim: parts, inner: cols, x, out });
    }
  };
  ctx.withScratch('f32', words, (weights) => {
    if (!isCentered) {
      sumBlocks([weights]);
      addUp(weights, dWeight);
      return;
    }
    ctx.withScratch('f32', words, (biases) => {
      sumBlocks([weights, biases]);
      addUp(weights, dWeight);
      addUp(biases, dBias);
    });
  });
}

/** Returns the kernel that sums weights, and biases if rows are centered, over blocks of rows. */
function partsKernel(ctx: KernelContext, call: BackwardCall): CompiledKernel {
  const { x, mean, dy, isCentered } = call;
  const key = `${nameOf('rowNorm', call)} parameter gradients ${x.dtype} ${dy.dtype}`;
  const element = 'load_x(r * P.cols + j)';
  return ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [
        { name: 'x', type: x.dtype, access: 'read' },
        ...optional('mean', mean),
        { name: 'rstd', type: 'f32', access: 'read' },
        { name: 'dy', type: dy.dtype, access: 'read' },
        { name: 'weights', type: 'f32', access: 'read_write' },
        ...(isCentered ? [BIASES] : []),
      ],
      params: { rows: 'u32', cols: 'u32', per_part: 'u32', words: 'u32', per_lane: 'u32' },
      workgroupSize: ELEMENTWISE_SIZE,
      body: `${INTEGER_DIVIDE}
fn sum_block(u: u32) {
  let part = divide(u, P.cols);
  let j = u - part * P.cols;
  var weight = 0.0;
  ${isCentered ? 'var bias = 0.0;' : ''}
  for (var r = part * P.per_part; r < min((part + 1u) * P.per_part, P.rows); r++) {
    let g = load_dy(r * P.cols + j);
    ${isCentered ? 'let average = load_mean(r);' : ''}
    weight = fma(g, ${centered(call, element)} * load_rstd(r), weight);
    ${isCentered ? 'bias += g;' : ''}
  }
  store_weights(u, weight);
  ${isCentered ? 'store_biases(u, bias);' : ''}
}
${elementwiseMain('sum_block(u);')}`,
    }),
  );
}

const BIASES: Binding = { name: 'biases', type: 'f32', access: 'read_write' };
