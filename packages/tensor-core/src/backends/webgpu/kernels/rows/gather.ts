// Gather picks elements along the middle axis of [outer, dim, inner] by index. Its gradient adds
// elements back without atomics, so that its sums have one order.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { defineKernel } from '../../kernel/kernel.js';
import { WAIT_NS } from '../../kernel/lane-time.js';
import { INTEGER_DIVIDE } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { eachRowBlock } from '../../queue/row-blocks.js';
import { fill, through32 } from '../elementwise/cast.js';
import {
  ELEMENTWISE_SIZE,
  elementwiseGrid,
  elementwiseMain,
  map,
} from '../elementwise/elementwise.js';
import { addSorted, type GatheredRows } from './gather-rows.js';
import { hasWholeRows } from './rows.js';

export function gather(ctx: KernelContext, call: KernelCalls['gather']): void {
  const { x, ids, out, inner, count } = call;
  if (!ctx.fits([x, ids, out]) && !hasWholeRows(out, count * inner)) {
    through32(ctx, out, (wide) => gather(ctx, { ...call, out: wide }));
    return;
  }
  const type = out.dtype === 'i32' || out.dtype === 'u32' ? out.dtype : 'f32';
  eachAxisBlock(ctx, { ...call, op: 'gather', axis: x, picked: [ids, out] }, (block) => {
    const [idPart, outPart] = block.picked as [View, View];
    const isFirst = block.firstRow === 0;
    map(ctx, {
      name: `gather ${isFirst ? 'first' : 'further'} block`,
      inputs: { x: block.axis, ids: idPart },
      out: outPart,
      integers: { first_row: block.firstRow, dim: block.numRows, inner, count: block.count },
      isWhole: true,
      helpers: INTEGER_DIVIDE,
      value: `let line = divide(i, P.inner);
  let id = bitcast<u32>(load_ids(i)) - P.first_row;
  if (id >= P.dim) { return ${isFirst ? `${type}(0)` : 'load_out(i)'}; }
  return load_x((divide(line, P.count) * P.dim + id) * P.inner + i - line * P.inner);`,
    });
  });
}

interface AxisBlock {
  /** [outer, numRows, inner] */
  readonly axis: View;
  readonly firstRow: number;
  readonly numRows: number;
  /** [outer, count, inner] each */
  readonly picked: readonly View[];
  readonly count: number;
}

/**
 * Calls `body` for blocks of `axis` [outer, dim, inner] and of `picked`, [outer, count, inner]
 * each, that bind at once. Blocks have whole outer indices where one of them binds. Otherwise each
 * outer index is cut into runs of picked elements, in order, and for each run into rows of the
 * axis.
 */
function eachAxisBlock(
  ctx: KernelContext,
  call: {
    readonly op: string;
    readonly axis: View;
    readonly picked: readonly View[];
    readonly outer: number;
    readonly dim: number;
    readonly inner: number;
    readonly count: number;
  },
  body: (block: AxisBlock) => void,
): void {
  const { op, axis, picked, outer, dim, inner, count } = call;
  const views = [axis, ...picked];
  const strides = views.map((view) => (view === axis ? dim : count) * inner);
  const cutRow = ([whole, ...rest]: readonly View[]) => {
    const picks = { strides: picked.map(() => inner), rows: count, op };
    eachRowBlock(ctx, rest, picks, (parts, _, numPicked) => {
      const rows = { strides: [inner], rows: dim, op };
      eachRowBlock(ctx, [whole!], rows, ([axisPart], firstRow, numRows) =>
        body({ axis: axisPart!, firstRow, numRows, picked: parts, count: numPicked }),
      );
    });
  };
  eachRowBlock(ctx, views, { strides, rows: outer, op, cutRow }, ([axisPart, ...parts]) =>
    body({ axis: axisPart!, firstRow: 0, numRows: dim, picked: parts, count }),
  );
}

/** The picked elements up to which a line is not sorted. */
const LONGEST_LINE = 1024;

/**
 * Adds up gradients, each in the order of the picked elements. A lane takes a line of the axis or,
 * where a line is long, a row of it: those of one id, which lie together once sorted.
 */
export function gatherBackward(ctx: KernelContext, call: KernelCalls['gatherBackward']): void {
  const { ids, dy, dx, inner } = call;
  through32(ctx, dx, (wide) => {
    fill(ctx, { out: wide, value: 0 });
    const axis = { ...call, op: 'gatherBackward', axis: wide, picked: [ids, dy] };
    eachAxisBlock(ctx, axis, (block) => {
      const outer = block.axis.size / (block.numRows * inner);
      const [idPart, dyPart] = block.picked as [View, View];
      const rows = { ...block, ids: idPart, dy: dyPart, dx: block.axis, outer, inner };
      (block.count > LONGEST_LINE ? addSorted : addLines)(ctx, rows);
    });
  });
}

/** A lane adds to memory element by element, by model 1,024 in a millisecond. */
function addLines(ctx: KernelContext, rows: GatheredRows): void {
  const { ids, dy, dx, firstRow, numRows, count, outer, inner } = rows;
  const key = `gatherBackward ${dy.dtype}`;
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [
        { name: 'ids', type: 'raw', access: 'read' },
        { name: 'dy', type: dy.dtype, access: 'read' },
        { name: 'out', type: 'f32', access: 'read_write' },
      ],
      params: {
        first_row: 'u32',
        dim: 'u32',
        inner: 'u32',
        count: 'u32',
        words: 'u32',
        per_lane: 'u32',
      },
      workgroupSize: ELEMENTWISE_SIZE,
      body: `${INTEGER_DIVIDE}
fn add_line(line: u32) {
  let o = divide(line, P.inner);
  let i = line - o * P.inner;
  for (var n = 0u; n < P.count; n++) {
    let at = (o * P.count + n) * P.inner + i;
    let id = load_ids(at) - P.first_row;
    if (id < P.dim) {
      let to = (o * P.dim + id) * P.inner + i;
      store_out(to, load_out(to) + load_dy(at));
    }
  }
}
${elementwiseMain('add_line(u);')}`,
    }),
  );
  const words = outer * inner;
  const { grid, perLane } = elementwiseGrid(ctx, words);
  ctx.dispatch(compiled, {
    params: { first_row: firstRow, dim: numRows, inner, count, words, per_lane: perLane },
    views: [ids, dy, dx],
    grid,
    laneNs: perLane * count * WAIT_NS,
  });
}
