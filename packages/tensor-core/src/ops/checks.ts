// Checks of operands that several families of ops share, and the arithmetic of shapes and strides.
// Each check throws an error that names the op and describes the operand that it got.

import { type DType, isFloat } from '@shardweave/dtypes';
import { DTypeError, LimitError, ShapeError } from '../errors.js';
import type { Shape, Tensor } from '../tensor.js';

export function shapeText(shape: Shape): string {
  return `[${shape.join(', ')}]`;
}

export function isSameShape(a: Shape, b: Shape): boolean {
  return a.length === b.length && a.every((dim, i) => dim === b[i]);
}

export function requireFloat(op: string, ...tensors: readonly Tensor[]): void {
  for (const tensor of tensors) {
    if (!isFloat(tensor.dtype)) {
      throw new DTypeError(
        `${op}: expected a float tensor (f32, f16, bf16), got ${tensor.dtype} ${shapeText(tensor.shape)}. Cast it first.`,
      );
    }
  }
}

export function requireInteger(op: string, tensor: Tensor): void {
  if (tensor.dtype !== 'i32' && tensor.dtype !== 'u32') {
    throw new DTypeError(
      `${op}: expected integer ids (i32, u32), got ${tensor.dtype} ${shapeText(tensor.shape)}. Cast them first.`,
    );
  }
}

export function requireSameDevice(op: string, ...tensors: readonly Tensor[]): void {
  for (const tensor of tensors) {
    if (tensor.device !== tensors[0]!.device) {
      throw new ShapeError(
        `${op}: expected tensors of one device, got two. Copy through the host.`,
      );
    }
  }
}

/**
 * Checks the operands of a norm, x [..., cols] and parameters [cols] of any float dtype, and
 * returns how many rows and columns x has.
 */
export function requireNormRows(
  op: string,
  x: Tensor,
  parameters: readonly Tensor[],
): { readonly rows: number; readonly cols: number } {
  requireFloat(op, x, ...parameters);
  requireSameDevice(op, x, ...parameters);
  const cols = x.shape.at(-1) ?? 0;
  if (cols === 0) {
    throw new ShapeError(
      `${op}: expected a non-empty last axis, got ${shapeText(x.shape)}. It normalizes along that axis.`,
    );
  }
  for (const { shape } of parameters) {
    if (!isSameShape(shape, [cols])) {
      throw new ShapeError(
        `${op}: expected parameters of shape [${cols}] (x is ${shapeText(x.shape)}), got ${shapeText(shape)}.`,
      );
    }
  }
  return { rows: x.size / cols, cols };
}

/** Checks that a kernel can add two float tensors without broadcasting: one shape and one dtype. */
export function requireSummands(op: string, x: Tensor, residual: Tensor): void {
  requireFloat(op, x, residual);
  requireSameDevice(op, x, residual);
  if (!isSameShape(x.shape, residual.shape)) {
    throw new ShapeError(
      `${op}: expected x and residual of one shape, got ${shapeText(x.shape)} and ${shapeText(residual.shape)}.`,
    );
  }
  if (x.dtype !== residual.dtype) {
    throw new DTypeError(
      `${op}: expected x and residual of one dtype, got ${x.dtype} and ${residual.dtype}. Cast one.`,
    );
  }
}

/** The dtype of a binary op's result: that of both operands, or f32 for two different floats. */
export function commonDType(op: string, a: Tensor, b: Tensor): DType {
  if (a.dtype === b.dtype) {
    if (!isFloat(a.dtype) && (op === 'div' || op === 'pow')) {
      requireFloat(op, a);
    }
    return a.dtype;
  }
  if (!isFloat(a.dtype) || !isFloat(b.dtype)) {
    throw new DTypeError(
      `${op}: expected two floats or one integer dtype, got ${a.dtype} ${shapeText(a.shape)} and ${b.dtype} ${shapeText(b.shape)}. Cast one.`,
    );
  }
  return 'f32';
}

/** Throws a LimitError for operands beyond one binding; for kernels that cannot split theirs. */
export function requireBindable(op: string, ...tensors: readonly Tensor[]): void {
  for (const tensor of tensors) {
    const { maxViewBytes } = tensor.device.backend.info.limits;
    const bytes =
      (tensor.size * tensor.storage.byteLength) / Math.max(1, tensor.storage.elementCount);
    if (bytes > maxViewBytes) {
      throw new LimitError(
        `${op}: expected operands of at most ${maxViewBytes} bytes on this device, got ${shapeText(tensor.shape)} of ${bytes} bytes. Split it along its first dimension.`,
        { requestedBytes: bytes, limitBytes: maxViewBytes },
      );
    }
  }
}

/** Resolves an axis that may count from the end: axis -1 of a tensor with 3 axes is 2. */
export function resolveAxis(op: string, axis: number, rank: number): number {
  const resolved = axis < 0 ? axis + rank : axis;
  if (!Number.isInteger(axis) || resolved < 0 || resolved >= rank) {
    throw new ShapeError(
      rank === 0
        ? `${op}: expected a tensor with axes, got a scalar and axis ${axis}. Reshape it to [1] first.`
        : `${op}: expected an axis in [${-rank}, ${rank}), got ${axis}. Negative ones count from the end.`,
    );
  }
  return resolved;
}

/** Row-major strides of a dense shape, in elements: those of [2, 3, 4] are [12, 4, 1]. */
export function denseStrides(shape: Shape): number[] {
  const strides = new Array<number>(shape.length);
  let stride = 1;
  for (let i = shape.length - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= shape[i]!;
  }
  return strides;
}

/**
 * The shape to which two shapes broadcast, by NumPy's rules: [2, 1] and [3] give [2, 3].
 * @throws {ShapeError} when two lengths of an axis differ and neither is 1
 */
export function broadcastShapes(op: string, a: Shape, b: Shape): number[] {
  const rank = Math.max(a.length, b.length);
  const out = new Array<number>(rank);
  for (let i = 0; i < rank; i++) {
    const x = a[a.length - rank + i] ?? 1;
    const y = b[b.length - rank + i] ?? 1;
    if (x !== y && x !== 1 && y !== 1) {
      throw new ShapeError(
        `${op}: expected shapes that broadcast, got ${shapeText(a)} and ${shapeText(b)} (axis ${i - rank}: ${x} and ${y}). Dimensions must be equal or 1.`,
      );
    }
    out[i] = x === 1 ? y : x;
  }
  return out;
}

/** The largest number of axes that a strided kernel walks, as KernelCalls states. */
const MAX_WALK_RANK = 6;

/**
 * Describes the same walk by fewer axes: axes of length 1 are dropped, and two neighbors are merged
 * where every operand steps through both evenly. The dense shape [2, 3, 4] with strides [12, 4, 1]
 * becomes [24] with [1]. At least one axis is left.
 */
export function collapseAxes(
  shape: Shape,
  strides: readonly (readonly number[])[],
): [shape: number[], strides: number[][]] {
  const walk: number[] = [];
  const steps: number[][] = strides.map(() => []);
  shape.forEach((dim, i) => {
    if (dim === 1) {
      return;
    }
    const last = walk.length - 1;
    const isMerged =
      last >= 0 && strides.every((operand, j) => steps[j]![last] === operand[i]! * dim);
    if (isMerged) {
      walk[last]! *= dim;
    } else {
      walk.push(dim);
    }
    strides.forEach((operand, j) => {
      steps[j]![walk.length - 1] = operand[i]!;
    });
  });
  return walk.length > 0 ? [walk, steps] : [[1], strides.map(() => [0])];
}

/**
 * Checks that kernels can walk the collapsed shape `walk`; `shapes` are what the error names.
 * @throws {ShapeError} for more than MAX_WALK_RANK axes
 */
export function requireWalkable(op: string, walk: Shape, ...shapes: readonly Shape[]): void {
  if (walk.length <= MAX_WALK_RANK) {
    return;
  }
  throw new ShapeError(
    `${op}: expected at most ${MAX_WALK_RANK} axes that can't be merged, got ${walk.length} (shapes ${shapes.map(shapeText).join(', ')}). Reshape neighboring axes into one.`,
  );
}

/** Strides that read `shape` as if it were `target`, which are 0 along broadcast axes. */
export function broadcastStrides(shape: Shape, target: Shape): number[] {
  const dense = denseStrides(shape);
  const lead = target.length - shape.length;
  return target.map((_, i) => (i < lead || shape[i - lead] === 1 ? 0 : dense[i - lead]!));
}
