// Rows of a table by id, and the sum of gradients by id. The gradient has no atomics: occurrences of
// an id are linked in order, and each element of the table's gradient walks its id's list.

import type { KernelCalls } from '../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../view.js';
import { type KernelContext, sliceView } from '../context.js';
import { defineKernel, elementsPerWord } from '../kernel.js';
import { INTEGER_DIVIDE } from '../wgsl.js';
import { fill } from './cast.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain, map } from './elementwise.js';

/** Marks the end of a list. */
const NONE = 0xffffffff;

export function embedding(ctx: KernelContext, call: KernelCalls['embedding']): void {
  const { table, ids, out, rows, cols } = call;
  eachBlock(ctx, 'embedding', table, { rows, cols }, (block, firstRow, numRows) => {
    const isFirst = firstRow === 0;
    map(ctx, {
      name: `embedding ${isFirst ? 'first' : 'further'} block`,
      inputs: { table: block, ids },
      out,
      integers: { cols, first_row: firstRow, num_rows: numRows },
      isWhole: true,
      helpers: INTEGER_DIVIDE,
      value: `let at = divide(i, P.cols);
  let row = bitcast<u32>(load_ids(at)) - P.first_row;
  if (row >= P.num_rows) { return ${isFirst ? '0.0' : 'load_out(i)'}; }
  return load_table(row * P.cols + (i - at * P.cols));`,
    });
  });
}

export function embeddingBackward(
  ctx: KernelContext,
  call: KernelCalls['embeddingBackward'],
): void {
  const { ids, dy, dTable, rows, cols, count } = call;
  ctx.withScratch('u32', rows, (head) => {
    ctx.withScratch('u32', count, (next) => {
      fill(ctx, { out: head, value: NONE });
      fill(ctx, { out: next, value: NONE });
      link(ctx, { ids, head, next, rows, count });
      eachBlock(ctx, 'embeddingBackward', dTable, { rows, cols }, (block, firstRow) => {
        map(ctx, {
          name: 'embeddingBackward',
          inputs: { dy, head, next },
          out: block,
          integers: { cols, first_row: firstRow, count },
          isWhole: true,
          helpers: INTEGER_DIVIDE,
          value: `let row = divide(i, P.cols);
  let col = i - row * P.cols;
  var sum = 0.0;
  var at = load_head(row + P.first_row);
  // The bound holds for the half-word behind an odd size, whose row may not exist.
  while (at < P.count) { sum += load_dy(at * P.cols + col); at = load_next(at); }
  return sum;`,
        });
      });
    });
  });
}

/** head[v]: first i with ids[i] = v; next[i]: the following one. Each looks back for its like. */
function link(
  ctx: KernelContext,
  call: { ids: View; head: View; next: View; rows: number; count: number },
): void {
  const { ids, head, next, rows, count } = call;
  const compiled = ctx.kernel('embeddingBackward link', () =>
    defineKernel({
      label: 'embeddingBackward link',
      bindings: [
        { name: 'ids', type: 'raw', access: 'read' },
        { name: 'head', type: 'raw', access: 'read_write' },
        { name: 'next', type: 'raw', access: 'read_write' },
      ],
      params: { rows: 'u32', words: 'u32', per_lane: 'u32' },
      workgroupSize: ELEMENTWISE_SIZE,
      body: `
fn link(i: u32) {
  let id = load_ids(i);
  if (id >= P.rows) { return; }
  for (var j = i; j > 0u; j--) {
    if (load_ids(j - 1u) == id) { store_next(j - 1u, i); return; }
  }
  store_head(id, i);
}
${elementwiseMain('link(u);')}`,
    }),
  );
  const { grid, perLane } = elementwiseGrid(ctx, count);
  ctx.dispatch(compiled, {
    params: { rows, words: count, per_lane: perLane },
    views: [ids, head, next],
    grid,
  });
}

/** Blocks of rows of a table that bind at once and start at whole words. */
function eachBlock(
  ctx: KernelContext,
  op: string,
  table: View,
  { rows, cols }: { rows: number; cols: number },
  body: (block: View, firstRow: number, numRows: number) => void,
): void {
  const perWord = elementsPerWord(table.dtype);
  const isWhole = rows * cols * (4 / perWord) + 4 <= ctx.profile.maxBindingBytes - 256;
  const step = isWhole
    ? rows
    : ctx.windowUnits([table.dtype], cols, { multiple: cols % perWord === 0 ? 1 : perWord, op });
  for (let first = 0; first < rows; first += step) {
    const numRows = Math.min(step, rows - first);
    body(sliceView(table, first * cols, numRows * cols), first, numRows);
  }
}
