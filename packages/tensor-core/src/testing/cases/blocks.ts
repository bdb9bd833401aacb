// Cases of matrices in ggml's blocks: rows that follow each other and rows by ids, cut columns, all
// bit patterns of blocks, rows that end in the middle of a word, and products with few rows.

import {
  BLOCK_SIZES,
  BLOCK_TYPES,
  type BlockType,
  blocksByteLength,
  encodeBlocks,
} from '@shardweave/dtypes/blocks';
import type { View } from '../../view.js';
import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

/** Rows, blocks in a row, and the blocks of a row that are taken: [first, count]. */
const SHAPES = [
  [1, 1, [0, 1]],
  [5, 1, [0, 1]],
  [7, 3, [0, 3]],
  [40, 3, [1, 2]],
  [301, 2, [0, 2]],
] as const;
/** A row of more numbers than a thread decodes at once. */
const LONG = 2304;
/** f16 scales: the smallest and the largest of both signs, and the ends of the subnormal ones. */
const SCALES = [0x0001, 0x8001, 0x03ff, 0x0400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x0000, 0x8000];

/** The rows of a, the rows of b, and the blocks in each of these. */
const PRODUCTS = [
  [1, 1, 1],
  [1, 131, 3],
  [2, 7, 2],
  [5, 66, 1],
] as const;

export function blocksCases(): ConformanceCase[] {
  return BLOCK_TYPES.flatMap((type, place) => [decodeCase(type, place), dotsCase(type, place)]);
}

function decodeCase(type: BlockType, place: number): ConformanceCase {
  return recordedCase(`decodeBlocks ${type}`, 'exact', (calls) => {
    const { elements } = BLOCK_SIZES[type];
    // One dtype for rows and one for ids: software drivers compile each kernel for seconds.
    const [dtype, idsDType] = [FLOATS[place % 3]!, FLOATS[(place + 1) % 3]!];
    const long = LONG / elements;
    for (const [rows, inRow, [first, taken]] of [...SHAPES, [3, long, [0, long]] as const]) {
      const words = blocksOf(calls, type, rows * inRow);
      const [width, columns] = [inRow * elements, taken * elements];
      const matrix = { words, type, rows, width, firstColumn: first * elements, columns };
      calls.run('decodeBlocks', {
        ...matrix,
        ids: undefined,
        firstRow: Math.min(1, rows - 1),
        count: Math.max(1, rows - 1),
        out: calls.output(Math.max(1, rows - 1) * columns, dtype, { offset: 2 }),
      });
      for (const idType of ['i32', 'u32'] as const) {
        const ids = [rows - 1, 0, rows, idType === 'i32' ? -1 : 2 ** 32 - 1, rows - 1];
        calls.run('decodeBlocks', {
          ...matrix,
          ids: calls.values(ids, idType, { offset: 1 }),
          firstRow: 0,
          count: ids.length,
          out: calls.output(ids.length * columns, idsDType),
        });
      }
    }
  });
}

function dotsCase(type: BlockType, place: number): ConformanceCase {
  return recordedCase(`blockDots ${type}`, 'sum', (calls) => {
    const { elements } = BLOCK_SIZES[type];
    const [dtype, outDType] = [FLOATS[place % 3]!, FLOATS[(place >> 1) % 3]!];
    // Two types have a long row and no bias. Software drivers compile a kernel of its own for each.
    const further = place % 5 === 0 ? [[1, 3, LONG / elements] as const] : [];
    for (const [m, n, blocks] of [...PRODUCTS, ...further]) {
      const k = blocks * elements;
      calls.run('blockDots', {
        ...{ type, m, n, k, words: encodedBlocks(calls, type, n * k) },
        a: calls.floats(m * k, dtype, { offset: 1 }),
        bias: n === 3 ? undefined : calls.floats(n, dtype, { offset: 3 }),
        out: calls.output(m * n, outDType, { offset: 2 }),
        quantizesRows: false,
      });
    }
  });
}

/** Blocks of numbers between -1 and 1. */
export function encodedBlocks(calls: CallRecorder, type: BlockType, size: number): View {
  const numbers = Float32Array.from({ length: size }, () => calls.random.uniform(-1, 1));
  const data = new Uint8Array(Math.ceil(blocksByteLength(type, size) / 4) * 4);
  data.set(encodeBlocks(type, numbers));
  return calls.bits(data, 'u32', { offset: 1 });
}

/** Random blocks, of which every other one has an unusual scale, and minimum where there is one. */
export function blocksOf(calls: CallRecorder, type: BlockType, count: number): View {
  const { elements, bytes } = BLOCK_SIZES[type];
  const byteLength = blocksByteLength(type, count * elements);
  const data = new Uint8Array(Math.ceil(byteLength / 4) * 4);
  const halves = new DataView(data.buffer);
  for (let at = 0; at < byteLength; at += 2) {
    halves.setUint16(at, calls.random.bits() & 0xffff, true);
  }
  const places = type === 'q6_K' ? [208] : hasMinimum(type) ? [0, 2] : [0];
  for (let block = 0; block < count; block++) {
    for (const [index, place] of places.entries()) {
      // Scales of less than 2, or those that are listed.
      const usual = (calls.random.bits() & 0xbfff) >>> 0;
      const scale = block % 2 === 1 ? SCALES[(block >> 1) % SCALES.length]! : usual;
      halves.setUint16(block * bytes + place, index === 1 ? scale ^ 0x8000 : scale, true);
    }
  }
  return calls.bits(data, 'u32', { offset: 1 });
}

function hasMinimum(type: BlockType): boolean {
  return type === 'q4_1' || type === 'q5_1' || type === 'q4_K' || type === 'q5_K';
}
