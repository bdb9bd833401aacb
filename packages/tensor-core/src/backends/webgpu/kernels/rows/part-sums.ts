// The sums of parts that several kernels left, in one dispatch: each workgroup works for one of
// them. Few long parts, as those of a product, are added by one lane for each element. Many short
// ones, as those of a norm's parameter gradients, are shared by the lanes of a workgroup.

import type { View } from '../../../../view.js';
import { FLOPS_PER_BYTE } from '../../kernel/cut-grid.js';
import { type Binding, defineKernel, type Kernel, linearGrid } from '../../kernel/kernel.js';
import { LOAD_NS } from '../../kernel/lane-time.js';
import { mainHead } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { MAX_SUMS, type PartSum, type SumBatch } from '../../queue/deferred-sums.js';

const SIZE = [256, 1, 1] as const;
/** Elements that a workgroup sums where a lane adds the parts of an element. */
const GROUP_ELEMENTS = 1024;
/** Columns that a workgroup sums, a sector of each part, and how many of its lanes share one. */
const GROUP_COLUMNS = 8;
const COLUMN_LANES = 32;
/** From so many parts on, the lanes of a workgroup share them. */
const MANY_PARTS = COLUMN_LANES;

const F32_BYTES = 4;

/** A sum's parameters; `end` is the number of the workgroup behind its last one. */
const FIELDS = ['end', 'bound', 'first', 'stride', 'parts', 'size', 'at'] as const;
/** The names of these parameters for each sum, such as end_3. */
const NAMES = Array.from({ length: MAX_SUMS }, (_, i) => FIELDS.map((field) => `${field}_${i}`));

/**
 * Runs `body`, which writes parts to scratch of `size` f32 elements and returns the sums over them.
 * The sums are queued at a time of their own, before anybody can see their outputs.
 */
export function withParts(
  ctx: KernelContext,
  size: number,
  body: (parts: View) => readonly PartSum[],
): void {
  ctx.withParts(size, body, (batch) => sumParts(ctx, batch));
}

function sumParts(ctx: KernelContext, { parts, outs, sums }: SumBatch): void {
  const key = `sums of parts ${parts.length} ${outs.length}`;
  const compiled = ctx.kernel(key, () => sumsKernel(key, parts.length, outs.length));
  const params = new Array<number>(NAMES.length * FIELDS.length).fill(0);
  let end = 0;
  sums.forEach(({ sum, part, into, at }, i) => {
    end += groupsOf(sum);
    const { first, stride, numParts, out } = sum;
    const values = [end, part + 16 * into, first, stride, numParts, out.size, at];
    values.forEach((value, field) => {
      params[i * FIELDS.length + field] = value;
    });
  });
  const bytes = (elements: (sum: PartSum) => number) =>
    sums.reduce((all, { sum }) => all + F32_BYTES * elements(sum), 0);
  const read = bytes(({ numParts, out }) => numParts * out.size);
  const written = bytes(({ out }) => out.size);
  ctx.queue(compiled, {
    params,
    views: [...parts, ...outs],
    grid: linearGrid(end),
    flops: FLOPS_PER_BYTE * (read + written),
    laneNs: LOAD_NS * Math.max(...sums.map(({ sum }) => laneLoads(sum))),
    moved: () => ({ read, written }),
  });
}

function groupsOf({ numParts, out }: PartSum): number {
  return Math.ceil(out.size / (numParts >= MANY_PARTS ? GROUP_COLUMNS : GROUP_ELEMENTS));
}

function laneLoads({ numParts }: PartSum): number {
  return numParts >= MANY_PARTS
    ? Math.ceil(numParts / COLUMN_LANES)
    : numParts * (GROUP_ELEMENTS / SIZE[0]);
}

function sumsKernel(label: string, numParts: number, numOuts: number): Kernel {
  const parts = Array.from({ length: numParts }, (_, i) => `parts${i}`);
  const outs = Array.from({ length: numOuts }, (_, i) => `out${i}`);
  const binding = (access: Binding['access']) => (name: string) =>
    ({ name, type: 'f32', access }) as const;
  const cases = (names: readonly string[], statement: (name: string) => string) =>
    names.map((name, i) => `case ${i}u: { ${statement(name)} }`).join('\n    ');
  return defineKernel({
    label,
    bindings: [...parts.map(binding('read')), ...outs.map(binding('read_write'))],
    params: Object.fromEntries(NAMES.flat().map((name) => [name, 'u32' as const])),
    workgroupSize: SIZE,
    body: `
var<workgroup> shared_sums: array<f32, ${SIZE[0]}>;
struct Sum { start: u32, bound: u32, first: u32, stride: u32, parts: u32, size: u32, at: u32 }
fn sum_of(group: u32) -> Sum {
  ${NAMES.map(([end, ...rest], i) => {
    const start = i === 0 ? '0u' : `P.${NAMES[i - 1]![0]}`;
    const fields = [start, ...rest.map((name) => `P.${name}`)];
    return `if (group < P.${end}) { return Sum(${fields.join(', ')}); }`;
  }).join('\n  ')}
  return Sum();
}
fn load_part(bound: u32, i: u32) -> f32 {
  switch bound & 15u {
    ${cases(parts, (name) => `return load_${name}(i);`)}
    default: { return 0.0; }
  }
}
fn store_sum(bound: u32, i: u32, v: f32) {
  switch bound >> 4u {
    ${cases(outs, (name) => `store_${name}(i, v);`)}
    default: {}
  }
}
${mainHead(SIZE)}
  let sum = sum_of(group);
  if (sum.parts < ${MANY_PARTS}u) {
    let start = (group - sum.start) * ${GROUP_ELEMENTS}u;
    let end = min(start + ${GROUP_ELEMENTS}u, sum.size);
    for (var i = start + lane; i < end; i += ${SIZE[0]}u) {
      var v = 0.0;
      for (var p = 0u; p < sum.parts; p++) { v += load_part(sum.bound, sum.first + p * sum.stride + i); }
      store_sum(sum.bound, sum.at + i, v);
    }
    return;
  }
  let column = (group - sum.start) * ${GROUP_COLUMNS}u + lane % ${GROUP_COLUMNS}u;
  let first = lane / ${GROUP_COLUMNS}u;
  var v = 0.0;
  if (column < sum.size) {
    for (var p = first; p < sum.parts; p += ${COLUMN_LANES}u) { v += load_part(sum.bound, sum.first + p * sum.stride + column); }
  }
  shared_sums[lane] = v;
  for (var s = ${COLUMN_LANES / 2}u; s > 0u; s >>= 1u) {
    workgroupBarrier();
    if (first < s) { shared_sums[lane] += shared_sums[lane + s * ${GROUP_COLUMNS}u]; }
  }
  if (first == 0u && column < sum.size) { store_sum(sum.bound, sum.at + column, shared_sums[lane]); }
}`,
  });
}
