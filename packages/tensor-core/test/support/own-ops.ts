// These are ops as a user would define them.

import { type CustomOp, type CustomOpSpec, defineOp, mul, sum } from '@shardweave/tensor-core';

export const swishGradient = defineOp({
  name: 'swishGradient',
  inputs: { x: 'float', dy: 'float' },
  params: { beta: 'f32' },
  wgsl: `fn element(i: u32) -> f32 {
    let x = load_x(i);
    let s = 1.0 / (1.0 + exp(-P.beta * x));
    return load_dy(i) * s * (1.0 + P.beta * x * (1.0 - s));
  }`,
  plain: ({ x, dy }, out, { beta }) => {
    out.data.forEach((_, i) => {
      const s = 1 / (1 + Math.exp(-beta * x.data[i]!));
      out.data[i] = dy.data[i]! * s * (1 + beta * x.data[i]! * (1 - s));
    });
  },
});

export const swish = defineOp({
  name: 'swish',
  inputs: { x: 'float' },
  params: { beta: 'f32' },
  wgsl: `fn sigmoid_of(x: f32) -> f32 { return 1.0 / (1.0 + exp(-x)); }
  fn element(i: u32) -> f32 { let x = load_x(i); return x * sigmoid_of(P.beta * x); }`,
  plain: ({ x }, out, { beta }) => {
    x.data.forEach((value, i) => {
      out.data[i] = value / (1 + Math.exp(-beta * value));
    });
  },
  gradient: ({ inputs: { x }, dy, params }) => ({ x: swishGradient({ x, dy }, params) }),
});

/**
 * This op reads other elements than the one it writes: out[r, c] = x[r, (c + by) mod cols] *
 * scale[r].
 */
export const turnRows: CustomOp<'x' | 'scale', 'cols' | 'by'> = defineOp({
  name: 'turnRows',
  inputs: { x: 'float', scale: 'float' },
  params: { cols: 'u32', by: 'u32' },
  wgsl: `fn element(i: u32) -> f32 {
    let row = i / P.cols;
    return load_x(row * P.cols + (i % P.cols + P.by) % P.cols) * load_scale(min(row, P.scale_size - 1u));
  }`,
  plain: ({ x, scale }, out, { cols, by }) => {
    out.data.forEach((_, i) => {
      const row = Math.floor(i / cols);
      out.data[i] = x.data[row * cols + ((i + by) % cols)]! * scale.data[row]!;
    });
  },
  saved: ['scale', 'out'],
  gradient: ({ inputs: { scale }, out, dy, params: { cols, by } }) => ({
    x: turnRows({ x: dy, scale }, { cols, by: (cols - by) % cols }),
    scale: sum(mul(out!, dy), { axis: 1 }),
  }),
});

/** This op takes and gives integers. */
export const bucket = defineOp({
  name: 'bucket',
  inputs: { x: 'f32', offset: 'integer' },
  output: ({ x }) => ({ shape: [x.size], dtype: 'i32' }),
  wgsl: 'fn element(i: u32) -> i32 { return i32(floor(load_x(i))) + i32(load_offset(0u)); }',
  plain: ({ x, offset }, out) => {
    x.data.forEach((value, i) => {
      out.data[i] = Math.floor(value) + offset.data[0]!;
    });
  },
});

/** Defines an op of which a test replaces some parts. */
export function define(
  parts: { [K in keyof CustomOpSpec<'x', never>]?: CustomOpSpec<'x', never>[K] | undefined },
) {
  return defineOp<'x'>({
    name: 'broken',
    inputs: { x: 'float' },
    wgsl: 'fn element(i: u32) -> f32 { return load_x(i); }',
    plain: ({ x }, out) => out.data.set(x.data),
    gradient: ({ dy }) => ({ x: dy }),
    ...parts,
  } as CustomOpSpec<'x', never>);
}
