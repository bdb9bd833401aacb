// These kernels fill a view with one number, and convert elements to another dtype, block by block.

import { narrow, storePartial, widen } from './convert';
import { GRAIN } from './elementwise';
import { BF16, BLOCK, F16, I32 } from './layout';
import { arg, argI, chunkStart, scratchBase } from './slot';

/** The arguments are out, bytes per element (2 or 4), bit pattern and size. */
export function fill(slot: usize, chunk: u32, chunks: u32): void {
  const out = <usize>arg(slot, 0);
  const width = arg(slot, 1);
  const bits = argI(slot, 2);
  const size = arg(slot, 3);
  const start = chunkStart(size, chunk, chunks, GRAIN);
  const end = chunkStart(size, chunk + 1, chunks, GRAIN);
  if (width == 4) {
    const v = i32x4.splat(bits);
    let i = start;
    for (; i + 4 <= end; i += 4) {
      v128.store(out + ((<usize>i) << 2), v);
    }
    for (; i < end; i++) {
      store<i32>(out + ((<usize>i) << 2), bits);
    }
  } else {
    const v = i16x8.splat(<i16>bits);
    let i = start;
    for (; i + 8 <= end; i += 8) {
      v128.store(out + ((<usize>i) << 1), v);
    }
    for (; i < end; i++) {
      store<u16>(out + ((<usize>i) << 1), <u16>bits);
    }
  }
}

/** The arguments are x, dtype, out, dtype and size. */
export function cast(slot: usize, chunk: u32, chunks: u32): void {
  const x = <usize>arg(slot, 0);
  const from = argI(slot, 1);
  const out = <usize>arg(slot, 2);
  const to = argI(slot, 3);
  const size = arg(slot, 4);
  const start = chunkStart(size, chunk, chunks, GRAIN);
  const end = chunkStart(size, chunk + 1, chunks, GRAIN);
  const fromFloat = from <= BF16;
  const toFloat = to <= BF16;
  if (from == to || (!fromFloat && !toFloat)) {
    const shift: usize = from == F16 || from == BF16 ? 1 : 2;
    memory.copy(
      out + ((<usize>start) << shift),
      x + ((<usize>start) << shift),
      (<usize>(end - start)) << shift,
    );
    return;
  }
  const scratch = scratchBase;
  for (let at = start; at < end; at += BLOCK) {
    const n = <i32>min<u32>(end - at, BLOCK);
    let values: usize;
    if (fromFloat) {
      values = widen(x, from, at, n, scratch);
    } else {
      values = scratch;
      const src = x + ((<usize>at) << 2);
      for (let i = 0; i < n; i += 4) {
        const v = v128.load(src + (i << 2));
        v128.store(
          scratch + (i << 2),
          from == I32 ? f32x4.convert_i32x4_s(v) : f32x4.convert_i32x4_u(v),
        );
      }
    }
    if (toFloat) {
      narrow(values, out, to, at, n);
      continue;
    }
    const dst = out + ((<usize>at) << 2);
    for (let i = 0; i < n; i += 4) {
      const v = v128.load(values + (i << 2));
      const r = to == I32 ? i32x4.trunc_sat_f32x4_s(v) : i32x4.trunc_sat_f32x4_u(v);
      if (i + 4 <= n) {
        v128.store(dst + (i << 2), r);
      } else {
        storePartial(dst + (i << 2), r, n - i);
      }
    }
  }
}
