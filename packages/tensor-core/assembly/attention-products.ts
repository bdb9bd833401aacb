// These are the products of attention's blocks: queries by keys, weights by values, and transposed
// weights by rows.
//
// Note [hidden keys]: the weight of a hidden key is 0, but 0 times NaN is NaN. So where some keys
// of a block are hidden and one of its operands is not finite, the products are made element by
// element and skip the hidden keys.

import { dim, numKeys, numRows, row0, SUMS_AT } from './attention-call';
import { fromOf, isPartial, prepareRow, sees, toOf } from './attention-visible';
import { laneMask } from './convert';
import { madd } from './fuse';
import { panelBytes } from './pack';
import { addTile, LD, TILE_ROWS, Tile, tileOfColumns, tileOfRows } from './product-tile';
import { scratchBase } from './slot';

/** Computes out[r][j] = rows[r] . column j, for the panels that the rows of a tile visit. */
export function rowProducts(rows: usize, panels: usize, out: usize): void {
  const stride = panelBytes(dim, 8);
  for (let r = 0; r < numRows; r += TILE_ROWS) {
    const to = toOf(r);
    const a = rows + <usize>r * LD;
    const c = out + <usize>r * LD;
    for (let j = fromOf(r); j < to; j += 8) {
      rowTile(a, panels + <usize>(j >> 3) * stride, dim, c + (j << 2));
    }
  }
}

/** Adds to out[r] the sum over keys of weights[r][key] * values[key]. `values` stands in panels. */
export function keyProducts(weights: usize, values: usize, out: usize): void {
  if (isPartial && !isFiniteBlock(values, numKeys)) {
    carefulRows(weights, values, out);
    return;
  }
  for (let r = 0; r < numRows; r += TILE_ROWS) {
    const from = fromOf(r);
    const k = min(toOf(r), numKeys) - from;
    const a = weights + <usize>r * LD + (from << 2);
    addTiles(rowTile, a, values + ((<usize>from) << 5), panelBytes(numKeys, 8), k, out + <usize>r * LD);
  }
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
    addTiles(columnTile, a, values + ((<usize>first) << 5), panelBytes(numRows, 8), k, out + <usize>j * LD);
  }
}

/** Returns whether row r visits one of the six keys from j on. */
@inline
function visits(r: i32, j: i32): bool {
  return j + TILE_ROWS > fromOf(r) && j < toOf(r);
}

/** Clears the weights of row r outside the panels that it visits, since no product has set them. */
export function clearUnvisited(weights: usize, r: i32): void {
  const row = weights + <usize>r * LD;
  const from = fromOf(r);
  const to = toOf(r);
  memory.fill(row, 0, (<usize>from) << 2);
  memory.fill(row + ((<usize>to) << 2), 0, (<usize>max(numKeys - to, 0)) << 2);
}

let rowTile: Tile = (a: usize, b: usize, k: i32, out: usize): void => tileOfRows(a, b, k, out);
let columnTile: Tile = (a: usize, b: usize, k: i32, out: usize): void =>
  tileOfColumns(a, LD, b, k, out, LD);

/**
 * Adds a times the panels to six rows of out, for all columns. Panels stand `stride` bytes apart.
 */
function addTiles(tile: Tile, a: usize, b: usize, stride: usize, k: i32, out: usize): void {
  const sums = scratchBase + SUMS_AT;
  for (let d = 0; d < dim; d += 8) {
    tile(a, b, k, sums);
    addTile(sums, out);
    b += stride;
    out += 32;
  }
}

// ---- blocks with NaN or infinities --------------------------------------------------------------

/** Returns whether all of the n rows in panels are finite. */
export function isFiniteBlock(panels: usize, n: i32): bool {
  let sum = f32x4.splat(0);
  const zero = f32x4.splat(0);
  for (let d = 0; d < dim; d += 8) {
    const low = laneMask(dim - d);
    const high = laneMask(dim - d - 4);
    for (let r = 0; r < n; r++) {
      const at = panels + ((<usize>r) << 5);
      sum = f32x4.add(sum, v128.and(f32x4.mul(v128.load(at), zero), low));
      sum = f32x4.add(sum, v128.and(f32x4.mul(v128.load(at, 16), zero), high));
    }
    panels += panelBytes(n, 8);
  }
  return i32x4.all_true(f32x4.eq(sum, zero));
}

function carefulRows(weights: usize, values: usize, out: usize): void {
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

function carefulColumns(weights: usize, values: usize, out: usize): void {
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
