// This kernel finds the largest elements along an axis. It works on [outer, dim, inner]. A line,
// which is the axis at one outer and one inner index, belongs to one chunk.

import { loadFloat } from './convert';
import { arg, argI, chunkStart } from './slot';

/**
 * Returns a word by which f32 values are ordered: NaN comes above all, and zeros of both signs are
 * equal.
 */
@inline
function keyOf(value: f32): u32 {
  const bits = reinterpret<u32>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0xffffffff;
  if ((bits & 0x7fffffff) == 0) return 0x80000000;
  return (bits & 0x80000000) != 0 ? ~bits : bits | 0x80000000;
}

/**
 * Finds the largest elements of each line. The output itself is the list of the best so far, in
 * order, and most elements are smaller than its last. The arguments are x, dtype, out, outer, dim,
 * inner and count.
 */
export function topK(slot: usize, chunk: u32, chunks: u32): void {
  const x = <usize>arg(slot, 0);
  const xType = argI(slot, 1);
  const dim = arg(slot, 4);
  const inner = arg(slot, 5);
  const count = arg(slot, 6);
  const step = (<usize>inner) << 2;
  const lines = arg(slot, 3) * inner;
  const end = chunkStart(lines, chunk + 1, chunks, 1);
  for (let line = chunkStart(lines, chunk, chunks, 1); line < end; line++) {
    const o = line / inner;
    const i = line - o * inner;
    const first = o * dim * inner + i;
    const list = <usize>arg(slot, 2) + ((<usize>(o * count * inner + i)) << 2);
    let size: u32 = 0;
    let worst: u32 = 0;
    for (let d: u32 = 0; d < dim; d++) {
      const key = keyOf(loadFloat(x, xType, first + d * inner));
      if (size == count && key <= worst) {
        continue;
      }
      // The place is searched from the end. Elements that are not smaller stay before it, so of
      // equal ones the first stays first.
      let place = size < count ? size : count - 1;
      while (place > 0) {
        const before = load<u32>(list + <usize>(place - 1) * step);
        if (keyOf(loadFloat(x, xType, first + before * inner)) >= key) {
          break;
        }
        store<u32>(list + <usize>place * step, before);
        place--;
      }
      store<u32>(list + <usize>place * step, d);
      if (size < count) {
        size++;
      }
      const last = load<u32>(list + <usize>(size - 1) * step);
      worst = keyOf(loadFloat(x, xType, first + last * inner));
    }
  }
}
