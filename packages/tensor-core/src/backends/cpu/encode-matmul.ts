// The command of assembly/matmul.ts, and how its work is split.

import { byteSize } from '@shardweave/dtypes';
import {
  MATMUL_COLUMNS,
  MATMUL_DEPTH,
  MATMUL_FEW_ROWS,
  MATMUL_NARROW_COLUMNS,
  MATMUL_PANEL_BYTES,
  OP_MATMUL,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { runEpilogue, sumsOf } from '../../kernel-calls/products.js';
import type { CommandWriter } from './command-writer.js';
import { binary, unary, unaryBackward } from './encode-elementwise.js';
import { crossEntropyBackward, reduce } from './encode-rows.js';

/** A thread's rate, which decides only how far work is split. */
const FLOP_PER_NS = 45;
/** A chunk costs about a microsecond more than the products in it. */
const CHUNK_NS = 30_000;
/** So that one thread's last chunk, while the others have none, is a small part of the product. */
const CHUNKS_PER_THREAD = 8;
/** Rows and columns of a chunk below which loading panels weighs more than sharing. */
const MIN_ROWS = 48;
const MIN_COLUMNS = 64;
/** Bytes of b that few rows read in a nanosecond, of one thread. */
const FEW_ROWS_BYTES_PER_NS = 15;
/** Columns for which all k should be kept packed; fewer cost too many visits to the rows of a. */
const MIN_KEPT_COLUMNS = 128;
/** Where they are not kept every chunk packs its own part of both operands, so there are fewer. */
const UNKEPT_COLUMNS = 512;
const UNKEPT_CHUNKS_PER_THREAD = 2;

export function matmul(call: KernelCalls['matmul'], w: CommandWriter): void {
  const { m, n, k, batch, aBatch, bBatch, outBatch } = call;
  const batches = batch[0] * batch[1];
  if (m === 0 || n === 0 || batches === 0) {
    return;
  }
  const columns = columnsAtOnce(
    k,
    call.out.dtype === 'f32' ? MATMUL_COLUMNS : MATMUL_NARROW_COLUMNS,
  );
  const split =
    m <= MATMUL_FEW_ROWS
      ? splitFewRows(call, w.threads)
      : splitProduct({ m, n, k, batches, columns }, w.threads);
  w.start(OP_MATMUL, 'matmul').view(call.a).view(call.b).view(call.out).view(call.bias);
  w.int(m, n, k, call.transposeA ? 1 : 0, call.transposeB ? 1 : 0);
  w.int(call.aRow, call.bRow, call.outRow, batches, batch[1]);
  w.int(...aBatch, ...bBatch, ...outBatch)
    .float(call.alpha)
    .int(call.accumulate ? 1 : 0);
  w.int(split.batches, split.columns, split.rows, columns.atOnce);
  w.commit(split.batches * split.rows * split.columns);
  for (const { x, out, inner } of sumsOf(call)) {
    reduce({ kind: 'sum', x, out, outer: 1, dim: k, inner }, w);
  }
  runEpilogue(call, {
    binary: (own) => binary(own, w),
    unary: (own) => unary(own, w),
    unaryBackward: (own) => unaryBackward(own, w),
    crossEntropyBackward: (own) => crossEntropyBackward(own, w),
  });
}

interface Columns {
  readonly atOnce: number;
  /** Whether all k of them stay packed: see Note [panels of b] in assembly/matmul.ts. */
  readonly areKept: boolean;
}

function columnsAtOnce(k: number, most: number): Columns {
  // A panel of 8 columns, with its padding, for each block of k.
  const blockBytes = Math.min(k, MATMUL_DEPTH) * 8 * 4 + 64;
  const kept = 8 * Math.floor(MATMUL_PANEL_BYTES / (Math.ceil(k / MATMUL_DEPTH) * blockBytes));
  const areKept = kept >= MIN_KEPT_COLUMNS;
  return { atOnce: Math.min(most, areKept ? kept : UNKEPT_COLUMNS), areKept };
}

interface Product {
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly batches: number;
  readonly columns: Columns;
}

interface Split {
  readonly batches: number;
  readonly rows: number;
  readonly columns: number;
}

/**
 * One chunk a thread where chunks are parts of b's rows: see Note [order of b] in
 * assembly/few-rows.ts.
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

/** Whole batches where there are enough, else rows of one block of columns after the other. */
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
  // The grid whose chunks pack the least: each packs its rows of a and its columns of b.
  let best: Split = { batches, rows: 1, columns: Math.min(mostColumns, perBatch) };
  let least = Number.POSITIVE_INFINITY;
  for (let rows = 1; rows <= Math.min(mostRows, perBatch); rows++) {
    const parts = Math.min(mostColumns, Math.ceil(perBatch / rows));
    const packed = m * parts + n * rows;
    if (packed < least) {
      least = packed;
      best = { batches, rows, columns: parts };
    }
  }
  return best;
}
