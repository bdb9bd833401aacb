// Merges dimensions into fewer and longer ones that mean the same walk, since kernels run over rows
// and are fast on long ones.

export interface CollapsedShape {
  /** The extents, of which there is at least one. */
  readonly shape: readonly number[];
  /** The strides of each operand, one for each dimension. */
  readonly strides: readonly (readonly number[])[];
}

/** Drops extents of 1 and merges neighbors that every operand steps through as one. */
export function collapseShape(
  shape: readonly number[],
  strides: readonly (readonly number[])[],
): CollapsedShape {
  const extents: number[] = [];
  const steps: number[][] = strides.map(() => []);
  for (let d = 0; d < shape.length; d++) {
    const extent = shape[d]!;
    if (extent === 1) {
      continue;
    }
    const last = extents.length - 1;
    const canMerge = last >= 0 && strides.every((s, k) => steps[k]![last] === s[d]! * extent);
    if (canMerge) {
      extents[last] = extents[last]! * extent;
      strides.forEach((s, k) => {
        steps[k]![last] = s[d]!;
      });
    } else {
      extents.push(extent);
      strides.forEach((s, k) => {
        steps[k]!.push(s[d]!);
      });
    }
  }
  if (extents.length === 0) {
    return { shape: [1], strides: strides.map(() => [1]) };
  }
  return { shape: extents, strides: steps };
}

/** The strides of a dense row-major tensor. */
export function denseStrides(shape: readonly number[]): number[] {
  const strides = new Array<number>(shape.length);
  let step = 1;
  for (let d = shape.length - 1; d >= 0; d--) {
    strides[d] = step;
    step *= shape[d]!;
  }
  return strides;
}

export function elementCount(shape: readonly number[]): number {
  return shape.reduce((product, extent) => product * extent, 1);
}
