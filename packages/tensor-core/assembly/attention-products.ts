// These are the products of attention's blocks: queries by keys, weights by values, and transposed
// weights by rows.
//
// Note [hidden keys]: the weight of a hidden key is 0, but 0 times NaN is NaN. So where some keys
// of a block are hidden and one of its operands is not finite, the products are made element by
// element and skip the hidden keys.

import { dim, numKeys, numRows, row0 } from './attention-call';
import { fromOf, isPartial, prepareRow, sees, tileHi, tileLo, toOf } from './attention-visible';
import { laneMask } from './convert';
import { madd } from './fuse';
import { panelBytes } from './pack';
import { LD, TILE_ROWS, Tile, tileOfColumns, tileOfRows } from './product-tile';
import { scratchBase } from './slot';

/** Computes out[r][j] = rows[r] . column j for the six rows from r on and the panels they visit. */
export function rowProducts(r: i32, rows: usize, panels: usize, out: usize): void {
  const stride = panelBytes(dim, 8);
  const to = toOf(r);
  const a = rows + <usize>r * LD;
  const c = out + <usize>r * LD;
  for (let j = fromOf(r); j < to; j += 8) {
    rowTile(a, panels + <usize>(j >> 3) * stride, dim, c + (j << 2));
  }
}

/** Returns whether keyProducts must skip the hidden keys of the block: see Note [hidden keys]. */
export function mustSkip(values: usize): bool {
  return isPartial && !isFiniteBlock(values, numKeys);
}

/**
 * Adds to out[r] the sum over keys of weights[r][key] * values[key], for the six rows from r on, or
 * stores it there if they are fresh. `values` stands in panels.
 */
export function keyProducts(
  r: i32,
  weights: usize,
  values: usize,
  out: usize,
  isFresh: bool,
): void {
  const from = tileLo(r);
  const k = tileHi(r) - from;
  const a = weights + <usize>r * LD + (from << 2);
  const tile = isFresh ? rowTile : rowSumTile;
  tiles(tile, a, values + ((<usize>from) << 5), panelBytes(numKeys, 8), k, out + <usize>r * LD);
}

/**
 * Adds to out[key] the sum over rows of weights[row][key] * values[row]. `values` stands in panels,
 * and the weights of keys that a row doesn't visit are 0.
 */
export function columnProducts(weights: usize, values: usize, out: usize): void {
  if (isPartial && !isFiniteBlock(values, numRows)) {
    carefulColumns(weights, values, out);
    return;
  }
  for (let j = 0; j < numKeys; j += TILE_ROWS) {
    let first = 0;
    while (first < numRows && !visits(first, j)) first += TILE_ROWS;
    let last = first;
    while (last < numRows && visits(last, j)) last += TILE_ROWS;
    const k = min(last, numRows) - first;
    if (k <= 0) {
      continue;
    }
    const a = weights + <usize>first * LD + (j << 2);
    tiles(columnSumTile, a, values + ((<usize>first) << 5), panelBytes(numRows, 8), k, out + <usize>j * LD);
  }
}

/** Returns whether row r visits one of the six keys from j on. */
@inline
function visits(r: i32, j: i32): bool {
  return j + TILE_ROWS > tileLo(r) && j < tileHi(r);
}

/**
 * Clears the weights of row r beside the panels that it visits, since no product has set them.
 * A tile of columnProducts reaches at most five of them.
 */
export function clearUnvisited(weights: usize, r: i32, margin: i32): void {
  const row = weights + <usize>r * LD;
  const from = fromOf(r);
  const to = toOf(r);
  clear(row, max(from - margin, 0), from);
  clear(row, to, min(to + margin, numKeys));
}

@inline
function clear(row: usize, from: i32, to: i32): void {
  const zero = f32x4.splat(0);
  for (let j = from; j < to; j += 4) {
    v128.store(row + (j << 2), zero);
  }
}

let rowTile: Tile = (a: usize, b: usize, k: i32, out: usize): void =>
  tileOfRows(a, b, k, out, false);
let rowSumTile: Tile = (a: usize, b: usize, k: i32, out: usize): void =>
  tileOfRows(a, b, k, out, true);
let columnSumTile: Tile = (a: usize, b: usize, k: i32, out: usize): void =>
  tileOfColumns(a, LD, b, k, out, LD, true);

/** Multiplies a by all panels, which stand `stride` bytes apart, into six rows of out. */
function tiles(tile: Tile, a: usize, b: usize, stride: usize, k: i32, out: usize): void {
  for (let d = 0; d < dim; d += 8) {
    tile(a, b, k, out);
    b += stride;
    out += 32;
  }
}

// ---- blocks with NaN or infinities --------------------------------------------------------------

/** Returns whether all of the n rows in panels are finite. */
function isFiniteBlock(panels: usize, n: i32): bool {
  const zero = f32x4.splat(0);
  let s0 = zero;
  let s1 = zero;
  let s2 = zero;
  let s3 = zero;
  const end = panels + ((<usize>(n & ~1)) << 5);
  for (let d = 0; d < dim; d += 8) {
    const low = laneMask(dim - d);
    const high = laneMask(dim - d - 4);
    let at = panels + <usize>(d >> 3) * panelBytes(n, 8);
    for (const last = at + (end - panels); at < last; at += 64) {
      s0 = f32x4.add(s0, f32x4.mul(v128.and(v128.load(at), low), zero));
      s1 = f32x4.add(s1, f32x4.mul(v128.and(v128.load(at, 16), high), zero));
      s2 = f32x4.add(s2, f32x4.mul(v128.and(v128.load(at, 32), low), zero));
      s3 = f32x4.add(s3, f32x4.mul(v128.and(v128.load(at, 48), high), zero));
    }
    if ((n & 1) != 0) {
      s0 = f32x4.add(s0, f32x4.mul(v128.and(v128.load(at), low), zero));
      s1 = f32x4.add(s1, f32x4.mul(v128.and(v128.load(at, 16), high), zero));
    }
  }
  const sum = f32x4.add(f32x4.add(s0, s1), f32x4.add(s2, s3));
  return i32x4.all_true(f32x4.eq(sum, zero));
}

/** Does what keyProducts does for all rows, key by key. */
export function carefulRows(weights: usize, values: usize, out: usize): void {
  for (let r = 0; r < numRows; r++) {
    prepareRow(row0 + <u32>r);
    const to = min(toOf(r), numKeys);
    for (let j = fromOf(r); j < to; j++) {
      if (sees(j)) {
        const w = f32x4.splat(load<f32>(weights + <usize>r * LD + (j << 2)));
        addScaled(out + <usize>r * LD, values + ((<usize>j) << 5), panelBytes(numKeys, 8), w);
      }
    }
  }
}

/** Adds to out[key] what columnProducts does, row by row. */
export function carefulColumns(weights: usize, values: usize, out: usize): void {
  for (let r = 0; r < numRows; r++) {
    prepareRow(row0 + <u32>r);
    const to = min(toOf(r), numKeys);
    for (let j = fromOf(r); j < to; j++) {
      if (sees(j)) {
        const w = f32x4.splat(load<f32>(weights + <usize>r * LD + (j << 2)));
        addScaled(out + <usize>j * LD, values + ((<usize>r) << 5), panelBytes(numRows, 8), w);
      }
    }
  }
}

/** Adds w times one row of the panels to out. */
@inline
function addScaled(out: usize, values: usize, stride: usize, w: v128): void {
  for (let d = 0; d < dim; d += 8) {
    const o = out + (d << 2);
    v128.store(o, madd(w, v128.load(values), v128.load(o)));
    v128.store(o, madd(w, v128.load(values, 16), v128.load(o, 16)), 16);
    values += stride;
  }
}
