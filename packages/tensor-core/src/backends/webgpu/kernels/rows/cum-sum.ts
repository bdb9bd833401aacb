// Running sums along the middle axis of [outer, dim, inner]. Lines that do not bind are summed in
// parts, each of which starts from the last sums of the part before.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { INTEGER_DIVIDE } from '../../kernel/wgsl.js';
import { type KernelContext, sliceView } from '../../queue/context.js';
import { eachRowBlock } from '../../queue/row-blocks.js';
import { through32 } from '../elementwise/cast.js';
import { runRows } from './rows.js';

/** The lines of one dispatch, or the parts of lines. */
interface SummedLines {
  /** [outer, dim, inner] */
  readonly x: View;
  /** As x, but with one more element per line where `goesOn`: the last sum of the part before. */
  readonly out: View;
  readonly outer: number;
  readonly dim: number;
  readonly inner: number;
  readonly isReverse: boolean;
  /** Whether sums continue from those of the part before, which `out` holds. */
  readonly goesOn: boolean;
}

export function cumSum(ctx: KernelContext, call: KernelCalls['cumSum']): void {
  const { x, out, outer, dim, inner, isReverse } = call;
  const size = dim * inner;
  const lines = { dim, inner, isReverse, goesOn: false };
  through32(ctx, out, (wide) => {
    const cutRow = ([xLine, outLine]: readonly View[]) =>
      cumSumByParts(ctx, { ...lines, x: xLine!, out: outLine!, outer: 1 });
    const blocks = { strides: [size, size], rows: outer, op: 'cumSum', cutRow };
    eachRowBlock(ctx, [x, wide], blocks, ([xPart, outPart], _, numOuter) =>
      sumLines(ctx, { ...lines, x: xPart!, out: outPart!, outer: numOuter }),
    );
  });
}

/** Sums parts of lines in order. Each part is bound together with the last sums before it. */
function cumSumByParts(ctx: KernelContext, call: SummedLines): void {
  const { x, out, dim, inner, isReverse } = call;
  const units = ctx.windowUnits([x.dtype, out.dtype], inner, { multiple: 2, op: 'cumSum' });
  const step = units - 1; // one unit is left for the sums of the part before
  for (let done = 0; done < dim; done += step) {
    const count = Math.min(step, dim - done);
    const first = isReverse ? dim - done - count : done;
    const numBefore = done > 0 ? 1 : 0;
    const outFirst = first - (isReverse ? 0 : numBefore);
    sumLines(ctx, {
      ...call,
      x: sliceView(x, first * inner, count * inner),
      out: sliceView(out, outFirst * inner, (count + numBefore) * inner),
      dim: count,
      goesOn: done > 0,
    });
  }
}

/**
 * Sums lines. Each lane first sums a run of neighboring elements; then it goes through its run
 * again and stores running sums, starting from the sum of the runs before it.
 */
function sumLines(ctx: KernelContext, call: SummedLines): void {
  const { x, out, outer, dim, inner, isReverse, goesOn } = call;
  const type = out.dtype === 'i32' || out.dtype === 'u32' ? out.dtype : 'f32';
  const n = isReverse ? '(P.cols - 1u - n)' : 'n';
  const [before, shift] = isReverse ? ['P.cols', '0u'] : ['0u', goesOn ? '1u' : '0u'];
  runRows(ctx, {
    key: `cumSum ${x.dtype} ${type}${isReverse ? ' reverse' : ''}${goesOn ? ' going on' : ''}`,
    rows: outer * inner,
    cols: dim,
    bindings: [
      { name: 'x', type: x.dtype, access: 'read' },
      { name: 'out', type, access: 'read_write' },
    ],
    params: { inner: 'u32' },
    helpers: `${INTEGER_DIVIDE}
var<workgroup> runs: array<${type}, LANES>;
fn sum_before(own: ${type}, me: u32) -> ${type} {
  runs[me] = own;
  workgroupBarrier();
  var sum = ${type}(0);
  for (var l = 0u; l < me; l++) { sum += runs[l]; }
  return sum;
}`,
    body: `
  let o = divide(row, P.inner);
  let first = o * P.cols * P.inner + row - o * P.inner;
  let run = (P.cols + LANES - 1u) / LANES;
  let begin = min(me * run, P.cols);
  let end = min(begin + run, P.cols);
  var own = ${type}(0);
  for (var n = begin; n < end; n++) { own += load_x(first + ${n} * P.inner); }
  var sum = ${goesOn ? `load_out(first + ${before} * P.inner) + ` : ''}sum_before(own, me);
  for (var n = begin; n < end; n++) {
    let at = first + ${n} * P.inner;
    sum += load_x(at);
    store_out(at + ${shift} * P.inner, sum);
  }`,
    values: { inner },
    views: [x, out],
  });
}
