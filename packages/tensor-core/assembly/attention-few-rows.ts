// Blocks of few queries, as one more token of a text that is being generated has: keys and values are
// read where they lie, once, for packing them would cost more than the products.

import {
  dim,
  dtype,
  kAt,
  kBase,
  key0At,
  kRow,
  numKeys,
  numRows,
  vAt,
  vBase,
  vRow,
} from './attention-call';
import { fromOf, toOf } from './attention-visible';
import { laneMask, widen } from './convert';
import { BLOCK_BYTES } from './elementwise';
import { madd } from './fuse';
import { LD } from './product-tile';
import { scratchBase } from './slot';

/** Above it the tiles of six rows take less time, packing included. */
const FEW: i32 = 3;

/** Whether the current block's rows are few. */
@inline
export function isFew(): bool {
  return numRows <= FEW;
}

/** out[r][j] = rows[r] . key j, for the keys that the row visits. */
export function fewRowProducts(rows: usize, out: usize): void {
  const to = toOf(numRows - 1);
  for (let j = fromOf(0); j < to; j += 4) {
    const k0 = rowOf(kBase, kAt, kRow, j, 0);
    const k1 = rowOf(kBase, kAt, kRow, j + 1, 1);
    const k2 = rowOf(kBase, kAt, kRow, j + 2, 2);
    const k3 = rowOf(kBase, kAt, kRow, j + 3, 3);
    for (let r = 0; r < numRows; r++) {
      const at = <usize>r * LD;
      v128.store(out + at + (j << 2), fourDots(rows + at, k0, k1, k2, k3));
    }
  }
}

/** out[r] += sum over keys of weights[r][key] * values[key], where all keys are seen. */
export function fewRowSums(weights: usize, out: usize): void {
  for (let j = 0; j < numKeys; j += 4) {
    const v0 = rowOf(vBase, vAt, vRow, j, 0);
    const v1 = rowOf(vBase, vAt, vRow, j + 1, 1);
    const v2 = rowOf(vBase, vAt, vRow, j + 2, 2);
    const v3 = rowOf(vBase, vAt, vRow, j + 3, 3);
    for (let r = 0; r < numRows; r++) {
      const w = weights + <usize>r * LD + (j << 2);
      const w0 = v128.load_splat<f32>(w);
      const w1 = v128.load_splat<f32>(w, 4);
      const w2 = v128.load_splat<f32>(w, 8);
      const w3 = v128.load_splat<f32>(w, 12);
      const to = out + <usize>r * LD;
      for (let o = 0; o < dim << 2; o += 16) {
        let sum = v128.load(to + o);
        sum = madd(w0, v128.load(v0 + o), sum);
        sum = madd(w1, v128.load(v1 + o), sum);
        sum = madd(w2, v128.load(v2 + o), sum);
        v128.store(to + o, madd(w3, v128.load(v3 + o), sum));
      }
    }
  }
}

/** Key or value j of the block in f32; past the last one it again. */
@inline
function rowOf(base: usize, at: u32, row: u32, j: i32, slot: usize): usize {
  const index = key0At + <u32>min(j, numKeys - 1);
  return widen(base, dtype, at + index * row, dim, scratchBase + BLOCK_BYTES * slot);
}

function fourDots(q: usize, k0: usize, k1: usize, k2: usize, k3: usize): v128 {
  let c0 = f32x4.splat(0);
  let c1 = f32x4.splat(0);
  let c2 = f32x4.splat(0);
  let c3 = f32x4.splat(0);
  let d = 0;
  for (; d + 4 <= dim; d += 4) {
    const o = d << 2;
    const s = v128.load(q + o);
    c0 = madd(s, v128.load(k0 + o), c0);
    c1 = madd(s, v128.load(k1 + o), c1);
    c2 = madd(s, v128.load(k2 + o), c2);
    c3 = madd(s, v128.load(k3 + o), c3);
  }
  if (d < dim) {
    const o = d << 2;
    const rest = laneMask(dim - d);
    const s = v128.and(v128.load(q + o), rest);
    c0 = madd(s, v128.and(v128.load(k0 + o), rest), c0);
    c1 = madd(s, v128.and(v128.load(k1 + o), rest), c1);
    c2 = madd(s, v128.and(v128.load(k2 + o), rest), c2);
    c3 = madd(s, v128.and(v128.load(k3 + o), rest), c3);
  }
  // Transposed and added up: lane i is the sum of the lanes of ci.
  const t0 = f32x4.add(v128.shuffle<i32>(c0, c1, 0, 4, 2, 6), v128.shuffle<i32>(c0, c1, 1, 5, 3, 7));
  const t1 = f32x4.add(v128.shuffle<i32>(c2, c3, 0, 4, 2, 6), v128.shuffle<i32>(c2, c3, 1, 5, 3, 7));
  return f32x4.add(v128.shuffle<i32>(t0, t1, 0, 1, 4, 5), v128.shuffle<i32>(t0, t1, 2, 3, 6, 7));
}
