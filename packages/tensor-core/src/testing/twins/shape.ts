// Float64 twins of ops that move elements.

import { buildTwin, elementAt, type TwinArray } from './twin-array.js';

export function reshapeTwin(x: TwinArray, shape: readonly number[]): TwinArray {
  return { shape, data: x.data };
}

/** Axis i of the result is axis order[i] of x. */
export function transposeTwin(x: TwinArray, order: readonly number[]): TwinArray {
  const shape = order.map((axis) => x.shape[axis]!);
  return buildTwin(shape, (index) => {
    const source = x.shape.map(() => 0);
    order.forEach((axis, i) => {
      source[axis] = index[i]!;
    });
    return elementAt(x, source);
  });
}

export function broadcastTwin(x: TwinArray, shape: readonly number[]): TwinArray {
  return buildTwin(shape, (index) => elementAt(x, index));
}

export function sliceTwin(x: TwinArray, axis: number, start: number, end: number): TwinArray {
  const shape = x.shape.map((dim, i) => (i === axis ? end - start : dim));
  return buildTwin(shape, (index) =>
    elementAt(
      x,
      index.map((value, i) => (i === axis ? value + start : value)),
    ),
  );
}

export function catTwin(parts: readonly TwinArray[], axis: number): TwinArray {
  const lengths = parts.map((part) => part.shape[axis]!);
  const total = lengths.reduce((sum, length) => sum + length, 0);
  const shape = parts[0]!.shape.map((dim, i) => (i === axis ? total : dim));
  return buildTwin(shape, (index) => {
    let part = 0;
    let at = index[axis]!;
    while (at >= lengths[part]!) {
      at -= lengths[part++]!;
    }
    return elementAt(
      parts[part]!,
      index.map((value, i) => (i === axis ? at : value)),
    );
  });
}
