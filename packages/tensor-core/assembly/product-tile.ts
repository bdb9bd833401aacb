// The innermost loops of all products: 6 x 8 results in registers, 12 vectors, which with two of b
// and one of a are all that V8 gives. There are two for how far apart the rows of a lie, which
// instructions hold.
//
// Note [tiles]: a function that calls one of them has nothing but it, and is called by its place in
// a table (Tile), for one with a single caller would be inlined. Where callers are part of the
// loop, where it is unrolled, and where sums are added to something before they are stored, V8
// keeps some of them in memory, and it takes twice as long.

import { madd } from './fuse';

/** Rows and columns of a tile. */
export const TILE_ROWS: i32 = 6;
export const TILE_COLUMNS: i32 = 8;
/** A block of a times a panel of b, with k terms, as 6 x 8 results: see Note [tiles]. */
export type Tile = (a: usize, b: usize, k: i32, out: usize) => void;
/** Bytes from row to row of a block in scratch: 256 columns and an edge, no power of two. */
export const LD: usize = 1088;

/**
 * out = a x b, six rows of eight: a has six values in a row for each k, aStep bytes apart, b eight,
 * a panel; rows of out lie outRow apart. Distances are constants of the caller.
 */
@inline
export function tileOfColumns(
  a: usize,
  aStep: usize,
  b: usize,
  k: i32,
  out: usize,
  outRow: usize,
): void {
  let c00 = f32x4.splat(0);
  let c01 = f32x4.splat(0);
  let c10 = f32x4.splat(0);
  let c11 = f32x4.splat(0);
  let c20 = f32x4.splat(0);
  let c21 = f32x4.splat(0);
  let c30 = f32x4.splat(0);
  let c31 = f32x4.splat(0);
  let c40 = f32x4.splat(0);
  let c41 = f32x4.splat(0);
  let c50 = f32x4.splat(0);
  let c51 = f32x4.splat(0);
  const end = b + ((<usize>k) << 5);
  while (b < end) {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    const s0 = v128.load_splat<f32>(a);
    c00 = madd(s0, b0, c00);
    c01 = madd(s0, b1, c01);
    const s1 = v128.load_splat<f32>(a, 4);
    c10 = madd(s1, b0, c10);
    c11 = madd(s1, b1, c11);
    const s2 = v128.load_splat<f32>(a, 8);
    c20 = madd(s2, b0, c20);
    c21 = madd(s2, b1, c21);
    const s3 = v128.load_splat<f32>(a, 12);
    c30 = madd(s3, b0, c30);
    c31 = madd(s3, b1, c31);
    const s4 = v128.load_splat<f32>(a, 16);
    c40 = madd(s4, b0, c40);
    c41 = madd(s4, b1, c41);
    const s5 = v128.load_splat<f32>(a, 20);
    c50 = madd(s5, b0, c50);
    c51 = madd(s5, b1, c51);
    a += aStep;
    b += 32;
  }
  v128.store(out, c00);
  v128.store(out, c01, 16);
  v128.store(out + outRow, c10);
  v128.store(out + outRow, c11, 16);
  v128.store(out + outRow * 2, c20);
  v128.store(out + outRow * 2, c21, 16);
  v128.store(out + outRow * 3, c30);
  v128.store(out + outRow * 3, c31, 16);
  v128.store(out + outRow * 4, c40);
  v128.store(out + outRow * 4, c41, 16);
  v128.store(out + outRow * 5, c50);
  v128.store(out + outRow * 5, c51, 16);
}

/** The same of six rows of a, LD bytes apart as those of out are. */
@inline
export function tileOfRows(a: usize, b: usize, k: i32, out: usize): void {
  let c00 = f32x4.splat(0);
  let c01 = f32x4.splat(0);
  let c10 = f32x4.splat(0);
  let c11 = f32x4.splat(0);
  let c20 = f32x4.splat(0);
  let c21 = f32x4.splat(0);
  let c30 = f32x4.splat(0);
  let c31 = f32x4.splat(0);
  let c40 = f32x4.splat(0);
  let c41 = f32x4.splat(0);
  let c50 = f32x4.splat(0);
  let c51 = f32x4.splat(0);
  const end = b + ((<usize>k) << 5);
  while (b < end) {
    const b0 = v128.load(b);
    const b1 = v128.load(b, 16);
    const s0 = v128.load_splat<f32>(a);
    c00 = madd(s0, b0, c00);
    c01 = madd(s0, b1, c01);
    const s1 = v128.load_splat<f32>(a, LD);
    c10 = madd(s1, b0, c10);
    c11 = madd(s1, b1, c11);
    const s2 = v128.load_splat<f32>(a, LD * 2);
    c20 = madd(s2, b0, c20);
    c21 = madd(s2, b1, c21);
    const s3 = v128.load_splat<f32>(a, LD * 3);
    c30 = madd(s3, b0, c30);
    c31 = madd(s3, b1, c31);
    const s4 = v128.load_splat<f32>(a, LD * 4);
    c40 = madd(s4, b0, c40);
    c41 = madd(s4, b1, c41);
    const s5 = v128.load_splat<f32>(a, LD * 5);
    c50 = madd(s5, b0, c50);
    c51 = madd(s5, b1, c51);
    a += 4;
    b += 32;
  }
  v128.store(out, c00);
  v128.store(out, c01, 16);
  v128.store(out + LD, c10);
  v128.store(out + LD, c11, 16);
  v128.store(out + LD * 2, c20);
  v128.store(out + LD * 2, c21, 16);
  v128.store(out + LD * 3, c30);
  v128.store(out + LD * 3, c31, 16);
  v128.store(out + LD * 4, c40);
  v128.store(out + LD * 4, c41, 16);
  v128.store(out + LD * 5, c50);
  v128.store(out + LD * 5, c51, 16);
}

/** out += six rows of eight sums, all rows LD apart. */
export function addTile(sums: usize, out: usize): void {
  for (let r = 0; r < TILE_ROWS; r++) {
    v128.store(out, f32x4.add(v128.load(out), v128.load(sums)));
    v128.store(out, f32x4.add(v128.load(out, 16), v128.load(sums, 16)), 16);
    sums += LD;
    out += LD;
  }
}
