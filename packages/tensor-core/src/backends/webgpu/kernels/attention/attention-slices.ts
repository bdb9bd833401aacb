// WGSL of the two matrix products of attention's tiles: scores, and sums over a block's columns.
// Both take slices of eight through workgroup memory and load the next slice while they multiply
// this one. The array `left` holds a slice of the rows, four rows to a vector, and `right` a slice
// of the columns.
//
// `npm run kernels -- attention f32 wide 64x8x2` prints, among other lines:
//
//   for (var d0 = 0u; d0 < P.dim; d0 += 8u) {
//     { { left_stage((lane + 0u * 64u), left_next[0u]); } }
//     ...
//     workgroupBarrier();
//     { left_next[0u] = q_turned(q_base, row0, (lane + 0u * 64u), d0 + 8u); }
//     ...
//     let b = right[0u >> 2u][0u & 3u][x];
//     { s[0u] = fma(vec4<f32>(a[0u >> 2u][0u & 3u]), b, s[0u]); }
//
// Note [slices of scores]: the sums read scores from `left` as well. The invocations that computed
// the scores write them there, eight columns to a slice, and one, two or four slices at a time. All
// of a block's scores would need more workgroup memory than some devices have left.
//
// Note [hidden]: a hidden pair has the weight 0, but 0 times NaN is NaN. Where a block hides some
// pair and a slice of its values holds a NaN or an infinity, the sums skip hidden pairs one by one.
//
// Note [indices]: Dawn clamps each index that is not a constant, and drivers do not remove the
// clamp. The arrays have more dimensions than they need, so that all stores of a vector share one
// set of clamped indices and differ in constant ones.

import { elementsPerWord } from '../../kernel/kernel.js';
import { type AttentionSpec, each } from './attention-tile.js';

/** The dimensions or columns of a slice. Eight f32 are one memory sector of 32 bytes. */
const SLICE = 8;
const SLICE_VECTORS = SLICE / 4;
/** The rows of an invocation: four in each half of the tile. */
const ROWS = 8;

/**
 * An operand whose rows are loaded. `base` and `first` name the WGSL variables that hold the head's
 * first element and the first row to load.
 */
export interface RowsOf {
  readonly name: 'q' | 'k' | 'v' | 'd_out';
  readonly base: string;
  readonly first: string;
}

const STORED: Readonly<Record<RowsOf['name'], { row: string; count: string }>> = {
  q: { row: 'P.q_row', count: 'P.queries' },
  k: { row: 'P.k_row', count: 'P.keys' },
  v: { row: 'P.v_row', count: 'P.keys' },
  d_out: { row: '(P.heads * P.dim)', count: 'P.queries' },
};

/** Generates the unrolled WGSL text of a tile. */
export class Slices {
  readonly rows: number;
  readonly columns: number;
  readonly threads: number;
  /**
   * The vectors in a row of `left`, and below of `right`. Both are odd, so that the transposing
   * stores of a warp reach each bank of workgroup memory once.
   */
  readonly leftStride: number;
  readonly rightStride: number;
  readonly #spec: AttentionSpec;
  readonly #scoreSlices: number;

  /** @param options.scoreSlices how many slices of scores `left` holds at once */
  constructor(spec: AttentionSpec, { scoreSlices }: { readonly scoreSlices: 1 | 2 | 4 }) {
    this.#scoreSlices = scoreSlices;
    const { down, across, quads } = spec.tile;
    this.#spec = spec;
    this.rows = ROWS * down;
    this.columns = 4 * across;
    this.threads = down * across;
    this.leftStride = this.rows / 4 + 1;
    this.rightStride = (across * quads) | 1;
  }

  /**
   * Declares workgroup memory, and functions that load and store slices. `turned` names operands
   * that are transposed on the way, for scores; `flat` those that are not, for sums.
   */
  declarations(turned: readonly RowsOf['name'][], flat: readonly RowsOf['name'][]): string {
    const { across, quads, down } = this.#spec.tile;
    return `var<workgroup> left: array<array<array<array<vec4<f32>, ${this.leftStride}>, 4>, ${SLICE_VECTORS}>, ${this.#scoreSlices}>;
var<workgroup> right: array<array<array<vec4<f32>, ${this.rightStride}>, 4>, ${SLICE_VECTORS}>;
var<workgroup> marks: array<array<array<array<u32, ${down}>, 4>, ${SLICE_VECTORS}>, ${this.#scoreSlices}>;
var<workgroup> spoiled: atomic<u32>;
fn turned_row(u: u32) -> u32 { return u / ${SLICE_VECTORS}u; }
fn turned_quad(u: u32) -> u32 { return u % ${SLICE_VECTORS}u; }
fn turned_dim(u: u32) -> u32 { return 4u * turned_quad(u); }
fn flat_row(u: u32) -> u32 { return u / ${across * quads}u; }
fn flat_dim(u: u32) -> u32 { return 4u * (u % ${across * quads}u); }
${turned.map((name) => this.#fetch(name, 'turned')).join('\n')}
${flat.map((name) => this.#fetch(name, 'flat')).join('\n')}
${(['left', 'right'] as const)
  .map(
    (side) => `fn ${side}_stage(u: u32, value: vec4<f32>) {
  let e = turned_row(u);
  let d = turned_quad(u);
  ${each(4, (i) => `${side}${side === 'left' ? '[0]' : ''}[d][${i}][e >> 2u][e & 3u] = value[${i}];`)}
}`,
  )
  .join('\n')}
fn values_stage(u: u32, value: vec4<f32>) { let e = flat_row(u); right[e >> 2u][e & 3u][flat_dim(u) >> 2u] = value; }
fn is_spoiled(v: vec4<f32>) -> bool {
  let size = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
  return max(max(size.x, size.y), max(size.z, size.w)) >= 0x7f800000u;
}`;
  }

  /**
   * Returns a WGSL function that loads a vector of a slice. For rows past the last it loads the
   * last one again. Dimensions past the last are 0 where rows are loaded by elements. Where they
   * are loaded by vectors, a head is whole slices, and what is read past it is never used.
   */
  #fetch(name: RowsOf['name'], order: 'turned' | 'flat'): string {
    const { row, count } = STORED[name];
    const loads = this.#spec.isWide
      ? `value = load4_${name}(at);`
      : `for (var i = 0u; i < 4u; i++) { if (d + i < P.dim) { value[i] = load_${name}(at + i); } }`;
    return `fn ${name}_${order}(base: u32, first: u32, u: u32, d0: u32) -> vec4<f32> {
  var value = vec4<f32>();
  let d = d0 + ${order}_dim(u);
  let at = base + min(first + ${order}_row(u), ${count} - 1u) * ${row} + d;
  ${loads}
  return value;
}`;
  }

  /**
   * Declares an invocation's rows of `quads` vectors each, all zero. The zeros are written out,
   * since on both software drivers under Dawn an array without an initial value, declared in a
   * loop, keeps the values of the turn before.
   */
  zeros(name: string, quads = 1): string {
    return `var ${name} = array<vec4<f32>, ${ROWS * quads}>();`;
  }

  /** Returns statements for each row of an invocation. */
  rowwise(body: (i: string) => string): string {
    return each(ROWS, (i) => body(i));
  }

  /**
   * Returns statements for each half of an invocation's rows. In workgroup memory the vectors of
   * the halves lie `down` apart.
   */
  halves(body: (h: string, at: string) => string): string {
    return each(2, (h) => body(h, `y + ${h} * ${this.#spec.tile.down}u`));
  }

  /** Returns WGSL of the number of the invocation's row i among all queries or keys. */
  rowOf(i: string): string {
    return `row0 + 4u * y + (${i} >> 2u) * ${this.rows / 2}u + (${i} & 3u)`;
  }

  /** Returns WGSL that declares `into`, the rows times the columns over the head's dimensions. */
  scores(into: string, left: RowsOf, right: RowsOf): string {
    const sides = [
      { side: 'left', of: left, count: this.rows * SLICE_VECTORS },
      { side: 'right', of: right, count: this.columns * SLICE_VECTORS },
    ];
    const fetched = (d0: string) =>
      sides
        .map(({ side, of, count }) =>
          this.#units(
            count,
            ({ i, u }) =>
              `${side}_next[${i}] = ${of.name}_turned(${of.base}, ${of.first}, ${u}, ${d0});`,
          ),
        )
        .join('\n      ');
    const staged = sides.map(({ side, count }) =>
      this.#units(
        count,
        ({ i, u, guard }) => `${guard}{ ${side}_stage(${u}, ${side}_next[${i}]); }`,
      ),
    );
    return `${this.zeros(into)}
  {
    ${sides.map(({ side, count }) => `var ${side}_next = array<vec4<f32>, ${this.#numUnits(count)}>();`).join('\n    ')}
    ${fetched('0u')}
    for (var d0 = 0u; d0 < P.dim; d0 += ${SLICE}u) {
      ${staged.join('\n      ')}
      workgroupBarrier();
      ${fetched(`d0 + ${SLICE}u`)}
      ${each(
        SLICE,
        (k) => `${this.#leftOf(k)}
      let b = right[${k} >> 2u][${k} & 3u][x];
      ${this.rowwise((i) => `${into}[${i}] = fma(vec4<f32>(${rowValue(i)}), b, ${into}[${i}]);`)}`,
      )}
      workgroupBarrier();
    }
  }`;
  }

  /**
   * Returns WGSL that adds to `into` the scores `of` times the rows of an operand, over the `count`
   * columns of the block. It needs the variables `hidden`, `is_partial`, and `turn`, which counts
   * slices.
   */
  sums(into: string, of: string, values: RowsOf): string {
    const { across, quads } = this.#spec.tile;
    const numVectors = SLICE * across * quads;
    const fetched = (first: string) =>
      this.#units(
        numVectors,
        ({ i, u }) => `next[${i}] = ${values.name}_flat(${values.base}, ${first}, ${u}, 0u);`,
      );
    const taken = this.#scoreSlices;
    const here = taken === 1 ? '0' : `slice % ${taken}u`;
    const place = taken === 1 ? '[0][at]' : '[at >> 1u][at & 1u]';
    const products = (k: string, isSafe: boolean) => `${this.#leftOf(k, here)}
      ${isSafe ? '' : `let hides = marks[${here}][${k} >> 2u][${k} & 3u][y];`}
      ${each(
        quads,
        (q) => `let b = right[${k} >> 2u][${k} & 3u][x + ${q} * ${across}u];
      ${this.rowwise((i) => {
        const sum = `${into}[${i} * ${quads}u + ${q}]`;
        const added = `fma(vec4<f32>(${rowValue(i)}), b, ${sum})`;
        return `${sum} = ${isSafe ? added : `select(${added}, ${sum}, (hides & (1u << ${i})) != 0u)`};`;
      })}`,
      )}`;
    const put = `if (x / ${2 * taken}u == slice${taken === 1 ? '' : ` / ${taken}u`}) {
        let at = x % ${2 * taken}u;
        ${each(4, (c) =>
          this.halves(
            (h, row) =>
              `left${place}[${c}][${row}] = vec4<f32>(${[0, 1, 2, 3].map((j) => `${of}[4u * ${h} + ${j}u][${c}]`).join(', ')});`,
          ),
        )}
        if (is_partial) { ${each(4, (c) => `marks${place}[${c}][y] = (hidden >> (8u * ${c})) & 255u;`)} }
      }`;
    const slice = `turn++;
      ${this.#units(numVectors, ({ i, u, guard }) => `${guard}{ values_stage(${u}, next[${i}]); }`)}
      if (is_partial) {
        var is_odd = false;
        ${this.#units(numVectors, ({ i }) => `is_odd = is_odd || is_spoiled(next[${i}]);`)}
        if (is_odd) { atomicStore(&spoiled, turn); }
      }
      workgroupBarrier();
      ${fetched(`${values.first} + ${SLICE}u * (slice + 1u)`)}
      if (is_partial && atomicLoad(&spoiled) == turn) {
        for (var c = ${SLICE}u * slice; c < min(count, ${SLICE}u * slice + ${SLICE}u); c++) {
          let k = c % ${SLICE}u;
          ${products('k', false)}
        }
      } else {
        ${each(SLICE, (k) => products(k, true))}
      }
      workgroupBarrier();
      slice++;`;
    return `{
    var next = array<vec4<f32>, ${this.#numUnits(numVectors)}>();
    ${fetched(values.first)}
    var slice = 0u;
    while (${SLICE}u * slice < count) {
      ${put}
      ${taken === 1 ? slice : `let end = min(slice + ${taken}u, (count + ${SLICE - 1}u) / ${SLICE}u);\n      while (slice < end) { ${slice} }`}
    }
  }`;
  }

  /**
   * Returns WGSL that stores sums. `at` gives the first element of a row, and `factor` what row i
   * is multiplied by.
   */
  store(
    name: string,
    options: {
      readonly to: string;
      readonly at: (row: string) => string;
      readonly count: string;
      readonly factor: (i: string) => string;
    },
  ): string {
    const { to, at, count, factor } = options;
    const { across, quads } = this.#spec.tile;
    const quad = (i: string, q: string) => `let d = 4u * x + ${4 * across}u * ${q};
      let value = ${factor(i)} * ${name}[${i} * ${quads}u + ${q}];
      ${this.#storeQuad(to)}`;
    return this.rowwise(
      (i) => `if (${this.rowOf(i)} < ${count}) {
    let at = ${at(`(${this.rowOf(i)})`)};
    ${each(quads, (q) => quad(i, q))}
  }`,
    );
  }

  #storeQuad(to: string): string {
    const { dtype, isWide } = this.#spec;
    if (isWide) {
      return `if (d < P.dim) { store4_${to}(at + d, value); }`;
    }
    return elementsPerWord(dtype) === 2
      ? each(
          2,
          (h) =>
            `if (d + 2u * ${h} < P.dim) { store2_${to}(at + d + 2u * ${h}, value[2u * ${h}], value[2u * ${h} + 1u]); }`,
        )
      : each(4, (c) => `if (d + ${c} < P.dim) { store_${to}(at + d + ${c}, value[${c}]); }`);
  }

  /**
   * Declares `a`, the values of the invocation's eight rows in column or dimension k of a slice.
   */
  #leftOf(k: string, slice = '0'): string {
    const at = `left[${slice}][${k} >> 2u][${k} & 3u]`;
    return `let a = array<vec4<f32>, 2>(${at}[y], ${at}[y + ${this.#spec.tile.down}u]);`;
  }

  /** The vectors that an invocation loads of a slice of `count` vectors. */
  #numUnits(count: number): number {
    return Math.ceil(count / this.threads);
  }

  /**
   * Returns statements for each of these vectors. `guard` is an `if` where the last vector may lie
   * past the slice.
   */
  #units(
    count: number,
    body: (unit: { readonly i: string; readonly u: string; readonly guard: string }) => string,
  ): string {
    return each(this.#numUnits(count), (i, isLast) => {
      const u = `(lane + ${i} * ${this.threads}u)`;
      const isOpen = count % this.threads !== 0 && isLast;
      return body({ i, u, guard: isOpen ? `if (${u} < ${count}u) ` : '' });
    });
  }
}

/** Returns WGSL of row i's value in the vectors that #leftOf declares. */
function rowValue(i: string): string {
  return `a[${i} >> 2u][${i} & 3u]`;
}
