// The tile of the matrix product for hardware: workgroup memory holds a block of k of both
// operands, each invocation keeps a square of outputs in registers, and the next block is on its
// way while this one is multiplied.
//
// Note [loads of a block]: who loads what follows the operand's storage, so that a warp's loads are
// whole sectors of 32 bytes. Where storage runs along m or n, neighbors load neighboring vectors
// and store them as they are. Where it runs along k, as many neighbors as share a sector load from
// one row and store element by element, turned; rows of the block are then longer by four and lie
// in an order of their own, so that the stores of a warp meet each bank once. The test
// matmul-static reads these expressions from the text and counts.
//
// Note [no guards in the loop]: rows and columns past the end are loaded all the same, for WGSL
// keeps loads within the binding and what is made of them is never stored; only what is past the
// end of k becomes 0, on its way into the block, where nothing waits for it. Indices of the block
// are sums, quotients and remainders of the invocation's number and constants: compilers prove
// those to be within it, and drop the clamps that they give to all others.
//
// Note [sums of an operand]: the groups of the first row of tiles, or of the first column, add up
// the block of b, or of a, that lies in workgroup memory: one lane for each of its columns, by
// ascending k, so that all tiles give equal bits.

import { byteSize } from '@shardweave/dtypes';
import type { MatmulSpec, SharedTile } from './matmul-tiles.js';

/** One operand of a tile: what its invocations load and where they put it. */
interface Operand {
  readonly name: 'a' | 'b';
  /** Rows of a or columns of b in the tile. */
  readonly extent: number;
  readonly isAlongK: boolean;
  readonly isWide: boolean;
  /** Where element e of k lies in the tile's storage: the parameter that is a row's length. */
  readonly row: 'P.a_row' | 'P.b_row';
  /** Elements of one unit that is loaded: a vector's or one. */
  readonly width: number;
  /** Units side by side along k that are a sector. */
  readonly run: number;
  readonly units: readonly Unit[];
  /** Where the first unit of an invocation begins in the tile: along k, and along m or n. */
  readonly lane: { readonly k: string; readonly e: string };
}

/** How far the i-th unit of an invocation is from its first. */
interface Unit {
  readonly i: number;
  readonly k: number;
  readonly e: number;
}

/** Steps of k that are in workgroup memory at once: of 16 bits a sector is 16 of them. */
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

/** Whether an invocation adds up a column of a block; see Note [sums of an operand]. */
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
  // Along k: a run of one row, then the same of the next row, and after all rows the next run.
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

  /** (lane + i * threads) / divisor % modulus, as what follows from the lane and what from i. */
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
  /** Empty where it is 0 in all lanes. */
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

/** The block's row for a step of k; see Note [loads of a block]. */
function rowOf({ isAlongK, run, isWide }: Operand, k: number): number {
  return isAlongK && isWide && run === 4 ? 2 * (k >> 2) + (k & 1) + 8 * ((k >> 1) & 1) : k;
}

function strideOf({ extent, isAlongK }: Operand): number {
  return extent / 4 + (isAlongK ? 1 : 0);
}

/**
 * Constants of the loop: where an invocation loads from, in units, and where in the block it
 * stores.
 */
function placesOf(operand: Operand): string {
  const { name, isAlongK, isWide, row, lane, width } = operand;
  const [e, k] = [`(first_${name} + ${name}_e)`, `${name}_k`];
  const at = isAlongK ? `${e} * ${row} + ${k}` : `${k} * ${row} + ${e}`;
  const blockRow = isAlongK && isWide && operand.run === 4 ? `${k} / 2u` : k;
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

/** Stores a unit into the block, zeros for what is past the end of k. */
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
