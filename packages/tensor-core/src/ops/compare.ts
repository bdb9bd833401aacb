// Comparisons, and `where`, which chooses elements by their result. A mask is a u32 tensor of ones
// and zeros, because there is no dtype of one byte.

import { type DType, isFloat } from '@shardweave/dtypes';
import { DTypeError } from '../errors.js';
import type { CompareKind } from '../kernel-calls/compare.js';
import type { Shape, Tensor } from '../tensor.js';
import { cast } from './cast.js';
import {
  broadcastShapes,
  broadcastStrides,
  collapseAxes,
  commonDType,
  requireInteger,
  requireSameDevice,
  requireWalkable,
  shapeText,
} from './checks.js';
import { sumTo } from './sum-to.js';
import { holds } from './tensor-data.js';

/**
 * A u32 mask that is 1 where a = b, with broadcasting. NaN equals nothing, itself included.
 * @throws {ShapeError} when the shapes do not broadcast
 * @throws {DTypeError} for an integer tensor beside one of another dtype
 */
export const eq = (a: Tensor, b: Tensor | number): Tensor => compare('eq', a, b);
/** A u32 mask that is 1 where a differs from b, with operands as in `eq`. */
export const ne = (a: Tensor, b: Tensor | number): Tensor => compare('ne', a, b);
/** A u32 mask that is 1 where a < b, with operands as in `eq`. */
export const lt = (a: Tensor, b: Tensor | number): Tensor => compare('lt', a, b);
/** A u32 mask that is 1 where a <= b, with operands as in `eq`. */
export const le = (a: Tensor, b: Tensor | number): Tensor => compare('le', a, b);
/** A u32 mask that is 1 where a > b, with operands as in `eq`. */
export const gt = (a: Tensor, b: Tensor | number): Tensor => compare('gt', a, b);
/** A u32 mask that is 1 where a >= b, with operands as in `eq`. */
export const ge = (a: Tensor, b: Tensor | number): Tensor => compare('ge', a, b);

function compare(kind: CompareKind, a: Tensor, b: Tensor | number): Tensor {
  const { device } = a;
  return device.scope(() => {
    // A number stays f32 beside a 16-bit tensor, since rounding it would move the bound.
    const other =
      typeof b === 'number' ? numberBeside(kind, b, a, isFloat(a.dtype) ? 'f32' : a.dtype) : b;
    requireSameDevice(kind, a, other);
    commonDType(kind, a, other);
    const shape = broadcastShapes(kind, a.shape, other.shape);
    const out = device.empty(shape, { dtype: 'u32' });
    if (out.size > 0) {
      const [walk, [aStrides, bStrides]] = walkOf(kind, [a, other], out);
      device.run('compare', {
        kind,
        a: a.view(),
        b: other.view(),
        out: out.view(),
        shape: walk,
        aStrides: aStrides!,
        bStrides: bStrides!,
      });
    }
    return out;
  });
}

/**
 * The elements of a where the condition is not 0, those of b elsewhere; all three broadcast. An
 * element that is not chosen gets no gradient, and it may be NaN without any effect.
 * @param condition i32 or u32, such as the mask of a comparison
 */
export function where(condition: Tensor, a: Tensor | number, b: Tensor | number): Tensor {
  requireInteger('where', condition);
  const { device } = condition;
  return device.scope(() => {
    const like = typeof a === 'number' ? b : a;
    const first = typeof a === 'number' ? scalarLike(a, like, condition) : a;
    const second = typeof b === 'number' ? scalarLike(b, first, condition) : b;
    requireSameDevice('where', condition, first, second);
    const dtype = commonDType('where', first, second);
    const shape = broadcastShapes(
      'where',
      condition.shape,
      broadcastShapes('where', first.shape, second.shape),
    );
    const out = device.empty(shape, { dtype });
    if (out.size > 0) {
      runWhere(condition, first, second, out);
    }
    if (isFloat(dtype)) {
      device.record({
        name: 'where',
        inputs: [first, second],
        outputs: [out],
        saved: [condition],
        backward: ([dy], needs) => [
          needs[0] ? chosen(dy!, condition, { of: first, isFirst: true }) : undefined,
          needs[1] ? chosen(dy!, condition, { of: second, isFirst: false }) : undefined,
        ],
      });
    }
    return out;
  });
}

/** An operand's gradient: dy where it was chosen, summed over the axes that were broadcast. */
function chosen(
  dy: Tensor,
  condition: Tensor,
  { of, isFirst }: { readonly of: Tensor; readonly isFirst: boolean },
): Tensor {
  const zero = dy.device.zeros([], { dtype: dy.dtype });
  const out = dy.device.empty(dy.shape, { dtype: dy.dtype });
  if (out.size > 0) {
    runWhere(condition, isFirst ? dy : zero, isFirst ? zero : dy, out);
  }
  return cast(sumTo(out, of.shape), of.dtype);
}

function runWhere(condition: Tensor, a: Tensor, b: Tensor, out: Tensor): void {
  const [shape, [conditionStrides, aStrides, bStrides]] = walkOf('where', [condition, a, b], out);
  out.device.run('where', {
    condition: condition.view(),
    a: a.view(),
    b: b.view(),
    out: out.view(),
    shape,
    conditionStrides: conditionStrides!,
    aStrides: aStrides!,
    bStrides: bStrides!,
  });
}

/** The walk over `out` with the fewest axes that reads the operands as broadcast to its shape. */
function walkOf(op: string, operands: readonly Tensor[], out: Tensor): [Shape, number[][]] {
  const strides = operands.map(({ shape }) => broadcastStrides(shape, out.shape));
  const walk = collapseAxes(out.shape, strides);
  requireWalkable(op, walk[0], ...operands.map(({ shape }) => shape));
  return walk;
}

function scalarLike(value: number, like: Tensor | number, condition: Tensor): Tensor {
  const dtype = typeof like === 'number' ? 'f32' : like.dtype;
  return numberBeside('where', value, condition, dtype);
}

/**
 * A number as a tensor [] of a dtype, beside which it stands.
 * @throws {DTypeError} where the dtype is one of integers and does not hold the number
 */
export function numberBeside(op: string, value: number, beside: Tensor, dtype: DType): Tensor {
  if (!isFloat(dtype) && !holds(dtype, value)) {
    throw new DTypeError(
      `${op}: expected a whole number that ${dtype} holds beside ${dtype} ${shapeText(beside.shape)}, got ${value}. Cast the tensor first.`,
    );
  }
  return beside.device.full([], value, { dtype });
}
