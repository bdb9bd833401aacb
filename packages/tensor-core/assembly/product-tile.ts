// These are the innermost loops of all products: 6 x 8 results in 12 vector registers, which with
// two vectors of b and one of a are all that V8 gives. There are two versions, one for each
// distance between the values of a, since the distance is part of the instructions.
//
// Note [tiles]: these loops run at full speed only as functions of their own. A caller contains
// nothing but one of them and is itself called through a variable (Tile), since V8 would inline a
// function with a single caller. Where the loop shares a function with other code, where it is
// unrolled, and where sums are added to something before they are stored, V8 keeps some of them in
// memory, and the loop takes twice as long. Sums that begin with what stands in out cost nothing.

import { madd } from './fuse';

/** The rows and columns of a tile. */
export const TILE_ROWS: i32 = 6;
export const TILE_COLUMNS: i32 = 8;
/** Multiplies a block of a by a panel of b, with k terms, into 6 x 8 results: see Note [tiles]. */
export type Tile = (a: usize, b: usize, k: i32, out: usize) => void;
/**
 * The bytes from row to row of a block in scratch: 256 columns and an edge, so that it is not a
 * power of two.
 */
export const LD: usize = 1088;

/**
 * Computes out = a x b for six rows and eight columns. For each k, a has six values next to each
 * other, aStep bytes after the last six, and b has the eight values of a panel. Rows of out are
 * outRow bytes apart. Both distances are constants of the caller, as isSum is, with which the
 * products are added to what stands in out.
 */
@inline
export function tileOfColumns(
  a: usize,
  aStep: usize,
  b: usize,
  k: i32,
  out: usize,
  outRow: usize,
  isSum: bool,
): void {
  let c00 = isSum ? v128.load(out) : f32x4.splat(0);
  let c01 = isSum ? v128.load(out, 16) : f32x4.splat(0);
  let c10 = isSum ? v128.load(out + outRow) : f32x4.splat(0);
  let c11 = isSum ? v128.load(out + outRow, 16) : f32x4.splat(0);
  let c20 = isSum ? v128.load(out + outRow * 2) : f32x4.splat(0);
  let c21 = isSum ? v128.load(out + outRow * 2, 16) : f32x4.splat(0);
  let c30 = isSum ? v128.load(out + outRow * 3) : f32x4.splat(0);
  let c31 = isSum ? v128.load(out + outRow * 3, 16) : f32x4.splat(0);
  let c40 = isSum ? v128.load(out + outRow * 4) : f32x4.splat(0);
  let c41 = isSum ? v128.load(out + outRow * 4, 16) : f32x4.splat(0);
  let c50 = isSum ? v128.load(out + outRow * 5) : f32x4.splat(0);
  let c51 = isSum ? v128.load(out + outRow * 5, 16) : f32x4.splat(0);
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

/** Does the same for six rows of a that stand LD bytes apart, as those of out do. */
@inline
export function tileOfRows(a: usize, b: usize, k: i32, out: usize, isSum: bool): void {
  let c00 = isSum ? v128.load(out) : f32x4.splat(0);
  let c01 = isSum ? v128.load(out, 16) : f32x4.splat(0);
  let c10 = isSum ? v128.load(out + LD) : f32x4.splat(0);
  let c11 = isSum ? v128.load(out + LD, 16) : f32x4.splat(0);
  let c20 = isSum ? v128.load(out + LD * 2) : f32x4.splat(0);
  let c21 = isSum ? v128.load(out + LD * 2, 16) : f32x4.splat(0);
  let c30 = isSum ? v128.load(out + LD * 3) : f32x4.splat(0);
  let c31 = isSum ? v128.load(out + LD * 3, 16) : f32x4.splat(0);
  let c40 = isSum ? v128.load(out + LD * 4) : f32x4.splat(0);
  let c41 = isSum ? v128.load(out + LD * 4, 16) : f32x4.splat(0);
  let c50 = isSum ? v128.load(out + LD * 5) : f32x4.splat(0);
  let c51 = isSum ? v128.load(out + LD * 5, 16) : f32x4.splat(0);
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
