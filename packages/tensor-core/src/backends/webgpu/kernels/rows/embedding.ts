// Embedding looks up rows of a table by id; its gradient sums rows by id. It sorts the places of
// ids by id, and each element of the table's gradient adds up the run of its id in order.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { View } from '../../../../view.js';
import { defineKernel } from '../../kernel/kernel.js';
import { INTEGER_DIVIDE } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { eachRowBlock } from '../../queue/row-blocks.js';
import { through32 } from '../elementwise/cast.js';
import {
  ELEMENTWISE_SIZE,
  elementwiseGrid,
  elementwiseMain,
  map,
} from '../elementwise/elementwise.js';
import { withIdOrder } from './id-order.js';

export function embedding(ctx: KernelContext, call: KernelCalls['embedding']): void {
  const { table, rows, cols, count } = call;
  const tokens = { strides: [1, cols], rows: count, op: 'embedding' };
  eachRowBlock(ctx, [call.ids, call.out], tokens, ([ids, out]) => {
    const blocks = { strides: [cols], rows, op: 'embedding' };
    eachRowBlock(ctx, [table], blocks, ([block], firstRow, numRows) => {
      const isFirst = firstRow === 0;
      map(ctx, {
        name: `embedding ${isFirst ? 'first' : 'further'} block`,
        inputs: { table: block!, ids: ids! },
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
  withIdOrder(ctx, { ids, outer: 1, count, inner: 1 }, (order) => {
    ctx.withScratch('u32', rows + 1, (starts) => {
      findStarts(ctx, { ids, order, starts });
      const blocks = { strides: [cols], rows, op: 'embeddingBackward' };
      eachRowBlock(ctx, [dTable], blocks, ([block], firstRow) => {
        const isOneBlock = ctx.fits([dy]);
        // Sums that continue in the next block of tokens are kept in f32.
        const run = isOneBlock ? withView : through32;
        run(ctx, block!, (out) => {
          const tokens = { strides: [cols], rows: count, op: 'embeddingBackward' };
          eachRowBlock(ctx, [dy], tokens, ([dyPart], firstToken, numTokens) => {
            const isFirst = firstToken === 0;
            const isWhole = numTokens === count;
            map(ctx, {
              name: `embeddingBackward ${isWhole ? 'one' : isFirst ? 'first' : 'further'} block`,
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
    ${
      isWhole
        ? 'sum += load_dy(token * P.cols + col);'
        : `if (token >= P.end_token) { break; }
    if (token >= P.first_token) { sum += load_dy((token - P.first_token) * P.cols + col); }`
    }
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
