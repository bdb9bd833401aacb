// These kernels take elements along an axis by index, and compute the gradient of that. They work
// on [outer, dim, inner]. A line is the axis at one outer and one inner index. In the gradient it
// belongs to one chunk; the elements of gather are independent.

import { loadFloat } from './convert';
import { GRAIN } from './elementwise';
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
