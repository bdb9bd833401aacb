// The tile of the matrix product for hardware. Workgroup memory holds a block of k of both
// operands, each invocation keeps a square of outputs in registers, and the next block is loaded
// while this one is multiplied.
//
// Note [loads of a block]: which invocation loads what depends on the operand's storage, so that a
// warp loads whole sectors of 32 bytes. Where storage runs along m or n, neighboring invocations
// load neighboring vectors and store them as they are. Where it runs along k, as many neighbors as
// share a sector load from one row, and store element by element, transposed. Rows of the block are
// then longer by four elements, and those of 16-bit vectors lie in an order of their own, so that
// the stores of a warp reach each bank once. The test matmul-static evaluates these expressions.
//
// Note [no guards in the loop]: rows and columns past the end are loaded like all others, because
// WGSL keeps loads within the binding, and what is computed from them is never stored. Only what is
// past the end of k becomes 0, when it is stored to the block, since a select right after the load
// would wait for it. Indices of the block are sums, quotients and remainders of constants and the
// invocation's number. Compilers prove that these lie within the block and drop their clamps.
//
// Note [sums of an operand]: the groups of the first row of tiles add up the columns of b, and
// those of the first column of tiles the rows of a, from the block in workgroup memory. One lane
// takes one sum, by ascending k, so that all tiles give equal bits.

import { byteSize } from '@shardweave/dtypes';
import type { MatmulSpec, SharedTile } from './matmul-tiles.js';

/** One operand of a tile: what its invocations load and where they store it. */
interface Operand {
  readonly name: 'a' | 'b';
  /** The rows of a or the columns of b in the tile. */
  readonly extent: number;
  /** Whether a stored row runs along k, and not along m or n. */
  readonly isAlongK: boolean;
  readonly isWide: boolean;
  /** The parameter that holds the length of a stored row. */
  readonly row: 'P.a_row' | 'P.b_row';
  /** The elements of a unit, which is what one load takes: four or one. */
  readonly width: number;
  /** The units side by side along k that make a sector. */
  readonly run: number;
  readonly units: readonly Unit[];
  /** WGSL of where an invocation's first unit begins in the tile, along k and along m or n. */
  readonly lane: { readonly k: string; readonly e: string };
}

/** How far unit number i of an invocation lies from its first one, along k and along m or n. */
interface Unit {
  readonly i: number;
  readonly k: number;
  readonly e: number;
}

/** The steps of k in workgroup memory at once. A sector of 16-bit elements holds 16 of them. */
export function blockDepth(tile: SharedTile, { a, b }: Pick<MatmulSpec, 'a' | 'b'>): number {
  return Math.min(byteSize(a), byteSize(b)) === 2 ? Math.max(16, tile.k) : tile.k;
}

export function sharedBody(
  tile: SharedTile,
  size: readonly [number, number, number],
  spec: MatmulSpec,
): string {
  const { m, n, perThread } = tile;
  const [threads] = size;
  const depth = blockDepth(tile, spec);
  const quads = perThread / 4;
  const a = operandOf('a', spec, { extent: m, depth, threads });
  const b = operandOf('b', spec, { extent: n, depth, threads });
  const operands = [a, b];
  const columns = n / perThread;
  const half = (extent: number, q: number) => (q * extent) / quads;
  const sums = range(perThread).flatMap((i) => range(quads).map((q) => `c${i}_${q}`));
  const step = (kk: number) => `{
      ${range(quads)
        .map(
          (q) => `let a${q} = a_block[${rowOf(a, kk)}][y + ${half(m / 4, q)}u];
      let b${q} = b_block[${rowOf(b, kk)}][x + ${half(n / 4, q)}u];`,
        )
        .join('\n      ')}
      ${range(perThread)
        .flatMap((i) =>
          range(quads).map(
            (q) => `c${i}_${q} = fma(vec4<f32>(a${i >> 2}[${i & 3}]), b${q}, c${i}_${q});`,
          ),
        )
        .join('\n      ')}
    }`;
  const summed = operands.find(({ name }) => name === spec.sums);
  return `
${operands.map((o) => `var<workgroup> ${o.name}_block: array<array<vec4<f32>, ${strideOf(o)}>, ${depth}>;`).join('\n')}
@compute @workgroup_size(${threads})
fn main(@builtin(workgroup_id) group_here: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let group_id = group_here + first_group();
  let part = group_id.z % P.parts;
  let batch = group_id.z / P.parts + P.first_batch;
  let outer = batch / P.batch_inner;
  let inner = batch - outer * P.batch_inner;
  let a_base = outer * P.a_outer + inner * P.a_inner;
  let b_base = outer * P.b_outer + inner * P.b_inner;
  let out_base = outer * P.out_outer + inner * P.out_inner + part * P.out_part;
  let first_a = group_id.y * ${m}u;
  let first_b = group_id.x * ${n}u;
  let first_k = part * P.part_k;
  let end_k = min(first_k + P.part_k, P.k);
  let x = lane % ${columns}u;
  let y = lane / ${columns}u;
  ${operands.map(placesOf).join('\n  ')}
  ${sums.map((c) => `var ${c} = vec4<f32>();`).join('\n  ')}
  ${summed === undefined ? '' : `var total = 0.0;\n  let is_summing = ${isSumming(summed)};`}
  ${operands.flatMap((o) => o.units.map((u) => `var ${o.name}_next${u.i} = ${fetch(o, u, 'first_k')};`)).join('\n  ')}
  for (var k0 = first_k; k0 < end_k; k0 += ${depth}u) {
    ${operands.flatMap((o) => o.units.map((u) => stage(o, u))).join('\n    ')}
    workgroupBarrier();
    let next_k = k0 + ${depth}u;
    if (next_k < end_k) {
      ${operands.flatMap((o) => o.units.map((u) => `${o.name}_next${u.i} = ${fetch(o, u, 'next_k')};`)).join('\n      ')}
    }
    ${summed === undefined ? '' : addColumn(summed, depth)}
    ${range(depth).map(step).join('\n    ')}
    workgroupBarrier();
  }
  ${range(perThread)
    .flatMap((i) =>
      range(quads).map((q) => {
        const row = `first_a + y * 4u + ${half(m, i >> 2) + (i & 3)}u`;
        return `store_quad(out_base, ${row}, first_b + x * 4u + ${half(n, q)}u, c${i}_${q});`;
      }),
    )
    .join('\n  ')}
  ${summed === undefined ? '' : storeColumn(summed)}
}`;
}

export type SummedOperand = Pick<Operand, 'name' | 'extent'>;

/** Returns WGSL of whether an invocation sums an operand; see Note [sums of an operand]. */
export function isSumming({ name, extent }: SummedOperand): string {
  const [group, end] = name === 'a' ? ['x', 'P.m'] : ['y', 'P.n'];
  return `group_id.${group} == 0u && lane < ${extent}u && first_${name} + lane < ${end}`;
}

function addColumn(operand: Operand, depth: number): string {
  const adds = range(depth).map(
    (k) => `total += ${operand.name}_block[${rowOf(operand, k)}][lane / 4u][lane % 4u];`,
  );
  return `if (is_summing) { ${adds.join(' ')} }`;
}

export function storeColumn({ name }: SummedOperand): string {
  const end = name === 'a' ? 'P.m' : 'P.n';
  return `if (is_summing) { store_sums(part * ${end} + first_${name} + lane, total); }`;
}

function operandOf(
  name: 'a' | 'b',
  spec: MatmulSpec,
  { extent, depth, threads }: { extent: number; depth: number; threads: number },
): Operand {
  const isWide = spec.wide[name];
  const isAlongK = name === 'a' ? !spec.transposeA : spec.transposeB;
  const width = isWide ? 4 : 1;
  const run = 32 / (width * byteSize(spec[name]));
  const [alongK, alongE] = isAlongK ? [width, 1] : [1, width];
  // Where storage runs along k, invocations take a run of one row, then the same run of the next
  // row, and after all rows the next run.
  const [kInRun, e, k] = isAlongK
    ? [partOf(1, run), partOf(run, extent), partOf(run * extent, depth / (width * run))]
    : [ZERO, partOf(1, extent / width), partOf(extent / width, depth)];
  const perRun = isAlongK ? run : 1;
  const count = (extent * depth) / width / threads;
  return {
    name,
    extent,
    isAlongK,
    isWide,
    row: `P.${name}_row`,
    width,
    run,
    lane: {
      k: sumText(term(kInRun.text, alongK), term(k.text, perRun * alongK)),
      e: sumText(term(e.text, alongE)),
    },
    units: range(count).map((i) => ({
      i,
      k: alongK * (kInRun.at(i) + perRun * k.at(i)),
      e: alongE * e.at(i),
    })),
  };

  /** Splits (lane + i * threads) / divisor % modulus into WGSL of the lane and a number from i. */
  function partOf(divisor: number, modulus: number): Part {
    const threadsLeft = Math.max(1, threads / divisor);
    const at = (i: number) => Math.floor((i * threads) / divisor) % modulus;
    if (threadsLeft === 1) {
      return { text: '', at };
    }
    const quotient = divisor === 1 ? 'lane' : `lane / ${divisor}u`;
    return { text: threadsLeft > modulus ? `(${quotient}) % ${modulus}u` : quotient, at };
  }
}

interface Part {
  /** WGSL of the lane's part, which is empty where that is 0 in all lanes. */
  readonly text: string;
  at(i: number): number;
}

const ZERO: Part = { text: '', at: () => 0 };

function term(text: string, factor: number): string {
  return text === '' || factor === 1 ? text : `${factor}u * (${text})`;
}

function sumText(...terms: readonly string[]): string {
  return terms.filter((text) => text !== '').join(' + ') || '0u';
}

/**
 * Whether the block has its rows in another order, because four units of 16 bits lie side by side
 * along k; see Note [loads of a block].
 */
function isReordered({ isAlongK, run, isWide }: Operand): boolean {
  return isAlongK && isWide && run === 4;
}

/** Returns the block's row for a step of k. */
function rowOf(operand: Operand, k: number): number {
  return isReordered(operand) ? 2 * (k >> 2) + (k & 1) + 8 * ((k >> 1) & 1) : k;
}

function strideOf({ extent, isAlongK }: Operand): number {
  return extent / 4 + (isAlongK ? 1 : 0);
}

/** Declares before the loop where an invocation loads from, in units, and where it stores. */
function placesOf(operand: Operand): string {
  const { name, isAlongK, row, lane, width } = operand;
  const [e, k] = [`(first_${name} + ${name}_e)`, `${name}_k`];
  const at = isAlongK ? `${e} * ${row} + ${k}` : `${k} * ${row} + ${e}`;
  const blockRow = isReordered(operand) ? `${k} / 2u` : k;
  return `let ${name}_k = ${lane.k};
  let ${name}_e = ${lane.e};
  let ${name}_from = (P.${name}_at + ${name}_base + ${at}) / ${width}u;
  let ${name}_row = ${blockRow};
  let ${name}_quad = ${name}_e / 4u;
  let ${name}_part = ${name}_e % 4u;`;
}

function fetch({ name, isAlongK, isWide, row, width }: Operand, { k, e }: Unit, k0: string) {
  const at = isAlongK ? `${e}u * ${row} + ${k0} + ${k}u` : `(${k0} + ${k}u) * ${row} + ${e}u`;
  return isWide
    ? `peek4_${name}(${name}_from + (${at}) / ${width}u)`
    : `peek_${name}(${name}_from + ${at})`;
}

/** Stores a unit into the block, or zeros for what is past the end of k. */
function stage(operand: Operand, { i, k, e }: Unit): string {
  const { name, isAlongK, isWide, width } = operand;
  const isInside = `k0 + ${name}_k + ${k}u < end_k`;
  const next = `${name}_next${i}`;
  const loaded = isWide
    ? `widen_${name}(${next}, ${isInside})`
    : `select(0.0, ${next}, ${isInside})`;
  const quad = `${name}_block[${name}_row + ROWu][${name}_quad + ${e / 4}u]`;
  const put = (q: number, value: string) =>
    `${quad.replace('ROW', String(rowOf(operand, k + q)))}${width === 4 && !isAlongK ? '' : `[${name}_part]`} = ${value};`;
  const stores =
    isWide && isAlongK ? range(4).map((q) => put(q, `value[${q}]`)) : [put(0, 'value')];
  return `{ let value = ${loaded}; ${stores.join(' ')} }`;
}

function range(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i);
}
