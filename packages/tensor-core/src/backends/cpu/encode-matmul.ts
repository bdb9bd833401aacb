// The command of assembly/matmul.ts, and how its work is split.

import { OP_MATMUL } from '../../../assembly/layout.js';
import type { KernelCalls } from '../../backend.js';
import type { CommandWriter } from './command-writer.js';

/** Of one thread; decides only how far to split. */
const FLOP_PER_NS = 40;
/** Each chunk packs its operands again, so fewer and longer ones than elsewhere. */
const CHUNK_NS = 40_000;
/** What the innermost kernel makes at once. */
const TILE_ROWS = 4;
const TILE_COLUMNS = 8;

export function matmul(call: KernelCalls['matmul'], w: CommandWriter): void {
  const { m, n, k, batch, aBatch, bBatch, outBatch } = call;
  const batches = batch[0] * batch[1];
  if (m === 0 || n === 0 || batches === 0) {
    return;
  }
  const split = splitProduct(m, n, k, batches, w.threads);
  w.start(OP_MATMUL, 'matmul').view(call.a).view(call.b).view(call.out).view(call.bias);
  w.int(m, n, k, call.transposeA ? 1 : 0, call.transposeB ? 1 : 0);
  w.int(call.aRow, call.bRow, call.outRow, batches, batch[1]);
  w.int(...aBatch, ...bBatch, ...outBatch)
    .float(call.alpha)
    .int(call.accumulate ? 1 : 0);
  w.int(split.batches, split.rows, split.columns);
  w.commit(split.batches * split.rows * split.columns);
}

interface Split {
  readonly batches: number;
  readonly rows: number;
  readonly columns: number;
}

/** Whole batches where there are enough, else a grid of output blocks that packs the least. */
function splitProduct(m: number, n: number, k: number, batches: number, threads: number): Split {
  if (threads === 1) {
    return { batches: 1, rows: 1, columns: 1 };
  }
  const ns = (2 * m * n * k * batches) / FLOP_PER_NS;
  const wanted = Math.max(1, Math.min(threads * 2, Math.floor(ns / CHUNK_NS)));
  if (batches >= wanted) {
    return { batches: wanted, rows: 1, columns: 1 };
  }
  const perBatch = Math.ceil(wanted / batches);
  let best: Split = { batches, rows: 1, columns: 1 };
  let least = Number.POSITIVE_INFINITY;
  for (let rows = 1; rows <= perBatch; rows++) {
    const columns = Math.ceil(perBatch / rows);
    const fits = rows <= Math.ceil(m / TILE_ROWS) && columns <= Math.ceil(n / TILE_COLUMNS);
    const packed = m / rows + n / columns;
    if (fits && packed < least && rows * columns < perBatch * 2) {
      least = packed;
      best = { batches, rows, columns };
    }
  }
  return best;
}
