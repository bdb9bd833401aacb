// The tile of the matrix product for matrix units, with f16 operands and f32 sums, by WGSL's
// experimental subgroup matrices. Workgroup memory holds a block of k of both operands in the order
// of their storage. Each subgroup keeps a rectangle of matrices of sums, and loads the next block
// while it multiplies this one. Edges are as in matmul-shared: what is past the end of k becomes 0
// in the block; rows and columns past the end are computed and never stored. Sums go through
// workgroup memory to `store_quad`, which every other tile calls too.
//
// The hardware decides in which order a matrix unit adds within its k, and how it rounds there. So
// these tiles give other bits than the others do. Among themselves they give equal bits, because
// all of them pass each sum through the same units in ascending k. See docs/numerics.md.

import type { MatrixUnit } from '../../kernel/matrix-unit.js';
import type { DeviceProfile } from '../../queue/context.js';
import { isSumming, storeColumn } from './matmul-shared.js';
import type { MatmulSpec } from './matmul-tiles.js';

export interface MatrixTile {
  readonly kind: 'matrix';
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly unit: MatrixUnit;
  /** The number of subgroups over m and over n. */
  readonly subgroups: readonly [down: number, across: number];
}

/**
 * The shapes, best first. Each subgroup has at most 64 x 32 sums, which take a quarter of the
 * registers of 32 lanes.
 */
const SHAPES = [
  { m: 128, n: 128, subgroups: [2, 4] },
  { m: 128, n: 64, subgroups: [4, 2] },
  { m: 64, n: 64, subgroups: [2, 2] },
] as const;
const DEPTH = 32;
/**
 * The elements by which rows of a block are longer than needed, so that the rows of a matrix lie in
 * different banks.
 */
const PAD = 8;
const SUMS_PAD = 4;

export function matrixTiles({
  matrixUnit: unit,
  maxInvocations,
  maxWorkgroupBytes,
}: DeviceProfile): readonly MatrixTile[] {
  if (unit === undefined) {
    return [];
  }
  const tiles = SHAPES.map((shape) => ({ kind: 'matrix' as const, ...shape, k: DEPTH, unit }));
  return tiles.filter(({ m, n, subgroups: [down, across] }) => {
    const bytes = 2 * (m + n) * (DEPTH + PAD) + 4 * down * across * unit.m * (unit.n + SUMS_PAD);
    return down * across * unit.lanes <= maxInvocations && bytes <= maxWorkgroupBytes;
  });
}

export function matrixEnables({ unit }: MatrixTile): readonly string[] {
  const size = unit.asksForLanes ? ['subgroup_size_control'] : [];
  return ['f16', 'subgroups', 'chromium_experimental_subgroup_matrix', ...size];
}

/** One operand's block, in rows of the operand's storage. */
interface Operand {
  readonly name: 'a' | 'b';
  /** The rows of a or the columns of b in the tile. */
  readonly extent: number;
  /** Whether a stored row runs along k, and not along m or n. */
  readonly isAlongK: boolean;
  /** The elements that are loaded at once. */
  readonly width: 4 | 1;
  readonly columns: number;
  /** The vectors of four elements from one row of the block to the next. */
  readonly stride: number;
  /** The rows from one load of an invocation to its next, and the number of its loads. */
  readonly step: number;
  readonly count: number;
}

export function matrixBody(
  tile: MatrixTile,
  size: readonly [number, number, number],
  spec: MatmulSpec,
): string {
  const { m, n, k, unit, subgroups } = tile;
  const [threads] = size;
  const [down, across] = subgroups;
  const a = operandOf('a', spec, { extent: m, depth: k, threads });
  const b = operandOf('b', spec, { extent: n, depth: k, threads });
  const operands = [a, b];
  const summed = operands.find(({ name }) => name === spec.sums);
  // The rows and columns of a subgroup's rectangle, and the numbers of its matrices.
  const [rows, cols] = [m / down, n / across];
  const [is, js] = [range(rows / unit.m), range(cols / unit.n)];
  const sumsStride = (unit.n + SUMS_PAD) / 4;
  const sumsSize = unit.m * sumsStride;
  const left = `subgroup_matrix_left<f16, ${unit.k}, ${unit.m}>`;
  const right = `subgroup_matrix_right<f16, ${unit.n}, ${unit.k}>`;
  const sums = `subgroup_matrix_result<f32, ${unit.n}, ${unit.m}>`;
  const load = (operand: Operand, type: string, { e, kk }: { e: string; kk: number }) => {
    const { name, isAlongK, stride } = operand;
    const at = isAlongK ? `(${e}) * ${stride}u + ${kk / 4}u` : `${kk * stride}u + (${e}) / 4u`;
    const isRowMajor = isAlongK === (name === 'a');
    return `subgroupMatrixLoad<${type}, ${isRowMajor ? 'row' : 'col'}_major>(&${name}_block, ${at}, ${stride}u)`;
  };
  const step = (kk: number) => `{
      ${is.map((i) => `let a${i} = ${load(a, left, { e: `sub_row + ${i * unit.m}u`, kk })};`).join('\n      ')}
      ${js
        .map(
          (j) => `{
        let b0 = ${load(b, right, { e: `sub_col + ${j * unit.n}u`, kk })};
        ${is.map((i) => `c${i}_${j} = subgroupMatrixMultiplyAccumulate(a${i}, b0, c${i}_${j});`).join('\n        ')}
      }`,
        )
        .join('\n      ')}
    }`;
  const quads = (unit.m * unit.n) / 4;
  const finish = (i: number, j: number) => `
  subgroupMatrixStore<row_major>(&c_block, subgroup * ${sumsSize}u, c${i}_${j}, ${sumsStride}u);
  workgroupBarrier();
  for (var t = own; t < ${quads}u; t += ${unit.lanes}u) {
    let row = t / ${unit.n / 4}u;
    let quad = t % ${unit.n / 4}u;
    store_quad(out_base, first_a + sub_row + ${i * unit.m}u + row, first_b + sub_col + ${j * unit.n}u + 4u * quad,
      c_block[subgroup * ${sumsSize}u + row * ${sumsStride}u + quad]);
  }
  workgroupBarrier();`;
  return `
${operands.map((o) => `var<workgroup> ${o.name}_block: array<vec4<f16>, ${o.step * o.count * o.stride}>;`).join('\n')}
var<workgroup> c_block: array<vec4<f32>, ${down * across * sumsSize}>;
@compute @workgroup_size(${threads}) ${unit.asksForLanes ? `@subgroup_size(${unit.lanes})` : ''}
fn main(
  @builtin(workgroup_id) group_here: vec3<u32>,
  @builtin(local_invocation_index) lane: u32,
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) own: u32,
) {
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
  let sub_row = (subgroup / ${across}u) * ${rows}u;
  let sub_col = (subgroup % ${across}u) * ${cols}u;
  ${operands.map(placesOf).join('\n  ')}
  ${is.flatMap((i) => js.map((j) => `var c${i}_${j} = ${sums}();`)).join('\n  ')}
  ${operands.flatMap((o) => range(o.count).map((i) => `var ${o.name}_next${i} = ${fetch(o, i, 'first_k')};`)).join('\n  ')}
  ${summed === undefined ? '' : `var total = 0.0;\n  let is_summing = ${isSumming(summed)};`}
  for (var k0 = first_k; k0 < end_k; k0 += ${k}u) {
    ${operands.flatMap((o) => range(o.count).map((i) => stage(o, i))).join('\n    ')}
    workgroupBarrier();
    let next_k = k0 + ${k}u;
    if (next_k < end_k) {
      ${operands.flatMap((o) => range(o.count).map((i) => `${o.name}_next${i} = ${fetch(o, i, 'next_k')};`)).join('\n      ')}
    }
    ${summed === undefined ? '' : addColumn(summed, k)}
    ${range(k / unit.k)
      .map((q) => step(q * unit.k))
      .join('\n    ')}
    workgroupBarrier();
  }
  ${is.flatMap((i) => js.map((j) => finish(i, j))).join('\n')}
  ${summed === undefined ? '' : storeColumn(summed)}
}`;
}

function operandOf(
  name: 'a' | 'b',
  spec: MatmulSpec,
  { extent, depth, threads }: { extent: number; depth: number; threads: number },
): Operand {
  const isAlongK = name === 'a' ? !spec.transposeA : spec.transposeB;
  const [rows, columns] = isAlongK ? [extent, depth] : [depth, extent];
  const width = spec.wide[name] ? 4 : 1;
  const step = threads / (columns / width);
  return {
    name,
    extent,
    isAlongK,
    width,
    columns,
    stride: (columns + PAD) / 4,
    step,
    count: rows / step,
  };
}

/** Adds up a column of a block as matmul-shared does, so that the sums have the same bits. */
function addColumn({ name, isAlongK, stride }: Operand, depth: number): string {
  const slot = (k: number) =>
    isAlongK
      ? `${name}_block[lane * ${stride}u + ${k >> 2}u][${k & 3}]`
      : `${name}_block[${k * stride}u + lane / 4u][lane % 4u]`;
  const adds = range(depth).map((k) => `total += f32(${slot(k)});`);
  return `if (is_summing) { ${adds.join(' ')} }`;
}

/** Declares before the loop which row and column of a block an invocation loads first. */
function placesOf({ name, isAlongK, width, columns }: Operand): string {
  const [row, col] = [`${name}_row`, `${name}_col`];
  const [e, k] = isAlongK ? [row, col] : [col, row];
  const [across, down] = isAlongK ? [k, `(first_${name} + ${e})`] : [`first_${name} + ${e}`, k];
  return `let ${row} = lane / ${columns / width}u;
  let ${col} = ${width}u * (lane % ${columns / width}u);
  let ${name}_from = (P.${name}_at + ${name}_base + ${down} * P.${name}_row + ${across}) / ${width}u;`;
}

function fetch({ name, isAlongK, width, step }: Operand, i: number, k0: string): string {
  const row = `P.${name}_row`;
  const at = isAlongK ? `${i * step}u * ${row} + ${k0}` : `(${k0} + ${i * step}u) * ${row}`;
  const peek = width === 4 ? `peek4_${name}` : `peek_${name}`;
  return `${peek}(${name}_from + (${at}) / ${width}u)`;
}

/** Stores what was loaded into the block, and zeros for what is past the end of k. */
function stage({ name, isAlongK, width, stride, step }: Operand, i: number): string {
  const k = isAlongK ? `${name}_col` : `${name}_row + ${i * step}u`;
  const isInside = `k0 + ${k} < end_k`;
  const next = `${name}_next${i}`;
  const slot = `${name}_block[(${name}_row + ${i * step}u) * ${stride}u + ${name}_col / 4u]`;
  return width === 4
    ? `${slot} = select(vec4<f16>(), ${next}, ${isInside});`
    : `${slot}[${name}_col % 4u] = f16(select(0.0, ${next}, ${isInside}));`;
}

function range(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i);
}
