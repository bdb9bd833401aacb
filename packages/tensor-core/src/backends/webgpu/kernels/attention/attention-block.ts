// An invocation has 32 pairs in a block of attention, 8 rows by 4 columns. The WGSL here finds
// which of them are hidden and which dropout leaves, as one word each: bit 8 * c + i stands for row
// i with column c, so row 2 with column 1 is bit 10. Words keep the shader small: a loop can set
// bits, while a loop over an array of values must be unrolled, with a random generator in each
// turn.
//
// `npm run kernels -- attention f32 wide 64x8x2` prints, among other lines:
//
//   { s[7u] *= P.scale; }
//   var hidden = 0u;
//   if (is_partial) {
//     hidden = hidden_of(batch, row0 + 4u * y, first + 4u * x);
//   }

import { type AttentionSpec, each } from './attention-tile.js';

/** The side that a tile's rows come from; its columns come from the other one. */
export type RowSide = 'queries' | 'keys';

const ROWS = 8;

export function blockHelpers(spec: AttentionSpec, side: RowSide): string {
  const { tile, mask, hasSegments, hasDropout } = spec;
  const isByQuery = side === 'queries';
  const row = `let row = row_y + (i >> 2u) * ${4 * tile.down}u + (i & 3u);`;
  const other = isByQuery ? 'key' : 'query';
  const [query, key] = isByQuery ? ['row', 'column'] : ['column', 'row'];
  return `
fn picked(word: u32, i: u32) -> vec4<bool> {
  return (vec4<u32>(word >> i) & vec4<u32>(1u, 0x100u, 0x10000u, 0x1000000u)) != vec4<u32>();
}
// Zeros where the bits of row i are set. Whole words as masks take no scalar registers.
fn without(word: u32, i: u32, v: vec4<f32>) -> vec4<f32> {
  let shown = bitcast<i32>(~word);
  let mask = vec4<i32>(extractBits(shown, i, 1u), extractBits(shown, i + 8u, 1u), extractBits(shown, i + 16u, 1u), extractBits(shown, i + 24u, 1u));
  return bitcast<vec4<f32>>(bitcast<vec4<i32>>(v) & mask);
}
fn exp4(v: vec4<f32>) -> vec4<f32> {
  return select(exp(v), v, (bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu)) > vec4<u32>(0x7f800000u));
}
// Bits of four columns, the first in the lowest, as bits of a row's pairs.
fn spread(four: u32) -> u32 {
  return (four & 1u) | ((four & 2u) << 7u) | ((four & 4u) << 14u) | ((four & 8u) << 21u);
}
// The pairs that positions and segments hide: a row sees a run of columns.
fn hidden_of(batch: u32, row_y: u32, column_x: u32) -> u32 {
  var hidden = 0u;
  for (var i = 0u; i < ${ROWS}u; i++) {
    ${row}
    let end = select(0u, ${other}_end(row), row < P.${side});
    let first = clamp(i32(${other}_start(row)) - i32(column_x), 0, 4);
    let last = clamp(i32(end) - i32(column_x), 0, 4);
    var four = ((1u << u32(first)) - 1u) | ~((1u << u32(last)) - 1u);
    ${hasSegments ? `for (var c = 0u; c < 4u; c++) { four |= select(1u << c, 0u, same_segment(batch, ${isByQuery ? 'row, column_x + c' : 'column_x + c, row'})); }` : ''}
    hidden |= spread(four) << i;
  }
  return hidden;
}
${hasSegments ? SEGMENTS : ''}
${
  mask === undefined
    ? ''
    : `fn added(batch: u32, head: u32, row: u32, column_x: u32) -> vec4<f32> {
  var sum = vec4<f32>();
  for (var c = 0u; c < 4u; c++) {
    let column = column_x + c;
    sum[c] = load_mask(batch * P.mask_batch + head * P.mask_head + min(${query}, P.queries - 1u) * P.mask_row + min(${key}, P.keys - 1u) * P.mask_column);
  }
  return sum;
}
fn hidden_by(added: vec4<f32>, i: u32) -> u32 {
  let bits = select(vec4<u32>(), vec4<u32>(1u, 0x100u, 0x10000u, 0x1000000u), are_lowest(added));
  return (bits.x | bits.y | bits.z | bits.w) << i;
}`
}
${hasDropout ? `${KEPT_4}${(isByQuery ? KEPT_BY_QUERY : KEPT_BY_KEY).replace('ROW;', row)}` : ''}`;
}

/**
 * Returns WGSL that scales scores, adds the mask to them and declares `hidden`, the word of hidden
 * pairs. `scores` names an array with one vector for each row of the invocation.
 */
export function mark(spec: AttentionSpec, scores: string, rowOf: (i: string) => string): string {
  return `${each(ROWS, (i) => `${scores}[${i}] *= P.scale;`)}
    var hidden = 0u;
    if (is_partial) {
      hidden = hidden_of(batch, row0 + 4u * y, first + 4u * x);
      ${
        spec.mask === undefined
          ? ''
          : each(
              ROWS,
              (i) => `let more = added(batch, head, ${rowOf(i)}, first + 4u * x);
        hidden |= hidden_by(more, ${i});
        ${scores}[${i}] += more;`,
            )
      }
    }`;
}

/** Returns WGSL that declares `kept`, the word of pairs that dropout leaves. */
export function keep({ hasDropout }: AttentionSpec): string {
  return hasDropout ? 'let kept = kept_of(batch, head, row0 + 4u * y, first + 4u * x);' : '';
}

/** Returns WGSL of vector `i` of weights or slopes as dropout leaves it. */
export function dropped({ hasDropout }: AttentionSpec, value: string, i: string): string {
  return hasDropout ? `select(vec4<f32>(), P.kept_scale * ${value}, picked(kept, ${i}))` : value;
}

/**
 * WGSL that compares the segment ids of a pair, and that returns the lowest and the highest id of
 * a run of queries or keys. The length of a run is not a constant: given one, compilers load 64 ids
 * at once into scalar registers that other values need.
 */
const SEGMENTS = `
fn same_segment(batch: u32, query: u32, key: u32) -> bool {
  return load_query_ids(batch * P.queries + min(query, P.queries - 1u)) == load_key_ids(batch * P.keys + min(key, P.keys - 1u));
}
fn queries_segments(batch: u32, first: u32, count: u32) -> vec2<i32> {
  var ends = vec2<i32>(2147483647, -2147483648);
  for (var i = 0u; i < count; i++) {
    let id = bitcast<i32>(load_query_ids(batch * P.queries + first + i));
    ends = vec2<i32>(min(ends.x, id), max(ends.y, id));
  }
  return ends;
}
fn keys_segments(batch: u32, first: u32, count: u32) -> vec2<i32> {
  var ends = vec2<i32>(2147483647, -2147483648);
  for (var i = 0u; i < count; i++) {
    let id = bitcast<i32>(load_key_ids(batch * P.keys + first + i));
    ends = vec2<i32>(min(ends.x, id), max(ends.y, id));
  }
  return ends;
}`;

/**
 * WGSL that returns the dropout bits of four neighboring keys. The generator makes blocks of four
 * words, so these four come from one block or from two.
 */
const KEPT_4 = `
fn kept4(batch: u32, head: u32, query: u32, key: u32) -> u32 {
  let at = word_of(batch, head, query, key);
  let low = (at.x >> 2u) | (at.y << 30u);
  let high = at.y >> 2u;
  let shift = at.x & 3u;
  var bits = kept_bits(low, high);
  if (shift != 0u) {
    bits |= kept_bits(low + 1u, high + select(0u, 1u, low + 1u == 0u)) << 4u;
  }
  return (bits >> shift) & 15u;
}
fn kept_bits(low: u32, high: u32) -> u32 {
  let bits = select(vec4<u32>(), vec4<u32>(1u, 2u, 4u, 8u), philox(low, high) >= vec4<u32>(P.threshold));
  return bits.x | bits.y | bits.z | bits.w;
}`;

const KEPT_BY_QUERY = `
fn kept_of(batch: u32, head: u32, row_y: u32, column_x: u32) -> u32 {
  var word = 0u;
  for (var i = 0u; i < 8u; i++) {
    ROW;
    word |= spread(kept4(batch, head, row, column_x)) << i;
  }
  return word;
}`;

const KEPT_BY_KEY = `
fn kept_of(batch: u32, head: u32, row_y: u32, column_x: u32) -> u32 {
  var word = 0u;
  for (var at = 0u; at < 8u; at++) {
    let c = at >> 1u;
    let i = 4u * (at & 1u);
    ROW;
    word |= kept4(batch, head, column_x + c, row) << (8u * c + i);
  }
  return word;
}`;
