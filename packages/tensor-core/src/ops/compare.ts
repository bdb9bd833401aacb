// Comparisons, whose masks are u32 of ones and zeros (there is no one-byte dtype), and choosing by
// one.

import { type DType, isFloat } from '@shardweave/dtypes';
import { DTypeError } from '../errors.js';
import type { CompareKind } from '../kernel-calls/elementwise.js';
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

/** 1 where a = b, as u32; broadcast. NaN equals nothing. */
export const eq = (a: Tensor, b: Tensor | number): Tensor => compare('eq', a, b);
/** 1 where a differs from b. */
export const ne = (a: Tensor, b: Tensor | number): Tensor => compare('ne', a, b);
/** 1 where a < b. */
export const lt = (a: Tensor, b: Tensor | number): Tensor => compare('lt', a, b);
/** 1 where a <= b. */
export const le = (a: Tensor, b: Tensor | number): Tensor => compare('le', a, b);
/** 1 where a > b. */
export const gt = (a: Tensor, b: Tensor | number): Tensor => compare('gt', a, b);
/** 1 where a >= b. */
export const ge = (a: Tensor, b: Tensor | number): Tensor => compare('ge', a, b);

function compare(kind: CompareKind, a: Tensor, b: Tensor | number): Tensor {
  const { device } = a;
  return device.scope(() => {
    // A number stays f32 beside 16 bits: rounded to them it would be another bound.
    const other =
      typeof b === 'number' ? scalar(kind, b, a, isFloat(a.dtype) ? 'f32' : a.dtype) : b;
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
 * a where the condition is not 0, b elsewhere; all three broadcast. What is not chosen gets no
 * gradient, and a NaN in it does no harm.
 * @param condition i32 or u32, as comparisons give it
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

/** dy where the operand was chosen, summed over the axes along which it was broadcast. */
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

/** The shortest walk over `out` that reads the operands as broadcast. */
function walkOf(op: string, operands: readonly Tensor[], out: Tensor): [Shape, number[][]] {
  const strides = operands.map(({ shape }) => broadcastStrides(shape, out.shape));
  const walk = collapseAxes(out.shape, strides);
  requireWalkable(op, walk[0], ...operands.map(({ shape }) => shape));
  return walk;
}

function scalarLike(value: number, like: Tensor | number, condition: Tensor): Tensor {
  const dtype = typeof like === 'number' ? 'f32' : like.dtype;
  return scalar('where', value, condition, dtype);
}

function scalar(op: string, value: number, beside: Tensor, dtype: DType): Tensor {
  if (!isFloat(dtype) && !Number.isInteger(value)) {
    throw new DTypeError(
      `${op}: expected a whole number beside ${dtype} ${shapeText(beside.shape)}, got ${value}. Cast the tensor first.`,
    );
  }
  return beside.device.full([], value, { dtype });
}
