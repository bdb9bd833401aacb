// The gradient of a gather over long lines: [outer, count, inner] picked elements are added to
// [outer, rows, inner]. One lane cannot take a line of millions, so the ids of each line are sorted
// and a lane takes the run of one id. A run may be most of a line (a histogram of two bins), so
// what lies in whole chunks of it was summed by other lanes.
//
// With chunks of 4 the sorted ids [3, 3, 5, 5, 5, 5, 5, 5, 5, 5, 5, 7] have the sum of 5 as its
// first two elements, the sum of the second chunk, and three further elements.

import type { View } from '../../../../view.js';
import { FLOPS_PER_BYTE } from '../../kernel/cut-grid.js';
import { defineKernel } from '../../kernel/kernel.js';
import { LOAD_NS, WAIT_NS } from '../../kernel/lane-time.js';
import type { KernelContext } from '../../queue/context.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from '../elementwise/elementwise.js';
import { LINE_OF, withIdOrder } from './id-order.js';

/** Gradients to add: ids and dy are [outer, count, inner], dx is f32 [outer, numRows, inner]. */
export interface GatheredRows {
  readonly ids: View;
  readonly dy: View;
  readonly dx: View;
  /** The id of the first row of dx; ids of other rows are left out. */
  readonly firstRow: number;
  readonly numRows: number;
  readonly outer: number;
  readonly count: number;
  readonly inner: number;
}

/** The elements of a chunk. A line of 4 million has 4,000, so a lane has 6,000 turns at most. */
const CHUNK = 1024;
/** The bytes that an element reads: its place, its id and its gradient. */
const READ_BYTES = 12;

const BINDINGS = (dy: View) =>
  [
    { name: 'ids', type: 'raw', access: 'read' },
    { name: 'dy', type: dy.dtype, access: 'read' },
    { name: 'order', type: 'raw', access: 'read' },
  ] as const;

const PARAMS = {
  inner: 'u32',
  count: 'u32',
  chunks: 'u32',
  words: 'u32',
  per_lane: 'u32',
} as const;

/** WGSL of the sorted element `k` of a line: where it lies in ids and dy. */
const AT = `${LINE_OF}
fn at(line: Line, k: u32) -> u32 { return line.ids + load_order(line.start + k) * P.inner; }`;

/** Adds dy to dx, which has a value already. */
export function addSorted(ctx: KernelContext, rows: GatheredRows): void {
  const { ids, outer, count, inner } = rows;
  const chunks = Math.floor(count / CHUNK);
  withIdOrder(ctx, { ids, outer, count, inner }, (order) => {
    ctx.withScratch('f32', Math.max(1, outer * inner * chunks), (sums) => {
      sumChunks(ctx, rows, { order, sums, chunks });
      addRuns(ctx, rows, { order, sums, chunks });
    });
  });
}

interface Sorted {
  readonly order: View;
  /** The sums of chunks of one id, by line. Those of other chunks are undefined. */
  readonly sums: View;
  readonly chunks: number;
}

function sumChunks(ctx: KernelContext, rows: GatheredRows, { order, sums, chunks }: Sorted): void {
  const { ids, dy, outer, count, inner } = rows;
  const key = `gatherBackward chunks ${dy.dtype}`;
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [...BINDINGS(dy), { name: 'sums', type: 'f32', access: 'read_write' }],
      params: PARAMS,
      workgroupSize: ELEMENTWISE_SIZE,
      body: `${AT}
fn sum_chunk(u: u32) {
  let number = divide(u, P.chunks);
  let line = line_of(number * P.count);
  let first = (u - number * P.chunks) * ${CHUNK}u;
  if (load_ids(at(line, first)) != load_ids(at(line, first + ${CHUNK - 1}u))) { return; }
  var sum = 0.0;
  for (var k = first; k < first + ${CHUNK}u; k++) { sum += load_dy(at(line, k)); }
  store_sums(u, sum);
}
${elementwiseMain('sum_chunk(u);')}`,
    }),
  );
  const words = outer * inner * chunks;
  const { grid, perLane } = elementwiseGrid(ctx, words);
  ctx.dispatch(compiled, {
    params: { inner, count, chunks, words, per_lane: perLane },
    views: [ids, dy, order, sums],
    grid,
    flops: FLOPS_PER_BYTE * READ_BYTES * words * CHUNK,
    laneNs: perLane * 2 * CHUNK * LOAD_NS,
  });
}

function addRuns(ctx: KernelContext, rows: GatheredRows, { order, sums, chunks }: Sorted): void {
  const { ids, dy, dx, firstRow, numRows, outer, count, inner } = rows;
  const key = `gatherBackward runs ${dy.dtype}`;
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [
        ...BINDINGS(dy),
        { name: 'sums', type: 'f32', access: 'read' },
        { name: 'out', type: 'f32', access: 'read_write' },
      ],
      params: { ...PARAMS, first_row: 'u32', rows: 'u32' },
      workgroupSize: ELEMENTWISE_SIZE,
      body: `${AT}
fn add_run(e: u32) {
  let line = line_of(e);
  var k = e - line.start;
  let id = load_ids(at(line, k));
  let row = id - P.first_row;
  if (row >= P.rows || (k > 0u && load_ids(at(line, k - 1u)) == id)) { return; }
  let o = divide(line.number, P.inner);
  let to = (o * P.rows + row) * P.inner + line.number - o * P.inner;
  var sum = load_out(to);
  while (k < P.count) {
    let chunk = k / ${CHUNK}u;
    let last = k + ${CHUNK - 1}u;
    if (k == chunk * ${CHUNK}u && last < P.count && load_ids(at(line, last)) == id) {
      sum += load_sums(line.number * P.chunks + chunk);
      k += ${CHUNK}u;
    } else {
      let here = at(line, k);
      if (load_ids(here) != id) { break; }
      sum += load_dy(here);
      k++;
    }
  }
  store_out(to, sum);
}
${elementwiseMain('add_run(u);')}`,
    }),
  );
  const words = outer * count * inner;
  const { grid, perLane } = elementwiseGrid(ctx, words);
  ctx.dispatch(compiled, {
    params: {
      inner,
      count,
      chunks,
      words,
      per_lane: perLane,
      first_row: firstRow,
      rows: numRows,
    },
    views: [ids, dy, order, sums, dx],
    grid,
    flops: FLOPS_PER_BYTE * 2 * READ_BYTES * words,
    // The elements of a lane lie within 256 of each other, so only one of its runs can be longer.
    laneNs: (perLane * ELEMENTWISE_SIZE[0] + 2 * CHUNK + chunks) * WAIT_NS,
  });
}
