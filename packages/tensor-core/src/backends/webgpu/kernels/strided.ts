// Walks over strided operands: merging dimensions that one stride can walk, and the WGSL that turns a
// linear index into one offset per operand.

export interface Walk {
  readonly shape: readonly number[];
  /** One list per operand, in elements. */
  readonly strides: readonly (readonly number[])[];
}

/** Drops dimensions of extent 1 and merges neighbors that all operands walk with one stride. */
export function collapse(shape: readonly number[], strides: readonly (readonly number[])[]): Walk {
  const kept: number[] = [];
  const keptStrides: number[][] = strides.map(() => []);
  shape.forEach((extent, axis) => {
    if (extent === 1) {
      return;
    }
    const last = kept.length - 1;
    const canMerge =
      last >= 0 && strides.every((s, i) => keptStrides[i]![last] === s[axis]! * extent);
    if (canMerge) {
      kept[last] = kept[last]! * extent;
      for (const [i, s] of strides.entries()) {
        keptStrides[i]![last] = s[axis]!;
      }
    } else {
      kept.push(extent);
      for (const [i, s] of strides.entries()) {
        keptStrides[i]!.push(s[axis]!);
      }
    }
  });
  if (kept.length === 0) {
    return { shape: [1], strides: strides.map(() => [0]) };
  }
  return { shape: kept, strides: keptStrides };
}

/** Parameters that `stridedIndex` reads: extents but the first, strides of each operand. */
export function strideParams(walk: Walk, names: readonly string[]): Record<string, number> {
  const params: Record<string, number> = {};
  walk.shape.forEach((extent, axis) => {
    if (axis > 0) {
      params[`dim${axis}`] = extent;
    }
    for (const [i, name] of names.entries()) {
      params[`${name}_s${axis}`] = walk.strides[i]![axis]!;
    }
  });
  return params;
}

/** `strided(i)` with one offset per operand. Needs INTEGER_DIVIDE. */
export function stridedIndex(rank: number, names: readonly string[]): string {
  const lines = ['var rest = i;', 'var at = Offsets();'];
  for (let axis = rank - 1; axis > 0; axis--) {
    lines.push(
      `{ let q = divide(rest, P.dim${axis}); let r = rest - q * P.dim${axis}; rest = q;`,
      ...names.map((name) => `at.${name} += r * P.${name}_s${axis};`),
      '}',
    );
  }
  lines.push(...names.map((name) => `at.${name} += rest * P.${name}_s0;`), 'return at;');
  return `struct Offsets { ${names.map((name) => `${name}: u32,`).join(' ')} }
fn strided(i: u32) -> Offsets { ${lines.join(' ')} }`;
}
