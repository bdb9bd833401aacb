// These functions tell which keys a query sees, by its position, window, segment and mask, and
// which weights dropout keeps.

import {
  counter,
  FROM_AT,
  firstRow,
  HI_AT,
  isCausal,
  key0,
  key0At,
  key1,
  keyIds,
  keys,
  LO_AT,
  MASK_AT,
  maskAt,
  maskBase,
  maskColumn,
  maskRow,
  maskType,
  numKeys,
  numRows,
  queryIds,
  queryOffset,
  querySegments,
  row0,
  SMALLEST,
  TO_AT,
  threshold,
  WORDS_AT,
  window,
} from './attention-call';
import { widen } from './convert';
import { philox32 } from './dropout';
import { TILE_ROWS } from './product-tile';
import { scratchBase } from './slot';

/** Whether some row of the current block does not see all of the block's keys. */
export let isPartial: bool = false;

/** Returns the first key that the row's position lets it see. */
export function loOf(row: u32): u32 {
  if (window == 0) {
    return 0;
  }
  const lo = queryOffset + <i32>row - window + 1;
  return <u32>min<i32>(max<i32>(lo, 0), <i32>keys);
}

/** Returns one more than the last key that the row's position lets it see. */
export function hiOf(row: u32): u32 {
  const at = queryOffset + <i32>row;
  let hi = <i32>keys;
  if (isCausal) {
    hi = at + 1;
  } else if (window != 0) {
    hi = at + window;
  }
  return <u32>min<i32>(max<i32>(hi, 0), <i32>keys);
}

/**
 * Finds the range of keys that the rows of each tile visit in the current block, and whether
 * anything in the block is hidden.
 */
export function findRanges(): void {
  isPartial = querySegments != 0 || maskBase != 0 || numKeys % 8 != 0;
  for (let r = 0; r < numRows; r += TILE_ROWS) {
    const end = min(r + TILE_ROWS, numRows);
    const last = row0 + <u32>(end - 1);
    const lo = inBlock(loOf(row0 + <u32>r));
    const hi = inBlock(hiOf(last));
    isPartial = isPartial || inBlock(loOf(last)) > 0 || inBlock(hiOf(row0 + <u32>r)) < numKeys;
    for (let i = r; i < end; i++) {
      store<u8>(scratchBase + LO_AT + i, <u8>min(lo, hi));
      store<u8>(scratchBase + HI_AT + i, <u8>hi);
      store<u8>(scratchBase + FROM_AT + i, <u8>(min(lo, hi) & ~7));
      store<u8>(scratchBase + TO_AT + i, <u8>((hi + 7) & ~7));
    }
  }
}

/** Returns the first key of the block that row r visits, a multiple of 8. */
@inline
export function fromOf(r: i32): i32 {
  return <i32>load<u8>(scratchBase + FROM_AT + r);
}

/**
 * Returns one more than the last key of the block that row r visits, rounded up to whole panels.
 */
@inline
export function toOf(r: i32): i32 {
  return <i32>load<u8>(scratchBase + TO_AT + r);
}

/** Returns the first key of the block that a row of r's tile sees. */
@inline
export function tileLo(r: i32): i32 {
  return <i32>load<u8>(scratchBase + LO_AT + r);
}

/** Returns one more than the last key of the block that a row of r's tile sees. */
@inline
export function tileHi(r: i32): i32 {
  return <i32>load<u8>(scratchBase + HI_AT + r);
}

@inline
function inBlock(key: u32): i32 {
  return min<i32>(max<i32>(<i32>key - <i32>key0At, 0), numKeys);
}

/**
 * Returns whether the block's queries and keys may have a segment id in common. It compares only
 * the smallest and largest ids, so it may return true where they have none.
 */
export function sharesSegment(): bool {
  if (querySegments == 0) {
    return true;
  }
  const ids = queryIds + ((<usize>row0) << 2);
  const others = keyIds + ((<usize>key0At) << 2);
  return !(mostOf(ids, numRows) < leastOf(others, numKeys) || leastOf(ids, numRows) > mostOf(others, numKeys));
}

function mostOf(ids: usize, n: i32): i32 {
  let most = load<i32>(ids);
  for (let i = 1; i < n; i++) {
    most = max<i32>(most, load<i32>(ids + (i << 2)));
  }
  return most;
}

function leastOf(ids: usize, n: i32): i32 {
  let least = load<i32>(ids);
  for (let i = 1; i < n; i++) {
    least = min<i32>(least, load<i32>(ids + (i << 2)));
  }
  return least;
}

// What prepareRow finds for the row that is worked on.
let rowLo: i32 = 0;
let rowHi: i32 = 0;
let rowId: i32 = 0;
let rowMask: usize = 0;
/**
 * The keys from wholeFrom up to wholeTo, whole panels, are all seen by the row and have no mask.
 * The keys beside them are its edges.
 */
export let wholeFrom: i32 = 0;
export let wholeTo: i32 = 0;

export function prepareRow(row: u32): void {
  rowLo = inBlock(loOf(row));
  rowHi = inBlock(hiOf(row));
  const r = <i32>(row - row0);
  const from = fromOf(r);
  const to = toOf(r);
  const isPlain = querySegments == 0 && maskBase == 0;
  wholeFrom = isPlain ? min(max(from, (rowLo + 7) & ~7), to) : to;
  wholeTo = isPlain ? max(min(to, rowHi & ~7), wholeFrom) : to;
  if (querySegments != 0) {
    rowId = load<i32>(queryIds + ((<usize>row) << 2));
  }
  if (maskBase != 0) {
    const at = maskAt + row * maskRow;
    const values = scratchBase + MASK_AT;
    if (maskColumn == 0) {
      const one = f32x4.splat(load<f32>(widen(maskBase, maskType, at, 1, scratchBase)));
      for (let j = 0; j < numKeys; j += 4) {
        v128.store(values + (j << 2), one);
      }
      rowMask = values;
    } else {
      rowMask = widen(maskBase, maskType, at + key0At, numKeys, values);
    }
  }
}

/** Returns j, or where the keys from j to `end` are whole, `end`. */
@inline
export function nextEdge(j: i32, start: i32, end: i32): i32 {
  return j == start ? end : j;
}

/** Returns four scores of the prepared row, with the mask added. */
@inline
export function scored4(score: usize, j: i32): v128 {
  const s = v128.load(score);
  return maskBase == 0 ? s : f32x4.add(s, v128.load(rowMask + (j << 2)));
}

/**
 * Returns a mask with all bits set in the lanes of those keys j to j + 3 of the block that the
 * prepared row sees.
 */
@inline
export function visible4(j: i32): v128 {
  const index = i32x4.add(i32x4.splat(j), i32x4(0, 1, 2, 3));
  let visible = v128.and(
    i32x4.ge_s(index, i32x4.splat(rowLo)),
    i32x4.lt_s(index, i32x4.splat(rowHi)),
  );
  if (querySegments != 0) {
    const ids = v128.load(keyIds + ((<usize>(key0At + <u32>j)) << 2));
    visible = v128.and(visible, i32x4.eq(ids, i32x4.splat(rowId)));
  }
  if (maskBase != 0) {
    visible = v128.and(visible, f32x4.ne(v128.load(rowMask + (j << 2)), f32x4.splat(SMALLEST)));
  }
  return visible;
}

/** Returns whether the prepared row sees key j, which must lie in the panels that it visits. */
export function sees(j: i32): bool {
  return (i32x4.extract_lane(visible4(j), 0) & 1) != 0;
}

/**
 * The address where the random word of the block's key 0 would stand: the word of key j is at
 * wordsAt + 4 * j. Only the words of the keys that drawWords was given exist.
 */
let wordsAt: usize = 0;

export function drawWords(row: u32, from: i32, to: i32): void {
  const first = counter + <u64>(firstRow + row) * <u64>keys + <u64>key0At + <u64>from;
  const lead = <i32>(first & 3);
  const words = scratchBase + WORDS_AT;
  for (let i = 0; i < to - from + lead; i += 32) {
    philox32((first >> 2) + <u64>(i >> 2), key0, key1, words + (i << 2));
  }
  wordsAt = words + ((<usize>lead) << 2) - ((<usize>from) << 2);
}

@inline
export function kept4(j: i32): v128 {
  return i32x4.ge_u(v128.load(wordsAt + (j << 2)), i32x4.splat(threshold));
}
