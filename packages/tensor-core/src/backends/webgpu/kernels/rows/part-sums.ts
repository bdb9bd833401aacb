// Sums of the parts that a norm's kernel leaves of its parameters' gradients. The lanes of a
// workgroup share the parts of a few neighboring columns.

import type { View } from '../../../../view.js';
import { defineKernel, type Kernel, linearGrid } from '../../kernel/kernel.js';
import { LOAD_NS } from '../../kernel/lane-time.js';
import { mainHead } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';

const SIZE = [256, 1, 1] as const;
/** Columns that a workgroup sums, a sector of each part, and how many of its lanes share one. */
const GROUP_COLUMNS = 8;
const COLUMN_LANES = 32;

/**
 * Runs `body`, which writes parts to scratch and returns the f32 outputs, all of one size. The
 * parts are [outputs, numParts, size of an output], and each output becomes the sum of its own.
 */
export function withParts(
  ctx: KernelContext,
  size: number,
  body: (parts: View) => { readonly numParts: number; readonly outs: readonly View[] },
): void {
  ctx.withScratch('f32', size, (parts) => {
    const { numParts, outs } = body(parts);
    const cols = outs[0]!.size;
    const key = `sums of parts ${outs.length}`;
    const groups = Math.ceil(cols / GROUP_COLUMNS);
    ctx.dispatch(
      ctx.kernel(key, () => sumsKernel(key, outs.length)),
      {
        params: { parts: numParts, cols, groups },
        views: [parts, ...outs],
        grid: linearGrid(groups * outs.length),
        laneNs: LOAD_NS * Math.ceil(numParts / COLUMN_LANES),
      },
    );
  });
}

function sumsKernel(label: string, numOuts: number): Kernel {
  const outs = Array.from({ length: numOuts }, (_, i) => `out${i}`);
  return defineKernel({
    label,
    bindings: [
      { name: 'x', type: 'f32', access: 'read' },
      ...outs.map((name) => ({ name, type: 'f32', access: 'read_write' }) as const),
    ],
    params: { parts: 'u32', cols: 'u32', groups: 'u32' },
    workgroupSize: SIZE,
    body: `
var<workgroup> shared_sums: array<f32, ${SIZE[0]}>;
fn store_sum(out: u32, i: u32, v: f32) {
  switch out {
    ${outs.map((name, i) => `case ${i}u: { store_${name}(i, v); }`).join('\n    ')}
    default: {}
  }
}
${mainHead(SIZE)}
  let out = group / P.groups;
  let column = (group - out * P.groups) * ${GROUP_COLUMNS}u + lane % ${GROUP_COLUMNS}u;
  let first = lane / ${GROUP_COLUMNS}u;
  let is_inside = out < ${numOuts}u && column < P.cols;
  var v = 0.0;
  if (is_inside) {
    for (var p = first; p < P.parts; p += ${COLUMN_LANES}u) { v += load_x((out * P.parts + p) * P.cols + column); }
  }
  shared_sums[lane] = v;
  for (var s = ${COLUMN_LANES / 2}u; s > 0u; s >>= 1u) {
    workgroupBarrier();
    if (first < s) { shared_sums[lane] += shared_sums[lane + s * ${GROUP_COLUMNS}u]; }
  }
  if (first == 0u && is_inside) { store_sum(out, column, shared_sums[lane]); }
}`,
  });
}
