// Embedding looks up rows of a table by id; its gradient sums rows by id. Atomic additions would
// sum in any order, so the gradient sorts the places of ids by id instead, equal ones in order, and
// each element of the table's gradient adds up the run of its id. The ids [7, 2, 7] have the order
// [1, 0, 2].

import type { KernelCalls } from '../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../view.js';
import { type KernelContext, sliceView } from '../context.js';
import { defineKernel, elementsPerWord, type Kernel } from '../kernel.js';
import { INTEGER_DIVIDE } from '../wgsl.js';
import { through32 } from './cast.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain, map } from './elementwise.js';
import { eachRowBlock } from './rows.js';

/**
 * The length of the first sorted runs, a power of two, in which each id counts the ids that come
 * before it. Longer runs are merged from these. On lavapipe, lengths from 32 to 256 cost the same
 * within a third.
 */
const RUN = 128;

export function embedding(ctx: KernelContext, call: KernelCalls['embedding']): void {
  const { table, rows, cols, count } = call;
  const tokens = { strides: [1, cols], rows: count, op: 'embedding' };
  eachRowBlock(ctx, [call.ids, call.out], tokens, ([ids, out]) => {
    eachBlock(ctx, 'embedding', table, { rows, cols }, (block, firstRow, numRows) => {
      const isFirst = firstRow === 0;
      map(ctx, {
        name: `embedding ${isFirst ? 'first' : 'further'} block`,
        inputs: { table: block, ids: ids! },
        out: out!,
        integers: { cols, first_row: firstRow, num_rows: numRows },
        isWhole: true,
        helpers: INTEGER_DIVIDE,
        value: `let at = divide(i, P.cols);
  let row = bitcast<u32>(load_ids(at)) - P.first_row;
  if (row >= P.num_rows) { return ${isFirst ? '0.0' : 'load_out(i)'}; }
  return load_table(row * P.cols + (i - at * P.cols));`,
      });
    });
  });
}

export function embeddingBackward(
  ctx: KernelContext,
  call: KernelCalls['embeddingBackward'],
): void {
  const { ids, dy, dTable, rows, cols, count } = call;
  withOrder(ctx, ids, count, (order) => {
    ctx.withScratch('u32', rows + 1, (starts) => {
      findStarts(ctx, { ids, order, starts });
      eachBlock(ctx, 'embeddingBackward', dTable, { rows, cols }, (block, firstRow) => {
        const isOneBlock = ctx.fits([dy]);
        // Sums that continue in the next block of tokens are kept in f32.
        const run = isOneBlock ? withView : through32;
        run(ctx, block, (out) => {
          const tokens = { strides: [cols], rows: count, op: 'embeddingBackward' };
          eachRowBlock(ctx, [dy], tokens, ([dyPart], firstToken, numTokens) => {
            const isFirst = firstToken === 0;
            map(ctx, {
              name: `embeddingBackward ${isFirst ? 'first' : 'further'} block`,
              inputs: { dy: dyPart!, order, starts },
              out,
              integers: {
                cols,
                first_row: firstRow,
                first_token: firstToken,
                end_token: firstToken + numTokens,
              },
              isWhole: true,
              helpers: INTEGER_DIVIDE,
              value: `let row = divide(i, P.cols);
  let col = i - row * P.cols;
  var sum = ${isFirst ? '0.0' : 'load_out(i)'};
  let end = load_starts(row + P.first_row + 1u);
  for (var k = load_starts(row + P.first_row); k < end; k++) {
    let token = load_order(k);
    if (token >= P.end_token) { break; }
    if (token >= P.first_token) { sum += load_dy((token - P.first_token) * P.cols + col); }
  }
  return sum;`,
            });
          });
        });
      });
    });
  });
}

function withView(_ctx: KernelContext, view: View, body: (view: View) => void): void {
  body(view);
}

/**
 * Runs `body` with the places of all ids, sorted by id and among equal ids by place. It is a merge
 * sort in which each element computes its own rank.
 */
function withOrder(
  ctx: KernelContext,
  ids: View,
  count: number,
  body: (order: View) => void,
): void {
  ctx.withScratch('u32', count, (first) => {
    const sort = (name: string, rank: string, [from, to]: readonly [View, View], run: number) => {
      const key = `embeddingBackward ${name}`;
      const compiled = ctx.kernel(key, () => sortKernel(key, rank));
      const { grid, perLane } = elementwiseGrid(ctx, count);
      ctx.dispatch(compiled, {
        params: { run, words: count, per_lane: perLane },
        views: [ids, from, to],
        grid,
      });
    };
    sort('order', RANK_IN_RUN, [ids, first], RUN);
    if (count <= RUN) {
      body(first);
      return;
    }
    ctx.withScratch('u32', count, (second) => {
      let [from, to] = [first, second];
      for (let run = RUN; run < count; run *= 2) {
        sort('merge', RANK_IN_PAIR, [from, to], run);
        [from, to] = [to, from];
      }
      body(from);
    });
  });
}

/**
 * WGSL that puts a place at its rank in its run: after smaller ids, and after equal ids that come
 * earlier.
 */
const RANK_IN_RUN = `
fn sort(i: u32) {
  let id = load_ids(i);
  let start = i & ~(P.run - 1u);
  var rank = 0u;
  for (var j = start; j < min(start + P.run, P.words); j++) {
    let other = load_ids(j);
    rank += select(0u, 1u, other < id || (other == id && j < i));
  }
  store_out(start + rank, i);
}`;

/**
 * WGSL that merges two sorted runs: a place goes after those of its own run before it, and after
 * those of the other run that come before it, which a binary search counts.
 */
const RANK_IN_PAIR = `
fn sort(k: u32) {
  let i = load_order(k);
  let id = load_ids(i);
  let own = k & ~(P.run - 1u);
  let is_second = (k & P.run) != 0u;
  let other = select(own + P.run, own - P.run, is_second);
  var low = min(other, P.words);
  var high = min(other + P.run, P.words);
  while (low < high) {
    let middle = (low + high) / 2u;
    let theirs = load_ids(load_order(middle));
    if (theirs < id || (theirs == id && is_second)) { low = middle + 1u; } else { high = middle; }
  }
  let before = low - min(other, P.words);
  store_out(min(own, other) + (k - own) + before, i);
}`;

function sortKernel(label: string, sort: string): Kernel {
  return defineKernel({
    label,
    bindings: [
      { name: 'ids', type: 'raw', access: 'read' },
      { name: 'order', type: 'raw', access: 'read' },
      { name: 'out', type: 'raw', access: 'read_write' },
    ],
    params: { run: 'u32', words: 'u32', per_lane: 'u32' },
    workgroupSize: ELEMENTWISE_SIZE,
    body: `${sort}
${elementwiseMain('sort(u);')}`,
  });
}

/** Stores in starts[v] how many ids are below v, which is where the run of id v begins. */
function findStarts(
  ctx: KernelContext,
  { ids, order, starts }: { readonly ids: View; readonly order: View; readonly starts: View },
): void {
  const compiled = ctx.kernel('embeddingBackward starts', () =>
    defineKernel({
      label: 'embeddingBackward starts',
      bindings: [
        { name: 'ids', type: 'raw', access: 'read' },
        { name: 'order', type: 'raw', access: 'read' },
        { name: 'out', type: 'raw', access: 'read_write' },
      ],
      params: { count: 'u32', words: 'u32', per_lane: 'u32' },
      workgroupSize: ELEMENTWISE_SIZE,
      body: `
fn find(row: u32) {
  var low = 0u;
  var high = P.count;
  while (low < high) {
    let middle = (low + high) / 2u;
    if (load_ids(load_order(middle)) < row) { low = middle + 1u; } else { high = middle; }
  }
  store_out(row, low);
}
${elementwiseMain('find(u);')}`,
    }),
  );
  const words = starts.size;
  const { grid, perLane } = elementwiseGrid(ctx, words);
  ctx.dispatch(compiled, {
    params: { count: order.size, words, per_lane: perLane },
    views: [ids, order, starts],
    grid,
  });
}

/** Calls `body` for blocks of a table's rows that bind at once and start at whole words. */
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
