// This kernel makes running sums along an axis. It works on [outer, dim, inner]. A line, which is
// the axis at one outer and one inner index, belongs to one chunk.

import { loadFloat, storeFloat } from './convert';
import { I32 } from './layout';
import { arg, argI, chunkStart } from './slot';

/**
 * Sums of floats run in f64. The arguments are x, dtype, out, dtype, outer, dim, inner and whether
 * sums start at the end.
 */
export function cumSum(slot: usize, chunk: u32, chunks: u32): void {
  const x = <usize>arg(slot, 0);
  const xType = argI(slot, 1);
  const out = <usize>arg(slot, 2);
  const outType = argI(slot, 3);
  const dim = arg(slot, 5);
  const inner = arg(slot, 6);
  const isReverse = argI(slot, 7) != 0;
  const lines = arg(slot, 4) * inner;
  const end = chunkStart(lines, chunk + 1, chunks, 1);
  for (let line = chunkStart(lines, chunk, chunks, 1); line < end; line++) {
    const o = line / inner;
    const first = o * dim * inner + (line - o * inner);
    let sum: f64 = 0;
    let words: u32 = 0;
    for (let n: u32 = 0; n < dim; n++) {
      const at = first + (isReverse ? dim - 1 - n : n) * inner;
      if (outType >= I32) {
        words += load<u32>(x + ((<usize>at) << 2));
        store<u32>(out + ((<usize>at) << 2), words);
      } else {
        sum += <f64>loadFloat(x, xType, at);
        storeFloat(out, outType, at, <f32>sum);
      }
    }
  }
}
