// Walks over an index space in row-major order, with one offset per operand.

/**
 * Calls `visit` for each index of `shape` with its row-major number and, for each row of
 * `strides`, the dot product of index and strides.
 */
export function forEachIndex(
  shape: readonly number[],
  strides: readonly (readonly number[])[],
  visit: (position: number, offsets: readonly number[]) => void,
): void {
  const count = shape.reduce((product, dim) => product * dim, 1);
  for (let position = 0; position < count; position++) {
    const offsets = strides.map(() => 0);
    let rest = position;
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      const index = rest % shape[axis]!;
      rest = (rest - index) / shape[axis]!;
      for (let s = 0; s < strides.length; s++) {
        offsets[s]! += index * strides[s]![axis]!;
      }
    }
    visit(position, offsets);
  }
}
