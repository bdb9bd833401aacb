// The command of assembly/matmul.ts, and how its work is split.

import {
  MATMUL_COLUMNS,
  MATMUL_NARROW_COLUMNS,
  MATMUL_PANEL_BYTES,
  OP_MATMUL,
} from '../../../assembly/layout.js';
import type { KernelCalls } from '../../backend.js';
import type { CommandWriter } from './command-writer.js';

/** Of one thread; decides only how far to split. */
const FLOP_PER_NS = 45;
/** A chunk costs about a microsecond more than the products in it. */
const CHUNK_NS = 30_000;
/** So that one thread's last chunk, while the others have none, is a small part of the product. */
const CHUNKS_PER_THREAD = 8;
/** Rows and columns of a chunk below which loading panels weighs more than sharing. */
const MIN_ROWS = 48;
const MIN_COLUMNS = 64;
/** Columns for which all k should be kept packed; fewer cost too many visits to the rows of a. */
const MIN_KEPT_COLUMNS = 128;
const UNKEPT_COLUMNS = 512;

export function matmul(call: KernelCalls['matmul'], w: CommandWriter): void {
  const { m, n, k, batch, aBatch, bBatch, outBatch } = call;
  const batches = batch[0] * batch[1];
  if (m === 0 || n === 0 || batches === 0) {
    return;
  }
  const at = columnsAtOnce(k, call.out.dtype === 'f32' ? MATMUL_COLUMNS : MATMUL_NARROW_COLUMNS);
  const split = splitProduct(m, n, k, batches, w.threads, at);
  w.start(OP_MATMUL, 'matmul').view(call.a).view(call.b).view(call.out).view(call.bias);
  w.int(m, n, k, call.transposeA ? 1 : 0, call.transposeB ? 1 : 0);
  w.int(call.aRow, call.bRow, call.outRow, batches, batch[1]);
  w.int(...aBatch, ...bBatch, ...outBatch)
    .float(call.alpha)
    .int(call.accumulate ? 1 : 0);
  w.int(split.batches, split.columns, split.rows, at);
  w.commit(split.batches * split.rows * split.columns);
}

/** As many as have room for all k packed: see Note [panels of b] in assembly/matmul.ts. */
function columnsAtOnce(k: number, most: number): number {
  const bytesPerColumn = k * 4 + Math.ceil(k / 256) * 8;
  const kept = Math.floor(MATMUL_PANEL_BYTES / Math.max(1, bytesPerColumn) / 8) * 8;
  return Math.min(most, kept >= MIN_KEPT_COLUMNS ? kept : UNKEPT_COLUMNS);
}

interface Split {
  readonly batches: number;
  readonly rows: number;
  readonly columns: number;
}

/** Whole batches where there are enough, else rows of one block of columns after the other. */
function splitProduct(
  m: number,
  n: number,
  k: number,
  batches: number,
  threads: number,
  columnsAtOnce: number,
): Split {
  const ns = (2 * m * n * k * batches) / FLOP_PER_NS;
  const most = threads === 1 ? 1 : threads * CHUNKS_PER_THREAD;
  const wanted = Math.max(1, Math.min(most, Math.floor(ns / CHUNK_NS)));
  if (batches >= wanted) {
    return { batches: wanted, rows: 1, columns: 1 };
  }
  const perBatch = Math.ceil(wanted / batches);
  const blocks = Math.ceil(n / columnsAtOnce);
  const rows = Math.min(Math.ceil(m / MIN_ROWS), Math.ceil(perBatch / blocks));
  const columns = Math.min(Math.ceil(n / MIN_COLUMNS), Math.ceil(perBatch / rows));
  return { batches, rows, columns: Math.max(blocks, columns) };
}
