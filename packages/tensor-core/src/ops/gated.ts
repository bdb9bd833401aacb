// Gated linear units (Shazeer, 2020): the activation of a gate times a second operand, called up,
// in one kernel.

import { checkNames, checkOptions } from '../check-options.js';
import { ShapeError } from '../errors.js';
import type { GateKind } from '../kernel-calls/gated.js';
import { oneOf } from '../options.js';
import type { Tensor } from '../tensor.js';
import type { View } from '../view.js';
import { isSameShape, requireFloat, requireSameDevice, shapeText } from './checks.js';

/** Options of swiGlu and geGlu: where the second part comes from. */
export interface GateOptions {
  /**
   * The second operand, of the gate's shape. Where it is absent, x [..., 2 * n] holds both: the
   * gate in the first half of the last axis, up in the second.
   */
  readonly up?: Tensor;
}

/**
 * silu(gate) * up. The gate is x, and up an option; or both are halves of x [..., 2 * n], and the
 * result is [..., n].
 * @throws {ShapeError} when the shapes of x and up differ, or the last axis of x alone is odd
 * @throws {DTypeError} when an operand is no float tensor
 */
export function swiGlu(x: Tensor, options: GateOptions = {}): Tensor {
  checkNames('swiGlu', options, ['up']);
  return gate('swiGlu', x, { kind: 'silu', up: options.up });
}

/**
 * gelu(gate) * up. The gate is x, and up an option; or both are halves of x [..., 2 * n], and the
 * result is [..., n].
 * @param options.approximate 'none' for GELU by the error function (the default), or 'tanh' for its
 * approximation by tanh, which Gemma uses
 * @throws {ShapeError} when the shapes of x and up differ, or the last axis of x alone is odd
 * @throws {DTypeError} when an operand is no float tensor
 */
export function geGlu(
  x: Tensor,
  options: GateOptions & { readonly approximate?: 'none' | 'tanh' } = {},
): Tensor {
  const { up, approximate = 'none' } = options;
  checkNames('geGlu', options, ['up', 'approximate']);
  checkOptions<{ approximate: string }>(
    'geGlu',
    { approximate },
    { approximate: oneOf('none', 'tanh') },
  );
  return gate('geGlu', x, { kind: approximate === 'tanh' ? 'geluTanh' : 'gelu', up });
}

function gate(
  op: string,
  x: Tensor,
  { kind, up }: { readonly kind: GateKind; readonly up: Tensor | undefined },
): Tensor {
  const operands = up === undefined ? [x] : [x, up];
  requireFloat(op, ...operands);
  requireSameDevice(op, ...operands);
  const width = x.shape.at(-1) ?? 0;
  if (up === undefined ? x.rank === 0 || width % 2 !== 0 : !isSameShape(x.shape, up.shape)) {
    throw new ShapeError(
      up === undefined
        ? `${op}: expected x [..., 2 * n], got ${shapeText(x.shape)}. Gate and up are the halves of its last axis, or two tensors.`
        : `${op}: expected gate and up of one shape, got ${shapeText(x.shape)} and ${shapeText(up.shape)}.`,
    );
  }
  const { device, dtype } = x;
  const cols = up === undefined ? width / 2 : width;
  const out = device.empty([...x.shape.slice(0, -1), ...(x.rank > 0 ? [cols] : [])], { dtype });
  const parts = () => partsOf(x, up, Math.max(1, cols));
  if (out.size > 0) {
    device.run('gated', { kind, ...parts(), out: out.view() });
  }
  device.record({
    name: op,
    inputs: operands,
    outputs: [out],
    saved: operands,
    backward: ([dy], needs) => {
      const [dx, dUp] = operands.map((operand, i) =>
        needs[i] ? device.empty(operand.shape, { dtype: operand.dtype }) : undefined,
      );
      const isBoth = up === undefined || (dx !== undefined && dUp !== undefined);
      const first = (dx ?? dUp)!;
      if (first.size > 0) {
        device.run('gatedBackward', {
          kind,
          of: isBoth ? 'both' : dx === undefined ? 'up' : 'gate',
          ...parts(),
          dy: dy!.view(),
          out: first.view(),
          outUp: isBoth ? dUp?.view() : undefined,
        });
      }
      return up === undefined ? [dx] : [dx, dUp];
    },
  });
  return out;
}

/**
 * The kernel's operands. Forward and backward each make the views for themselves, because a storage
 * may have been freed and filled again in between, with another buffer.
 */
function partsOf(x: Tensor, up: Tensor | undefined, cols: number) {
  if (up !== undefined) {
    // A tensor without axes counts as one row of one element.
    const rows = x.size / (x.rank === 0 ? 1 : cols);
    return { gate: x.view(), up: up.view(), rows, cols: x.rank === 0 ? 1 : cols, row: cols };
  }
  const row = 2 * cols;
  const size = x.size - cols;
  const first: View = { ...x.view(), size };
  return {
    gate: first,
    up: x.storage.view(x.offset + cols, size),
    rows: x.size / row,
    cols,
    row,
  };
}
