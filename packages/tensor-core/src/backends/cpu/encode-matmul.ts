// Encodes the command of assembly/matmul.ts and splits its work into chunks.

import { byteSize } from '@shardweave/dtypes';
import {
  BY_BF16_LIBRARY,
  BY_LIBRARY,
  LIBRARY_BLOCK,
  LIBRARY_ROWS,
  MATMUL_COLUMNS,
  MATMUL_DEPTH,
  MATMUL_FEW_ROWS,
  MATMUL_NARROW_COLUMNS,
  MATMUL_PANEL_BYTES,
  OP_MATMUL,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { hasWideLogits, runEpilogue, slopesOf, sumsOf } from '../../kernel-calls/matmul.js';
import type { View } from '../../view.js';
import type { CommandWriter } from './command-writer.js';
import { CpuBuffer } from './cpu-buffer.js';
import { crossEntropyBackward } from './encode-cross-entropy.js';
import { binary, unary, unaryBackward } from './encode-elementwise.js';
import { reduce } from './encode-reduce.js';

/** A thread's rate, which decides only how far work is split. */
const FLOP_PER_NS = 45;
/** The least work of a chunk in ns. A chunk costs about 1,000 ns beside the products in it. */
const CHUNK_NS = 30_000;
/** The chunks per thread, which keep the time short when only one thread still has a chunk. */
const CHUNKS_PER_THREAD = 8;
/**
 * The least rows and columns of a chunk. With fewer, loading panels costs more than sharing saves.
 */
const MIN_ROWS = 48;
const MIN_COLUMNS = 64;
/** The bytes of b that one thread reads in a ns for a product of few rows. */
const FEW_ROWS_BYTES_PER_NS = 15;
/** The least columns of which all of k is kept packed. Fewer would cost too many passes over a. */
const MIN_KEPT_COLUMNS = 128;
/**
 * The columns at once where they are not kept packed, and below the chunks per thread, of which
 * there are fewer then, because every chunk packs its own part of both operands.
 */
const UNKEPT_COLUMNS = 512;
const UNKEPT_CHUNKS_PER_THREAD = 2;

/** The least multiply-adds of a product that a library of the host gets. */
export const LIBRARY_LEAST = 2 ** 20;
/**
 * The multiply-adds of a part that is worth its own call, which packs its operands, and the most
 * parts of a product. Threads beyond that have work where a product has several batches.
 */
const LIBRARY_PART = 2 ** 25;
const LIBRARY_PARTS = 8;
/**
 * What packing counts where all rows are one part, as one thread has them, beside packing where
 * each row part has a thread.
 */
const ONE_PART_WEIGHT = 8;
/** The parts per thread where rows are cut for threads, of which one may be slower than another. */
const LIBRARY_PARTS_PER_THREAD = 2;
/** The most rows of a part. Libraries begin anew with the tiles of some thousands more. */
const LIBRARY_MOST_ROWS = 3936;
/** What storing, loading and adding a partial result costs beside packing an element. */
const ADDING_COST = 4;
/** The most bytes that the partial results of parts of k may take. */
const MOST_PARTIAL_BYTES = 32 * 2 ** 20;

export function matmul(call: KernelCalls['matmul'], w: CommandWriter): void {
  const { m, n, k, batch, aBatch, bBatch, outBatch } = call;
  const batches = batch[0] * batch[1];
  if (m === 0 || n === 0 || batches === 0) {
    return;
  }
  if (hasWideLogits(call)) {
    const { size } = call.out;
    const buffer = new CpuBuffer(-1, 4 * size, 'logits', w.temp(4 * size));
    const logits = { buffer, byteOffset: 0, dtype: 'f32', size } as const;
    matmul({ ...call, out: logits, epilogue: undefined }, w);
    crossEntropyBackward(slopesOf(call, logits), w);
    w.release();
    return;
  }
  const isNative = w.library !== undefined && isForLibrary(call, w.library.least);
  const isBf16 =
    isNative && w.library!.takesBf16 && call.a.dtype === 'bf16' && call.b.dtype === 'bf16';
  if (isNative) {
    w.library!.load(isBf16);
  }
  if (isNative && isForDepthParts(call)) {
    matmulByDepth(call, w);
    endMatmul(call, w);
    return;
  }
  const columns = columnsAtOnce(
    k,
    call.out.dtype === 'f32' ? MATMUL_COLUMNS : MATMUL_NARROW_COLUMNS,
  );
  const split = isNative
    ? splitForThreads(call, w)
    : m <= MATMUL_FEW_ROWS
      ? splitFewRows(call, w.threads)
      : splitProduct({ m, n, k, batches, columns }, w.threads);
  w.start(OP_MATMUL, 'matmul').view(call.a).view(call.b).view(call.out).view(call.bias);
  w.int(m, n, k, call.transposeA ? 1 : 0, call.transposeB ? 1 : 0);
  w.int(call.aRow, call.bRow, call.outRow, batches, batch[1]);
  w.int(...aBatch, ...bBatch, ...outBatch)
    .float(call.alpha)
    .int(call.accumulate ? 1 : 0);
  const own = isBf16 ? BY_BF16_LIBRARY : BY_LIBRARY;
  w.int(split.batches, split.columns, split.rows, isNative ? own : columns.atOnce);
  w.commit(split.batches * split.rows * split.columns);
  endMatmul(call, w);
}

/** Queues what a product has beside its terms and its bias. */
function endMatmul(call: KernelCalls['matmul'], w: CommandWriter): void {
  for (const { x, out, inner } of sumsOf(call)) {
    reduce({ kind: 'sum', x, out, outer: 1, dim: call.k, inner }, w);
  }
  if (call.epilogue !== undefined) {
    runEpilogue(call, {
      binary: (own) => binary(own, w),
      unary: (own) => unary(own, w),
      unaryBackward: (own) => unaryBackward(own, w),
      crossEntropyBackward: (own) => crossEntropyBackward(own, w),
    });
  }
}

interface Columns {
  readonly atOnce: number;
  /**
   * Whether all of k stays packed for these columns; see Note [panels of b] in assembly/matmul.ts.
   */
  readonly areKept: boolean;
}

function columnsAtOnce(k: number, most: number): Columns {
  // Each block of k has a panel of 8 columns, which takes so many bytes with its padding.
  const blockBytes = Math.min(k, MATMUL_DEPTH) * 8 * 4 + 64;
  const kept = 8 * Math.floor(MATMUL_PANEL_BYTES / (Math.ceil(k / MATMUL_DEPTH) * blockBytes));
  const areKept = kept >= MIN_KEPT_COLUMNS;
  return { atOnce: Math.min(most, areKept ? kept : UNKEPT_COLUMNS), areKept };
}

interface Shape {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly batches: number;
}

interface Product extends Shape {
  readonly columns: Columns;
}

interface Split {
  readonly batches: number;
  readonly rows: number;
  readonly columns: number;
}

/** Products of few rows read b once, at the speed of memory, whoever computes them. */
function isForLibrary({ m, n, k }: KernelCalls['matmul'], least: number): boolean {
  return m > MATMUL_FEW_ROWS && m * n * k >= least;
}

/**
 * The columns and the most rows of a product for a library, by its shape alone; see Note [cut by
 * shape] in assembly/native-product.ts.
 */
function splitForLibrary({ m, n, k, batch, a, b, out }: KernelCalls['matmul']): Split {
  const batches = batch[0] * batch[1];
  const parts = Math.min(libraryParts(m * n * k), Math.ceil(LIBRARY_PARTS / batches));
  const isF32 = a.dtype === 'f32' && b.dtype === 'f32' && out.dtype === 'f32';
  const mostRows = Math.max(1, Math.floor(m / (isF32 ? LIBRARY_ROWS : LIBRARY_BLOCK)));
  const packed = (rows: number, columns: number) => (1 + ONE_PART_WEIGHT) * m * columns + n * rows; // and n in one part, whatever the columns
  return { batches, ...leastPacked({ n, parts, mostRows, packed }) };
}

/**
 * Splits a product for a library into the columns that its shape asks for, and into rows for the
 * threads there are where that is the same; see Note [rows on their own] there.
 */
export function splitForThreads(
  call: KernelCalls['matmul'],
  w: Pick<CommandWriter, 'threads' | 'library'>,
): Split {
  const split = splitForLibrary(call);
  if (w.library?.keepsRows !== true) {
    return split;
  }
  const { batches, columns } = split;
  const parts = w.threads === 1 ? 1 : w.threads * LIBRARY_PARTS_PER_THREAD;
  const wanted = Math.ceil(parts / (columns * batches));
  const least = Math.ceil(call.m / LIBRARY_MOST_ROWS);
  return { ...split, rows: Math.min(split.rows, Math.max(wanted, least)) };
}

/** The most parts of a product with so many multiply-adds that are worth a call each. */
function libraryParts(terms: number): number {
  return Math.max(1, Math.min(LIBRARY_PARTS, Math.floor(terms / LIBRARY_PART)));
}

/**
 * Whether a library's parts are parts of k, each of which packs what no other part does, and whose
 * results are added afterwards. The product with the gradient of 49,152 logits of 256 rows takes
 * 1.3 times its time in parts of rows and columns.
 */
function isForDepthParts(call: KernelCalls['matmul']): boolean {
  const { m, n, k, batch, bias, accumulate } = call;
  if (batch[0] * batch[1] > 1 || bias !== undefined || accumulate || call.outRow !== n) {
    return false;
  }
  const { rows, columns } = splitForLibrary(call);
  const packedAgain = (m * (columns - 1) + n * (rows - 1)) * k;
  const partials = libraryParts(m * n * k) * m * n;
  return (
    rows * columns > 1 &&
    partials * ADDING_COST <= packedAgain &&
    4 * partials <= MOST_PARTIAL_BYTES
  );
}

/** Queues a product as a batch of products with parts of k, and the sum of their results. */
function matmulByDepth(call: KernelCalls['matmul'], w: CommandWriter): void {
  const { m, n, k, transposeA, transposeB, aRow, bRow } = call;
  const parts = libraryParts(m * n * k);
  const depth = Math.floor(k / parts);
  const done = depth * parts;
  const rest = k - done; // fewer terms than parts
  const [aStep, bStep] = [transposeA ? aRow : 1, transposeB ? 1 : bRow];
  const size = m * n;
  const count = parts + (rest > 0 ? 1 : 0);
  const buffer = new CpuBuffer(-1, 4 * count * size, 'parts of k', w.temp(4 * count * size));
  const partials = (first: number, of: number) =>
    ({ buffer, byteOffset: 4 * first * size, dtype: 'f32', size: of * size }) as const;
  const own = { ...call, aSums: undefined, bSums: undefined, epilogue: undefined };
  matmul(
    {
      ...own,
      out: partials(0, parts),
      k: depth,
      batch: [1, parts],
      aBatch: [0, depth * aStep],
      bBatch: [0, depth * bStep],
      outBatch: [0, size],
    },
    w,
  );
  if (rest > 0) {
    const from = (view: View, first: number) => ({
      ...view,
      byteOffset: view.byteOffset + first * byteSize(view.dtype),
      size: view.size - first,
    });
    matmul(
      {
        ...own,
        a: from(call.a, done * aStep),
        b: from(call.b, done * bStep),
        out: partials(parts, 1),
        k: rest,
      },
      w,
    );
  }
  const out = { ...call.out, size };
  reduce({ kind: 'sum', x: partials(0, count), out, outer: 1, dim: count, inner: size }, w);
  w.release();
}

/**
 * Splits a product of few rows. Where chunks are parts of b's rows each thread gets one; see Note
 * [order of b] in assembly/few-rows.ts.
 */
function splitFewRows(call: KernelCalls['matmul'], threads: number): Split {
  const { n, k, batch, transposeB } = call;
  const batches = batch[0] * batch[1];
  const ns = (n * k * batches * byteSize(call.b.dtype)) / FEW_ROWS_BYTES_PER_NS;
  const most = threads === 1 ? 1 : threads * (transposeB ? CHUNKS_PER_THREAD : 1);
  const wanted = Math.max(1, Math.min(most, Math.floor(ns / CHUNK_NS)));
  if (batches >= wanted) {
    return { batches: wanted, rows: 1, columns: 1 };
  }
  const columns = Math.min(Math.ceil(n / MIN_COLUMNS), Math.ceil(wanted / batches));
  return { batches, rows: 1, columns };
}

/**
 * Splits a product into whole batches where there are enough of them, or else into rows and
 * columns.
 */
function splitProduct({ m, n, k, batches, columns }: Product, threads: number): Split {
  const ns = (2 * m * n * k * batches) / FLOP_PER_NS;
  const perThread = columns.areKept ? CHUNKS_PER_THREAD : UNKEPT_CHUNKS_PER_THREAD;
  const most = threads === 1 ? 1 : threads * perThread;
  const wanted = Math.max(1, Math.min(most, Math.floor(ns / CHUNK_NS)));
  if (batches >= wanted) {
    return { batches: wanted, rows: 1, columns: 1 };
  }
  const perBatch = Math.ceil(wanted / batches);
  const mostRows = Math.ceil(m / MIN_ROWS);
  const mostColumns = Math.ceil(n / MIN_COLUMNS);
  if (columns.areKept) {
    const blocks = Math.ceil(n / columns.atOnce);
    const rows = Math.min(mostRows, Math.ceil(perBatch / blocks));
    const parts = Math.min(mostColumns, Math.ceil(perBatch / rows));
    return { batches, rows, columns: Math.max(blocks, parts) };
  }
  const packed = (rows: number, parts: number) => m * parts + n * rows;
  return { batches, ...leastPacked({ n, parts: perBatch, mostRows, packed }) };
}

/**
 * Cuts rows and columns into so many parts, or somewhat fewer, that pack least: each packs its rows
 * of a and columns of b.
 */
function leastPacked(of: {
  readonly n: number;
  readonly parts: number;
  readonly mostRows: number;
  packed(rows: number, columns: number): number;
}): Omit<Split, 'batches'> {
  const { parts, mostRows } = of;
  const mostColumns = Math.ceil(of.n / MIN_COLUMNS);
  let best = { rows: 1, columns: Math.min(mostColumns, parts) };
  let least = Number.POSITIVE_INFINITY;
  for (let rows = 1; rows <= Math.min(mostRows, parts); rows++) {
    const columns = Math.min(mostColumns, Math.ceil(parts / rows));
    const packed = of.packed(rows, columns);
    if (packed < least) {
      least = packed;
      best = { rows, columns };
    }
  }
  return best;
}
