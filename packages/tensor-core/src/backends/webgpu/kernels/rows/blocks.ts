// Decodes rows of a matrix in ggml's blocks (packages/dtypes/src/blocks says where each bit lies),
// and multiplies with them.
// An invocation finds its number's block and decodes that number alone. The product of a scale and
// a number is exact, so a driver may round scale * number - minimum in one step or in two.

import type { DType } from '@shardweave/dtypes';
import { BLOCK_SIZES, type BlockType, blocksByteLength } from '@shardweave/dtypes/blocks';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import { F16_UNPACK_EXACT, INTEGER_DIVIDE } from '../../kernel/wgsl.js';
import { type KernelContext, sliceView } from '../../queue/context.js';
import { eachRowBlock } from '../../queue/row-blocks.js';
import { through32 } from '../elementwise/cast.js';
import { map } from '../elementwise/elementwise.js';
import { optional, present, runRows } from './rows.js';

/** WGSL of number `i` of the block whose first byte is `at`. */
const NUMBER: Readonly<Record<BlockType, string>> = {
  q8_0: 'return half(at) * signed(byte(at + 2u + i));',
  q4_0: 'return half(at) * f32(i32(nibble(at + 2u, i)) - 8);',
  q4_1: 'return half(at) * f32(nibble(at + 4u, i)) + half(at + 2u);',
  q5_0: 'return half(at) * f32(i32(nibble(at + 6u, i) | fifth(at + 2u, i)) - 16);',
  q5_1: 'return half(at) * f32(nibble(at + 8u, i) | fifth(at + 4u, i)) + half(at + 2u);',
  q4_K: `let part = i >> 5u;
  let q = byte(at + 16u + (part >> 1u) * 32u + (i & 31u)) >> ((part & 1u) * 4u);
  return half(at) * scale(at, part) * f32(q & 15u) - half(at + 2u) * minimum(at, part);`,
  q5_K: `let part = i >> 5u;
  let q = byte(at + 48u + (part >> 1u) * 32u + (i & 31u)) >> ((part & 1u) * 4u);
  let high = ((byte(at + 16u + (i & 31u)) >> part) & 1u) << 4u;
  return half(at) * scale(at, part) * f32((q & 15u) | high) - half(at + 2u) * minimum(at, part);`,
  q6_K: `let half_block = i >> 7u;
  let part = (i >> 5u) & 3u;
  let low = byte(at + half_block * 64u + (i & 63u)) >> ((part >> 1u) * 4u);
  let high = byte(at + 128u + half_block * 32u + (i & 31u)) >> (part * 2u);
  let q = i32((low & 15u) | ((high & 3u) << 4u)) - 32;
  return half(at + 208u) * signed(byte(at + 192u + (i >> 4u))) * f32(q);`,
};

const READS = `
fn byte(at: u32) -> u32 { return (load_words(at >> 2u) >> ((at & 3u) * 8u)) & 255u; }
fn half(at: u32) -> f32 {
  return bitcast<f32>(f16_unpack_exact(load_words(at >> 2u), (at >> 1u) & 1u));
}
fn signed(value: u32) -> f32 { return f32(bitcast<i32>(value << 24u) >> 24u); }
fn nibble(at: u32, i: u32) -> u32 { return (byte(at + (i & 15u)) >> ((i >> 4u) * 4u)) & 15u; }
fn fifth(at: u32, i: u32) -> u32 { return ((byte(at + (i >> 3u)) >> (i & 7u)) & 1u) << 4u; }
// The scale and the minimum of a part, of six bits each (sixBits of dtypes).
fn scale(at: u32, part: u32) -> f32 {
  if (part < 4u) { return f32(byte(at + 4u + part) & 63u); }
  return f32((byte(at + 8u + part) & 15u) | ((byte(at + part) >> 6u) << 4u));
}
fn minimum(at: u32, part: u32) -> f32 {
  if (part < 4u) { return f32(byte(at + 8u + part) & 63u); }
  return f32((byte(at + 8u + part) >> 4u) | ((byte(at + 4u + part) >> 6u) << 4u));
}`;

/** WGSL of `number(at, i)`, over words that `load_words` reads. */
function numberOf(type: BlockType): string {
  return `${F16_UNPACK_EXACT}
${READS}
fn number(at: u32, i: u32) -> f32 {
  ${NUMBER[type]}
}`;
}

export function decodeBlocks(ctx: KernelContext, call: KernelCalls['decodeBlocks']): void {
  const { type, rows, width, firstRow, count, firstColumn, columns } = call;
  const { elements, bytes } = BLOCK_SIZES[type];
  // A row may end in the middle of a word; two rows never do.
  const pairWords = blocksByteLength(type, 2 * width) / 4;
  const places = call.ids === undefined ? [call.out] : [call.ids, call.out];
  const strides = call.ids === undefined ? [columns] : [1, columns];
  eachRowBlock(ctx, places, { strides, rows: count, op: 'decodeBlocks' }, (bound, firstPlace) => {
    const [out, ids] = [bound.at(-1)!, call.ids && bound[0]!];
    const pairs = { strides: [pairWords], rows: Math.ceil(rows / 2), op: 'decodeBlocks' };
    eachRowBlock(ctx, [call.words], pairs, ([words], firstPair, numPairs) => {
      const isFirst = firstPair === 0;
      const [start, end] = [2 * firstPair, Math.min(rows, 2 * (firstPair + numPairs))];
      map(ctx, {
        name: `decodeBlocks ${type} ${ids === undefined ? 'rows' : 'ids'} ${isFirst ? 'first' : 'further'}`,
        inputs: { words: words!, ...(ids !== undefined && { ids }) },
        out,
        integers: {
          columns,
          row_blocks: width / elements,
          first_block: firstColumn / elements,
          num_rows: end - start,
          // Rows before the bound ones wrap around and count as outside.
          first_row: (ids === undefined ? firstRow + firstPlace - start : -start) >>> 0,
        },
        isWhole: true,
        helpers: `${INTEGER_DIVIDE}\n${numberOf(type)}`,
        value: `let place = divide(i, P.columns);
  let column = i - place * P.columns;
  let row = ${ids === undefined ? 'place' : 'bitcast<u32>(load_ids(place))'} + P.first_row;
  if (row >= P.num_rows) { return ${isFirst ? '0.0' : 'load_out(i)'}; }
  let block = row * P.row_blocks + P.first_block + column / ${elements}u;
  return number(block * ${bytes}u, column % ${elements}u);`,
      });
    });
  });
}

/** A workgroup multiplies one row of b with one row of a: lanes read neighbouring numbers. */
export function blockDots(ctx: KernelContext, call: KernelCalls['blockDots']): void {
  const { type, a, bias, m, n, k } = call;
  const { elements, bytes } = BLOCK_SIZES[type];
  const pairWords = blocksByteLength(type, 2 * k) / 4;
  const pairs = { strides: [pairWords], rows: Math.ceil(n / 2), op: 'blockDots' };
  through32(ctx, call.out, (out) => {
    eachRowBlock(ctx, [call.words], pairs, ([words], firstPair, numPairs) => {
      const first = 2 * firstPair;
      const rows = Math.min(n, 2 * (firstPair + numPairs)) - first;
      for (let i = 0; i < m; i++) {
        runRows(ctx, {
          key: `blockDots ${type} ${a.dtype} ${bias?.dtype ?? 'plain'}`,
          rows,
          cols: k,
          perRow: ['bias', 'out'],
          shared: ['words', 'a'],
          bindings: [
            { name: 'words', type: 'u32', access: 'read' },
            { name: 'a', type: a.dtype, access: 'read' },
            ...optional('bias', bias),
            { name: 'out', type: 'f32', access: 'read_write' },
          ],
          params: { row_blocks: 'u32' },
          helpers: numberOf(type),
          body: `  var sum = 0.0;
  for (var c = me; c < P.cols; c += LANES) {
    let at = ((row + P.first_row) * P.row_blocks + c / ${elements}u) * ${bytes}u;
    sum = fma(load_a(c), ${roundedTo(a.dtype, `number(at, c % ${elements}u)`)}, sum);
  }
  sum = reduce_add(sum, me);
  if (me == 0u) { store_out(row, sum${bias === undefined ? '' : ' + load_bias(row)'}); }`,
          values: { row_blocks: k / elements },
          views: [
            words!,
            sliceView(a, i * k, k),
            ...present(bias && sliceView(bias, first, rows)),
            sliceView(out, i * n + first, rows),
          ],
        });
      }
    });
  });
}

function roundedTo(dtype: DType, value: string): string {
  return dtype === 'f32' ? value : `${dtype}_unpack(${dtype}_bits(${value}), 0u)`;
}
