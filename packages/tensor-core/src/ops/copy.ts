// Copies through strides, of which ops over shapes are made.

import { elementCountOf, type Shape, type Tensor } from '../tensor.js';
import { cast } from './cast.js';
import { collapseAxes, denseStrides, requireWalkable } from './checks.js';

/** A dense copy of `shape`, read from x through strides. */
export function copyStrided(
  op: string,
  x: Tensor,
  shape: Shape,
  xOffset: number,
  xStrides: readonly number[],
): Tensor {
  const [walk, [strides]] = collapseAxes(shape, [xStrides]);
  requireWalkable(op, walk, shape);
  const out = x.device.empty(shape, { dtype: x.dtype });
  if (out.size === 0) {
    return out;
  }
  x.device.run('copyStrided', {
    x: x.view(),
    out: out.view(),
    shape: walk,
    xOffset,
    xStrides: strides!,
    outOffset: 0,
    outStrides: denseStrides(walk),
  });
  return out;
}

/**
 * The data of cat. The strided copy writes words of 32 bits, so 16-bit parts whose rows would end
 * within a word are joined in f32 and converted back, which is exact.
 */
export function joined(tensors: readonly Tensor[], shape: Shape, axis: number): Tensor {
  const { device, dtype } = tensors[0]!;
  const inner = elementCountOf(shape.slice(axis + 1));
  const isHalf = dtype === 'f16' || dtype === 'bf16';
  if (isHalf && tensors.some((tensor) => (tensor.shape[axis]! * inner) % 2 !== 0)) {
    return device.noGrad(() =>
      device.scope(() =>
        cast(
          joined(
            tensors.map((tensor) => cast(tensor, 'f32')),
            shape,
            axis,
          ),
          dtype,
        ),
      ),
    );
  }
  const out = device.empty(shape, { dtype });
  const outer = elementCountOf(shape.slice(0, axis));
  const rowLength = shape[axis]! * inner;
  let at = 0;
  for (const tensor of tensors) {
    const part = tensor.shape[axis]! * inner;
    if (part * outer > 0) {
      device.run('copyStrided', {
        x: tensor.view(),
        out: out.view(),
        shape: [outer, part],
        xOffset: 0,
        xStrides: [part, 1],
        outOffset: at,
        outStrides: [rowLength, 1],
      });
    }
    at += part;
  }
  return out;
}
