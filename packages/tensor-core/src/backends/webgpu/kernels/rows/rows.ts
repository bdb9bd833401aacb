// Kernels over rows. A workgroup takes a row and reduces it in workgroup memory.

import type { DType } from '@shardweave/dtypes';
import type { View } from '../../../../view.js';
import {
  type Binding,
  defineKernel,
  elementsPerWord,
  linearGrid,
  type ParamType,
} from '../../kernel/kernel.js';
import { mainHead } from '../../kernel/wgsl.js';
import { type KernelContext, sliceView } from '../../queue/context.js';
import { eachRowBlock } from '../../queue/row-blocks.js';
import { through32 } from '../elementwise/cast.js';

/** The columns from which 256 lanes take a row instead of 64. */
const WIDE_ROW = 1024;
/** The rows of which one invocation sums a parameter's gradient, before the parts are added up. */
const ROWS_PER_PART = 64;

export interface RowCall {
  /** The kernel's name, unique up to lanes. Its first word names the op in errors. */
  readonly key: string;
  readonly rows: number;
  readonly cols: number;
  /** The names of bindings with one element per row. */
  readonly perRow?: readonly string[];
  /** The names of bindings that all rows share. */
  readonly shared?: readonly string[];
  readonly bindings: readonly Binding[];
  readonly aliases?: Readonly<Record<string, string>>;
  /** Parameters beside `rows`, `cols`, and `first_row`, the number of the block's first row. */
  readonly params: Readonly<Record<string, ParamType>>;
  /** WGSL functions, which may use LANES, the number of lanes. */
  readonly helpers?: string;
  /**
   * WGSL of one row. It may use `row`, `base` (the row's first element) and `me` (0 to LANES - 1).
   * `reduce_add`, `reduce_max` and `reduce_min` combine values of all lanes, so every lane must
   * reach them.
   */
  readonly body: string;
  readonly values: Readonly<Record<string, number>>;
  readonly views: readonly View[];
}

/** Runs a kernel over rows, in blocks of rows that bind at once. */
export function runRows(ctx: KernelContext, call: RowCall): void {
  const { rows, cols, views, perRow = [], shared = [] } = call;
  const lanes = cols >= WIDE_ROW ? 256 : 64;
  const key = `${call.key} x${lanes}`;
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: call.bindings,
      ...(call.aliases === undefined ? {} : { aliases: call.aliases }),
      params: { rows: 'u32', cols: 'u32', first_row: 'u32', ...call.params },
      workgroupSize: [lanes, 1, 1],
      body: `const LANES = ${lanes}u;
${laneReductions(lanes)}
${call.helpers ?? ''}
${mainHead([lanes, 1, 1])}
  let row = group;
  if (row >= P.rows) { return; }
  let me = lane;
  let base = row * P.cols;
${call.body}
}`,
    }),
  );
  const strides = call.bindings.map(({ name }) =>
    shared.includes(name) ? 0 : perRow.includes(name) ? 1 : cols,
  );
  const areWritten = call.bindings.map(({ access }) => access === 'read_write');
  const op = call.key.replace(/ .*/, '');
  eachRowBlock(ctx, views, { strides, rows, op, areWritten }, (parts, firstRow, numRows) =>
    ctx.dispatch(compiled, {
      params: { rows: numRows, cols, first_row: firstRow, ...call.values },
      views: parts,
      grid: linearGrid(numRows),
    }),
  );
}

/** Returns a WGSL loop that stores a row of `out`, with the expression `value(j)` for element j. */
export function storeRow(out: View, value: (j: string) => string, name = 'out'): string {
  return elementsPerWord(out.dtype) === 2
    ? `for (var j = 2u * me; j < P.cols; j += 2u * LANES) {
    store2_${name}(base + j, ${value('j')}, ${value('(j + 1u)')});
  }`
    : `for (var j = me; j < P.cols; j += LANES) { store_${name}(base + j, ${value('j')}); }`;
}

/** Whether rows of `out` are whole words, so that no word belongs to two rows. */
export function hasWholeRows(out: View, cols: number): boolean {
  return cols % elementsPerWord(out.dtype) === 0;
}

/** Returns WGSL `summed(i)`: element i of x, or of x + residual rounded to a 16-bit `dtype`. */
export function summed(residual: View | undefined, dtype: DType | undefined): string {
  const value = residual === undefined ? 'load_x(i)' : 'load_x(i) + load_residual(i)';
  const is16 = residual !== undefined && (dtype === 'f16' || dtype === 'bf16');
  return `fn summed(i: u32) -> f32 { return ${is16 ? `${dtype}_unpack(${dtype}_bits(${value}), 0u)` : value}; }`;
}

/**
 * Runs `body` with views whose rows are whole words. These are the outputs themselves, or f32
 * scratch that is cast to them afterwards.
 */
export function withWholeRows(
  ctx: KernelContext,
  [first, ...rest]: readonly (View | undefined)[],
  cols: number,
  body: (views: readonly (View | undefined)[]) => void,
): void {
  const next = (view: View | undefined) => {
    if (rest.length === 0) {
      body([view]);
    } else {
      withWholeRows(ctx, rest, cols, (others) => body([view, ...others]));
    }
  };
  if (first === undefined || hasWholeRows(first, cols)) {
    next(first);
  } else {
    through32(ctx, first, next);
  }
}

export function optional(
  name: string,
  view: View | undefined,
  access: Binding['access'] = 'read',
): Binding[] {
  return view === undefined ? [] : [{ name, type: view.dtype, access }];
}

export function present(view: View | undefined): View[] {
  return view === undefined ? [] : [view];
}

/** What the gradient of a norm's parameters reads: the rows, and the statistics of each. */
interface NormRows {
  readonly x: View;
  readonly mean?: View;
  readonly rstd: View;
  readonly dy: View;
  readonly rows: number;
  readonly cols: number;
}

/** Returns the rows that one invocation sums of a parameter's gradient, at most those that bind. */
export function rowsPerPart(ctx: KernelContext, { x, dy, cols }: NormRows): number {
  return ctx.fits([x, dy])
    ? ROWS_PER_PART
    : Math.min(ROWS_PER_PART, ctx.windowUnits([x.dtype, dy.dtype], cols, { op: 'norm' }));
}

/**
 * Calls `body` with blocks that bind at once and consist of whole parts of `perPart` rows. It gets
 * the views of x, mean, rstd and dy, the number of rows, and a function that cuts the block's parts
 * out of sums [parts, cols].
 */
export function eachPartBlock(
  ctx: KernelContext,
  { x, mean, rstd, dy, rows, cols, perPart }: NormRows & { readonly perPart: number },
  body: (views: readonly View[], numRows: number, partOf: (sums: View) => View) => void,
): void {
  const views = [x, ...present(mean), rstd, dy];
  const strides = views.map((view) => (view === x || view === dy ? cols : 1));
  const blocks = { strides, rows, op: 'norm', multiple: perPart };
  eachRowBlock(ctx, views, blocks, (parts, firstRow, numRows) => {
    const numParts = Math.ceil(numRows / perPart);
    body(parts, numRows, (sums) => sliceView(sums, (firstRow / perPart) * cols, numParts * cols));
  });
}

/** Returns WGSL that combines a value over the lanes of a workgroup, always in the same order. */
export function laneReductions(lanes: number): string {
  const tree = (name: string, combine: string) => `fn reduce_${name}(v: f32, me: u32) -> f32 {
  lanes_shared[me] = v;
  workgroupBarrier();
  for (var s = ${lanes / 2}u; s > 0u; s >>= 1u) {
    if (me < s) { let a = lanes_shared[me]; let b = lanes_shared[me + s]; lanes_shared[me] = ${combine}; }
    workgroupBarrier();
  }
  let r = lanes_shared[0];
  workgroupBarrier();
  return r;
}`;
  return `var<workgroup> lanes_shared: array<f32, ${lanes}>;
${tree('add', 'a + b')}
${tree('max', 'larger(a, b)')}
${tree('min', 'smaller(a, b)')}`;
}
