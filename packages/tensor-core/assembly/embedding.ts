// These kernels look up rows of a table by id, and compute the table's gradient.

import { narrow, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { BLOCK } from './layout';
import { arg, argI, chunkStart, scratchBase } from './slot';

const NONE: u32 = 0xffffffff;

/** The arguments are table, dtype, ids, out, dtype, rows, cols and count. */
export function embedding(slot: usize, chunk: u32, chunks: u32): void {
  const table = <usize>arg(slot, 0);
  const tableType = argI(slot, 1);
  const ids = <usize>arg(slot, 2);
  const out = <usize>arg(slot, 3);
  const outType = argI(slot, 4);
  const rows = arg(slot, 5);
  const cols = arg(slot, 6);
  const count = arg(slot, 7);
  const end = chunkStart(count, chunk + 1, chunks, 1);
  for (let i = chunkStart(count, chunk, chunks, 1); i < end; i++) {
    // A negative id, read as unsigned, lies outside the table too. Ids outside give zeros.
    const id = load<u32>(ids + ((<usize>i) << 2));
    for (let c: u32 = 0; c < cols; c += BLOCK) {
      const n = <i32>min<u32>(cols - c, BLOCK);
      if (id < rows) {
        narrow(widen(table, tableType, id * cols + c, n, scratchBase), out, outType, i * cols + c, n);
      } else {
        memory.fill(scratchBase, 0, (<usize>n) << 2);
        narrow(scratchBase, out, outType, i * cols + c, n);
      }
    }
  }
}

/**
 * Each chunk owns a range of the table's rows. It chains the positions of each id in ascending
 * order, then adds them up in f32. The arguments are ids, dy, dtype, dTable, dtype, rows, cols,
 * count, heads [rows] u32 and links [count] u32. The last two are scratch of this command.
 */
export function embeddingBackward(slot: usize, chunk: u32, chunks: u32): void {
  const ids = <usize>arg(slot, 0);
  const dy = <usize>arg(slot, 1);
  const dyType = argI(slot, 2);
  const dTable = <usize>arg(slot, 3);
  const tableType = argI(slot, 4);
  const rows = arg(slot, 5);
  const cols = arg(slot, 6);
  const count = arg(slot, 7);
  const heads = <usize>arg(slot, 8);
  // All chunks share the array of links, since each id, and so each link, belongs to one chunk.
  const links = <usize>arg(slot, 9);
  const start = chunkStart(rows, chunk, chunks, 1);
  const end = chunkStart(rows, chunk + 1, chunks, 1);
  for (let v = start; v < end; v++) {
    store<u32>(heads + ((<usize>v) << 2), NONE);
  }
  for (let k = count; k > 0; k--) {
    const i = k - 1;
    const id = load<u32>(ids + ((<usize>i) << 2));
    if (id >= start && id < end) {
      const head = heads + ((<usize>id) << 2);
      store<u32>(links + ((<usize>i) << 2), load<u32>(head));
      store<u32>(head, i);
    }
  }
  const sums = scratchBase + BLOCK_BYTES;
  for (let v = start; v < end; v++) {
    const first = load<u32>(heads + ((<usize>v) << 2));
    for (let c: u32 = 0; c < cols; c += BLOCK) {
      const n = <i32>min<u32>(cols - c, BLOCK);
      memory.fill(sums, 0, (<usize>(n + 3)) << 2);
      for (let i = first; i != NONE; i = load<u32>(links + ((<usize>i) << 2))) {
        const d = widen(dy, dyType, i * cols + c, n, scratchBase);
        for (let j = 0; j < n; j += 4) {
          const o = j << 2;
          v128.store(sums + o, f32x4.add(v128.load(sums + o), v128.load(d + o)));
        }
      }
      narrow(sums, dTable, tableType, v * cols + c, n);
    }
  }
}
