// These kernels take elements along an axis by index, compute the gradient of that, find the
// largest along an axis, and make running sums. All work on [outer, dim, inner]. A line is the axis
// at one outer and one inner index. Except in gather, whose elements are independent, a line
// belongs to one chunk.

import { loadFloat, storeFloat } from './convert';
import { GRAIN } from './elementwise';
import { I32 } from './layout';
import { arg, argI, chunkStart } from './slot';

/** The arguments are x, log2 of the element's width, ids, out, outer, dim, inner and count. */
export function gather(slot: usize, chunk: u32, chunks: u32): void {
  const x = <usize>arg(slot, 0);
  const width = argI(slot, 1);
  const ids = <usize>arg(slot, 2);
  const out = <usize>arg(slot, 3);
  const dim = arg(slot, 5);
  const inner = arg(slot, 6);
  const block = inner * arg(slot, 7);
  const total = arg(slot, 4) * block;
  const end = chunkStart(total, chunk + 1, chunks, GRAIN);
  for (let at = chunkStart(total, chunk, chunks, GRAIN); at < end; at++) {
    // A negative id, read as unsigned, lies outside too. Ids outside give 0.
    const id = load<u32>(ids + ((<usize>at) << 2));
    const from = (<usize>((at / block * dim + id) * inner + at % inner)) << width;
    const to = out + ((<usize>at) << width);
    if (width == 2) {
      store<u32>(to, id < dim ? load<u32>(x + from) : 0);
    } else {
      store<u16>(to, id < dim ? load<u16>(x + from) : 0);
    }
  }
}

/** The arguments are ids, dy, dtype, dx (f32, zeros), outer, dim, inner and count. */
export function gatherBackward(slot: usize, chunk: u32, chunks: u32): void {
  const ids = <usize>arg(slot, 0);
  const dy = <usize>arg(slot, 1);
  const dyType = argI(slot, 2);
  const dx = <usize>arg(slot, 3);
  const dim = arg(slot, 5);
  const inner = arg(slot, 6);
  const count = arg(slot, 7);
  const lines = arg(slot, 4) * inner;
  const end = chunkStart(lines, chunk + 1, chunks, 1);
  for (let line = chunkStart(lines, chunk, chunks, 1); line < end; line++) {
    const o = line / inner;
    const i = line - o * inner;
    for (let n: u32 = 0; n < count; n++) {
      const at = (o * count + n) * inner + i;
      const id = load<u32>(ids + ((<usize>at) << 2));
      if (id < dim) {
        const to = dx + ((<usize>((o * dim + id) * inner + i)) << 2);
        store<f32>(to, load<f32>(to) + loadFloat(dy, dyType, at));
      }
    }
  }
}

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
