// Ops that move elements without computing. A result that is a dense run of its input's elements is
// a view, which shares the input's storage; any other is one strided copy.

import { checkNames } from '../check-options.js';
import { ShapeError } from '../errors.js';
import { elementCountOf, requireNumbers, type Shape, Tensor } from '../tensor.js';
import {
  broadcastShapes,
  broadcastStrides,
  denseStrides,
  isSameShape,
  requireSameDevice,
  resolveAxis,
  shapeText,
} from './checks.js';
import { copyStrided, joined } from './copy.js';
import { sumTo } from './sum-to.js';

/**
 * A view of the same elements in another shape. One dimension may be -1, and is then computed from
 * the others: 6 elements as [2, -1] are [2, 3].
 * @throws {ShapeError} when the shape has another number of elements
 */
export function reshape(x: Tensor, shape: Shape): Tensor {
  const resolved = inferShape(x, shape);
  if (isSameShape(resolved, x.shape)) {
    return x;
  }
  return viewOf('reshape', x, resolved, 0, (dy) => reshape(dy, x.shape));
}

/**
 * A copy with permuted axes: axis i of the result is axis `axes[i]` of x. Without `axes` the last
 * two are swapped.
 * @throws {ShapeError} unless `axes` names each axis once, or without it for less than two axes
 */
export function transpose(x: Tensor, axes?: readonly number[]): Tensor {
  const order = axes?.map((axis) => resolveAxis('transpose', axis, x.rank)) ?? swapLast(x);
  if (order.length !== x.rank || new Set(order).size !== x.rank) {
    throw new ShapeError(
      `transpose: expected each of the ${x.rank} axes of ${shapeText(x.shape)} once, got ${shapeText(order)}.`,
    );
  }
  const strides = denseStrides(x.shape);
  const shape = order.map((axis) => x.shape[axis]!);
  const out = copyStrided(
    'transpose',
    x,
    shape,
    0,
    order.map((axis) => strides[axis]!),
  );
  const inverse = order.map((_, i) => order.indexOf(i));
  x.device.record({
    name: 'transpose',
    inputs: [x],
    outputs: [out],
    saved: [],
    backward: ([dy]) => [transpose(dy!, inverse)],
  });
  return out;
}

/**
 * A copy of x repeated along axes of length 1, and along new leading axes, to `shape`, by NumPy's
 * rules. Where x has that shape already, the result is x itself.
 */
export function broadcastTo(x: Tensor, shape: Shape): Tensor {
  if (isSameShape(x.shape, shape)) {
    return x;
  }
  if (
    x.rank > shape.length ||
    !isSameShape(broadcastShapes('broadcastTo', x.shape, shape), shape)
  ) {
    throw new ShapeError(
      `broadcastTo: expected a shape that ${shapeText(x.shape)} broadcasts to, got ${shapeText(shape)}.`,
    );
  }
  const out = copyStrided('broadcastTo', x, shape, 0, broadcastStrides(x.shape, shape));
  x.device.record({
    name: 'broadcastTo',
    inputs: [x],
    outputs: [out],
    saved: [],
    backward: ([dy]) => [sumTo(dy!, x.shape)],
  });
  return out;
}

/**
 * The elements [start, end) along an axis. The result is a view where they lie side by side, which
 * is so where all axes before this one have length 1; otherwise it is a copy.
 * @param options.end the axis's length by default
 * @throws {ShapeError} unless 0 <= start <= end <= the axis's length
 */
export function slice(
  x: Tensor,
  options: { readonly axis: number; readonly start: number; readonly end?: number },
): Tensor {
  checkNames('slice', options, ['axis', 'start', 'end']);
  const axis = resolveAxis('slice', options.axis, x.rank);
  const length = x.shape[axis]!;
  const { start, end = length } = options;
  if (
    !(
      Number.isInteger(start) &&
      Number.isInteger(end) &&
      0 <= start &&
      start <= end &&
      end <= length
    )
  ) {
    throw new ShapeError(
      `slice: expected 0 <= start <= end <= ${length} (axis ${axis} of ${shapeText(x.shape)}), got [${start}, ${end}).`,
    );
  }
  const shape = x.shape.map((dim, i) => (i === axis ? end - start : dim));
  const inner = elementCountOf(x.shape.slice(axis + 1));
  const backward = (dy: Tensor): Tensor => padAxis(dy, axis, start, length);
  if (elementCountOf(x.shape.slice(0, axis)) === 1) {
    return viewOf('slice', x, shape, start * inner, backward);
  }
  const out = copyStrided('slice', x, shape, start * inner, denseStrides(x.shape));
  x.device.record({
    name: 'slice',
    inputs: [x],
    outputs: [out],
    saved: [],
    backward: ([dy]) => [backward(dy!)],
  });
  return out;
}

/**
 * Cuts a tensor along an axis into parts of the given lengths, each a slice.
 * @throws {ShapeError} unless the lengths are whole and add up to the axis's length
 */
export function split(
  x: Tensor,
  options: { readonly axis: number; readonly lengths: readonly number[] },
): Tensor[] {
  checkNames('split', options, ['axis', 'lengths']);
  const axis = resolveAxis('split', options.axis, x.rank);
  const total = options.lengths.reduce((a, b) => a + b, 0);
  if (total !== x.shape[axis] || options.lengths.some((length) => !isCount(length))) {
    throw new ShapeError(
      `split: expected whole lengths of at least 0 that add up to ${x.shape[axis]} (axis ${axis} of ${shapeText(x.shape)}), got ${shapeText(options.lengths)}.`,
    );
  }
  let start = 0;
  return options.lengths.map((length) => {
    const part = slice(x, { axis, start, end: start + length });
    start += length;
    return part;
  });
}

/**
 * Joins tensors of one dtype along an axis, as a copy.
 * @throws {ShapeError} for no tensors, or where dtypes, ranks or other dimensions differ
 */
export function cat(tensors: readonly Tensor[], options: { readonly axis: number }): Tensor {
  checkNames('cat', options, ['axis']);
  const first = tensors[0];
  if (first === undefined) {
    throw new ShapeError('cat: expected at least one tensor, got none.');
  }
  requireSameDevice('cat', ...tensors);
  const axis = resolveAxis('cat', options.axis, first.rank);
  for (const tensor of tensors) {
    const isFit =
      tensor.rank === first.rank &&
      tensor.dtype === first.dtype &&
      tensor.shape.every((dim, i) => i === axis || dim === first.shape[i]);
    if (!isFit) {
      throw new ShapeError(
        `cat: expected ${first.dtype} ${shapeText(first.shape)} but for axis ${axis}, got ${tensor.dtype} ${shapeText(tensor.shape)}.`,
      );
    }
  }
  const lengths = tensors.map((tensor) => tensor.shape[axis]!);
  const total = lengths.reduce((a, b) => a + b, 0);
  const shape = first.shape.map((dim, i) => (i === axis ? total : dim));
  const out = joined(tensors, shape, axis);
  first.device.record({
    name: 'cat',
    inputs: tensors,
    outputs: [out],
    saved: [],
    backward: ([dy]) => split(dy!, { axis, lengths }),
  });
  return out;
}

// ---- private -----------------------------------------------------------------------------------

function viewOf(
  name: string,
  x: Tensor,
  shape: Shape,
  offset: number,
  backward: (dy: Tensor) => Tensor,
): Tensor {
  requireNumbers(x);
  const out = new Tensor(x.storage, shape, x.offset + offset);
  x.device.scopes.track(out);
  x.device.record({
    name,
    inputs: [x],
    outputs: [out],
    saved: [],
    backward: ([dy]) => [backward(dy!)],
  });
  return out;
}

/** Places dy at `start` along an axis of `length`, with zeros before and after it. */
function padAxis(dy: Tensor, axis: number, start: number, length: number): Tensor {
  const zeros = (size: number) =>
    dy.device.zeros(
      dy.shape.map((dim, i) => (i === axis ? size : dim)),
      { dtype: dy.dtype },
    );
  const after = length - start - dy.shape[axis]!;
  const parts = [...(start > 0 ? [zeros(start)] : []), dy, ...(after > 0 ? [zeros(after)] : [])];
  return parts.length === 1 ? dy : cat(parts, { axis });
}

function inferShape(x: Tensor, shape: Shape): Shape {
  const isValid = shape.every((dim) => dim === -1 || isCount(dim));
  const holes = shape.filter((dim) => dim === -1).length;
  const known = elementCountOf(shape.filter((dim) => dim !== -1));
  const resolved = shape.map((dim) => (dim === -1 ? x.size / Math.max(1, known) : dim));
  const isFit = elementCountOf(resolved) === x.size && resolved.every(isCount);
  if (!isValid || holes > 1 || !isFit) {
    throw new ShapeError(
      `reshape: expected a shape of ${x.size} elements (from ${shapeText(x.shape)}), got ${shapeText(shape)}. At most one dimension may be -1.`,
    );
  }
  return resolved;
}

function isCount(dim: number): boolean {
  return Number.isInteger(dim) && dim >= 0;
}

function swapLast(x: Tensor): number[] {
  if (x.rank < 2) {
    throw new ShapeError(
      `transpose: expected at least two axes, got ${shapeText(x.shape)}. Reshape it first.`,
    );
  }
  const axes = x.shape.map((_, i) => i);
  return [...axes.slice(0, -2), x.rank - 1, x.rank - 2];
}
