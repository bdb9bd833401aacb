// Walks over strided operands. Dimensions that one stride can walk are merged, and the WGSL here
// turns a linear index into one offset per operand.

import { byteSize } from '@shardweave/dtypes';
import { LimitError } from '../../../../errors.js';
import type { View } from '../../../../view.js';
import { elementsPerWord } from '../../kernel/kernel.js';
import { type KernelContext, sliceView } from '../../queue/context.js';

export interface Walk {
  readonly shape: readonly number[];
  /** The strides of each operand, in elements. */
  readonly strides: readonly (readonly number[])[];
}

/**
 * Drops dimensions of extent 1 and merges neighbors that all operands walk with one stride. The
 * shape [4, 1, 8] with strides [8, 8, 1] becomes [32] with [1].
 */
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

/**
 * Calls `body` with blocks of a walk whose dense output and operands bind at once. Blocks are cut
 * along leading axes, and those of 16-bit outputs start at whole words.
 */
export function eachWalkBlock(
  ctx: KernelContext,
  call: {
    readonly op: string;
    readonly walk: Walk;
    readonly operands: readonly View[];
    readonly out: View;
  },
  body: (block: { walk: Walk; operands: readonly View[]; out: View }) => void,
): void {
  const { op, walk, operands, out } = call;
  if (ctx.fits([...operands, out])) {
    body({ walk, operands, out });
    return;
  }
  const [extent, ...rest] = walk.shape;
  const inner = rest.reduce((product, dim) => product * dim, 1);
  // A span is the elements from the first to the last that one step along the first axis reads.
  const spans = walk.strides.map(([, ...strides]) =>
    strides.reduce((span, stride, axis) => span + stride * (rest[axis]! - 1), 1),
  );
  const stepsOf = (view: View, stride: number, span: number) => {
    const spare = ctx.windowElements(view.dtype) - span;
    return spare < 0 ? 0 : stride === 0 ? extent! : Math.floor(spare / stride) + 1;
  };
  const most = Math.min(
    stepsOf(out, inner, inner),
    ...operands.map((view, i) => stepsOf(view, walk.strides[i]![0]!, spans[i]!)),
  );
  const multiple = inner % elementsPerWord(out.dtype) === 0 ? 1 : 2;
  const steps = most - (most % multiple);
  if (steps === 0 && (multiple === 2 || rest.length === 0)) {
    const bytes = ctx.windowElements(out.dtype) * byteSize(out.dtype);
    throw new LimitError(
      `${op}: expected blocks of operands that bind ${bytes} bytes at once, got a walk over [${walk.shape.join(', ')}] that has none. Make dense copies first.`,
      { requestedBytes: multiple * inner * byteSize(out.dtype), limitBytes: bytes },
    );
  }
  const step = Math.max(1, steps);
  for (let first = 0; first < extent!; first += step) {
    const count = Math.min(step, extent! - first);
    const shape = steps === 0 ? rest : [count, ...rest];
    const strides = steps === 0 ? walk.strides.map(([, ...inside]) => inside) : walk.strides;
    const cut = (view: View, stride: number, span: number) =>
      sliceView(view, first * stride, (count - 1) * stride + span);
    const block = {
      op,
      walk: { shape, strides },
      operands: operands.map((view, i) => cut(view, walk.strides[i]![0]!, spans[i]!)),
      out: cut(out, inner, inner),
    };
    eachWalkBlock(ctx, block, body);
  }
}

/** Returns the parameters that `stridedIndex` reads: all extents but the first, and all strides. */
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

/** Returns WGSL `strided(i)`, which gives one offset per operand. It needs INTEGER_DIVIDE. */
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
