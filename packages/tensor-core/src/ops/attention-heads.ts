// The heads of attention's operands. They are tensors of their own, or columns of wider rows, which
// kernels read and write in place.

import { byteSize } from '@shardweave/dtypes';
import { checkOptions } from '../check-options.js';
import { DTypeError, ShapeError } from '../errors.js';
import { type HeadStrides, MAX_HEAD_DIM } from '../kernel-calls/attention.js';
import { whole } from '../options.js';
import { isTensor, type Tensor } from '../tensor.js';
import type { View } from '../view.js';
import { requireFloat, requireSameDevice, shapeText } from './checks.js';

/** Columns of a tensor [batch, seq, width] that are heads side by side, made by headsOf. */
export interface Heads {
  readonly tensor: Tensor;
  readonly numHeads: number;
  readonly headDim: number;
  /** The first head's first column. */
  readonly start: number;
}

/** An operand of attention: a tensor [batch, seq, heads, headDim], or columns of a wider one. */
export type AttentionRows = Tensor | Heads;

const RULES = { numHeads: whole(1), headDim: whole(1), start: whole(0) };

/**
 * Makes an operand of attention of the columns [start, start + numHeads * headDim) of `tensor`,
 * which hold numHeads heads side by side. Kernels read and write them in place, so queries, keys
 * and values of one fused projection need no copy.
 * @param tensor [batch, seq, width]
 * @param options.headDim the columns of a head. By default the columns from `start` on are divided
 * evenly.
 * @param options.start the first column. The default is 0.
 */
export function headsOf(
  tensor: Tensor,
  options: { readonly numHeads: number; readonly headDim?: number; readonly start?: number },
): Heads {
  checkOptions<typeof options>('headsOf', options, RULES);
  const { numHeads, start = 0 } = options;
  const width = tensor.shape[2] ?? 0;
  const { headDim = (width - start) / numHeads } = options;
  if (tensor.rank !== 3 || !Number.isInteger(headDim) || start + numHeads * headDim > width) {
    throw new ShapeError(
      `headsOf: expected [batch, seq, width] with ${numHeads} heads of ${headDim} columns from column ${start} on, got ${shapeText(tensor.shape)}.`,
    );
  }
  return { tensor, numHeads, headDim, start };
}

/** The place of an operand's heads in its tensor: start and strides are in elements. */
export interface Layout {
  readonly tensor: Tensor;
  readonly start: number;
  readonly batch: number;
  readonly rows: number;
  readonly heads: number;
  readonly headDim: number;
  readonly strides: HeadStrides;
}

export function layoutOf(op: string, operand: AttentionRows): Layout {
  const heads = isTensor(operand) ? undefined : operand;
  const tensor = heads?.tensor ?? (operand as Tensor);
  if (heads === undefined && tensor.rank !== 4) {
    throw new ShapeError(
      `${op}: expected [batch, seq, heads, headDim], got ${shapeText(tensor.shape)}. headsOf takes heads from wider rows.`,
    );
  }
  const [batch, rows] = tensor.shape as [number, number];
  const numHeads = heads?.numHeads ?? tensor.shape[2]!;
  const headDim = heads?.headDim ?? tensor.shape[3]!;
  const width = heads === undefined ? numHeads * headDim : tensor.shape[2]!;
  const strides = { batch: rows * width, head: headDim, row: width };
  return { tensor, start: heads?.start ?? 0, batch, rows, heads: numHeads, headDim, strides };
}

export type Layouts = readonly [q: Layout, k: Layout, v: Layout];

export function widthOf({ heads, headDim }: Layout): number {
  return heads * headDim;
}

export function areApart(a: Layout, b: Layout): boolean {
  return a.start + widthOf(a) <= b.start || b.start + widthOf(b) <= a.start;
}

/**
 * Returns the view of an operand in `tensor`, which is its own tensor or its gradient, from the
 * operand's first element to its last.
 */
export function viewOf(
  tensor: Tensor,
  { start, strides, headDim, heads, rows, batch }: Layout,
): View {
  const last = (batch - 1) * strides.batch + (rows - 1) * strides.row + heads * headDim;
  return tensor.storage.view(tensor.offset + start, last);
}

export function checkLayouts(op: string, [q, k, v]: Layouts): void {
  const tensors = [q.tensor, k.tensor, v.tensor];
  requireFloat(op, ...tensors);
  requireSameDevice(op, ...tensors);
  const { dtype } = q.tensor;
  if (tensors.some((tensor) => tensor.dtype !== dtype)) {
    throw new DTypeError(
      `${op}: expected q, k and v of one dtype, got ${tensors.map((tensor) => tensor.dtype).join(', ')}. Cast them first.`,
    );
  }
  const isEqual =
    k.batch === q.batch &&
    k.headDim === q.headDim &&
    v.batch === k.batch &&
    v.rows === k.rows &&
    v.heads === k.heads &&
    v.headDim === k.headDim;
  if (!isEqual || k.heads === 0 || q.heads % k.heads !== 0) {
    const text = ({ batch, rows, heads, headDim }: Layout) =>
      shapeText([batch, rows, heads, headDim]);
    throw new ShapeError(
      `${op}: expected keys and values of equal shapes, of the queries' batch and head size, whose heads divide the queries', got q ${text(q)}, k ${text(k)}, v ${text(v)} ([batch, seq, heads, headDim]).`,
    );
  }
  const isOdd =
    byteSize(dtype) === 2 &&
    [q, k, v].some((heads) => (heads.headDim | heads.start | heads.strides.row) % 2 > 0);
  if (q.headDim < 1 || q.headDim > MAX_HEAD_DIM || isOdd) {
    throw new ShapeError(
      `${op}: expected heads of 1 to ${MAX_HEAD_DIM} columns, in 16 bits an even number that begins at an even one, got ${dtype} heads of ${q.headDim}.`,
    );
  }
}
