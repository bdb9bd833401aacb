// These kernels move bytes: plain copies (uploads, downloads, buffer to buffer) and copies with
// strides (transpose, slice, cat, expand). Elements keep their bits, so only their width matters.

import { arg, argI, chunkStart } from './slot';

/** The arguments are from, to and the number of bytes. */
export function copyBytes(slot: usize, chunk: u32, chunks: u32): void {
  const bytes = arg(slot, 2);
  const start = chunkStart(bytes, chunk, chunks, 4096);
  const end = chunkStart(bytes, chunk + 1, chunks, 4096);
  memory.copy(
    <usize>arg(slot, 1) + <usize>start,
    <usize>arg(slot, 0) + <usize>start,
    <usize>(end - start),
  );
}

/** The words before the shape are x, out, log2 of the element's width, total and rank. */
const SHAPE = 5;

/**
 * The arguments are the words that SHAPE counts, then for each dimension (extent, x stride, out
 * stride). The offsets of the views are part of the addresses x and out.
 */
export function copyStrided(slot: usize, chunk: u32, chunks: u32): void {
  const x = <usize>arg(slot, 0);
  const out = <usize>arg(slot, 1);
  const width = argI(slot, 2);
  const total = arg(slot, 3);
  const rank = argI(slot, 4);
  const inner = SHAPE + (rank - 1) * 3;
  const length = arg(slot, inner);
  const xStep = <usize>arg(slot, inner + 1);
  const outStep = <usize>arg(slot, inner + 2);
  let at = chunkStart(total, chunk, chunks, 64);
  const end = chunkStart(total, chunk + 1, chunks, 64);
  while (at < end) {
    const row = at / length;
    const column = at - row * length;
    const n = min<u32>(length - column, end - at);
    let rest = row;
    let xAt = <usize>column * xStep;
    let outAt = <usize>column * outStep;
    for (let d = rank - 2; d >= 0; d--) {
      const extent = arg(slot, SHAPE + d * 3);
      const index = rest % extent;
      rest /= extent;
      xAt += <usize>(index * arg(slot, SHAPE + d * 3 + 1));
      outAt += <usize>(index * arg(slot, SHAPE + d * 3 + 2));
    }
    copyRow(x + (xAt << width), out + (outAt << width), n, xStep << width, outStep << width, width);
    at += n;
  }
}

function copyRow(x: usize, out: usize, n: u32, xStep: usize, outStep: usize, width: i32): void {
  if (width == 2) {
    if (xStep == 4 && outStep == 4) {
      memory.copy(out, x, (<usize>n) << 2);
      return;
    }
    for (let i: u32 = 0; i < n; i++) {
      store<u32>(out, load<u32>(x));
      x += xStep;
      out += outStep;
    }
    return;
  }
  if (xStep == 2 && outStep == 2) {
    memory.copy(out, x, (<usize>n) << 1);
    return;
  }
  for (let i: u32 = 0; i < n; i++) {
    store<u16>(out, load<u16>(x));
    x += xStep;
    out += outStep;
  }
}
