// The tile of the matrix product for hardware: workgroup memory holds a block of k of both operands,
// each invocation keeps a square of outputs in registers, and the next block is on its way while this
// one is multiplied.
//
// Note [loads of a block]: who loads what follows the operand's storage, so that a warp's loads are
// whole sectors of 32 bytes. Where storage runs along m or n, neighbors load neighboring vectors and
// store them as they are. Where it runs along k, two neighbors load the eight elements of one row and
// store them one by one, turned; rows of the block are then longer by four, so that the stores of a
// warp meet each bank once. The test matmul-static reads these functions from the text and counts.

import type { MatmulSpec, SharedTile } from './matmul-tiles.js';

interface Operand {
  readonly name: 'a' | 'b';
  /** Rows of a or columns of b in the tile, and the parameter that ends them. */
  readonly extent: number;
  readonly end: 'P.m' | 'P.n';
  readonly isAlongK: boolean;
  readonly isWide: boolean;
}

export function sharedBody(
  tile: SharedTile,
  size: readonly [number, number, number],
  spec: MatmulSpec,
): string {
  const { m, n, k, perThread } = tile;
  const threads = size[0];
  const quads = perThread / 4;
  const a: Operand = {
    name: 'a',
    extent: m,
    end: 'P.m',
    isAlongK: !spec.transposeA,
    isWide: spec.wide.a,
  };
  const b: Operand = {
    name: 'b',
    extent: n,
    end: 'P.n',
    isAlongK: spec.transposeB,
    isWide: spec.wide.b,
  };
  const operands = [a, b];
  const columns = n / perThread;
  const half = (extent: number, q: number) => (q * extent) / quads;
  const sums = range(perThread).flatMap((i) => range(quads).map((q) => `c${i}_${q}`));
  const loads = (from: string) =>
    operands
      .flatMap((o) =>
        vectors(o, k, threads).map((v) => `${o.name}_next${v} = ${fetch(o, v, from)};`),
      )
      .join('\n    ');
  const step = (kk: number) => `{
      ${range(quads)
        .map(
          (q) => `let a${q} = a_block[${kk}][y + ${half(m / 4, q)}u];
      let b${q} = b_block[${kk}][x + ${half(n / 4, q)}u];`,
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
  return `
${operands.map((o) => blockOf(o, k, threads)).join('\n')}
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
  ${sums.map((c) => `var ${c} = vec4<f32>();`).join('\n  ')}
  ${operands.flatMap((o) => vectors(o, k, threads).map((v) => `var ${o.name}_next${v} = ${fetch(o, v, 'first_k')};`)).join('\n  ')}
  for (var k0 = first_k; k0 < end_k; k0 += ${k}u) {
    ${operands.flatMap((o) => vectors(o, k, threads).map((v) => `${o.name}_stage(lane, ${v}u, ${o.name}_next${v});`)).join('\n    ')}
    workgroupBarrier();
    ${loads(`k0 + ${k}u`)}
    ${range(k).map(step).join('\n    ')}
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
}`;
}

/**
 * `a_unit` numbers what an invocation loads as its v-th vector: the vector, or where the operand is not
 * wide its q-th element. `a_k` and `a_e` say where that lies in the block.
 */
function blockOf(operand: Operand, k: number, threads: number): string {
  const { name, extent, end, isAlongK, isWide } = operand;
  const stride = extent / 4 + (isAlongK ? 1 : 0);
  // Units side by side along storage before the next row: two vectors, or eight elements, are a sector.
  const run = isWide ? 2 : 8;
  const wideK = isWide ? 4 : 1;
  const wideE = isWide && !isAlongK ? 4 : 1;
  const places = isAlongK
    ? `fn ${name}_k(u: u32) -> u32 { return ${wideK}u * (u % ${run}u + ${run}u * (u / ${run * extent}u)); }
fn ${name}_e(u: u32) -> u32 { return (u / ${run}u) % ${extent}u; }`
    : `fn ${name}_k(u: u32) -> u32 { return u / ${extent / wideE}u; }
fn ${name}_e(u: u32) -> u32 { return ${wideE}u * (u % ${extent / wideE}u); }`;
  const unit = isWide ? `lane + v * ${threads}u` : `lane + (4u * v + q) * ${threads}u`;
  const put = (kk: string, e: string, value: string) =>
    `${name}_block[${kk}][(${e}) >> 2u][(${e}) & 3u] = ${value};`;
  const element = (q: number) => {
    const u = `let u${q} = ${name}_unit(lane, v, ${q}u);`;
    return `${u} ${put(`${name}_k(u${q})`, `${name}_e(u${q})`, `value[${q}]`)}`;
  };
  const stage = !isWide
    ? range(4).map(element).join('\n  ')
    : `let u = ${name}_unit(lane, v, 0u);
  let kk = ${name}_k(u);
  let e = ${name}_e(u);
  ${
    isAlongK
      ? range(4)
          .map((i) => put(`kk + ${i}u`, 'e', `value[${i}]`))
          .join('\n  ')
      : `${name}_block[kk][e >> 2u] = value;`
  }`;
  const load = (
    q: number,
    type: string,
    loader: string,
  ) => `let u${q} = ${name}_unit(lane, v, ${q}u);
  let e${q} = first + ${name}_e(u${q});
  let k${q} = from_k + ${name}_k(u${q});
  if (e${q} < ${end} && k${q} < end_k) { value${type} = ${loader}(base + ${name}_at(${name === 'a' ? `e${q}, k${q}` : `k${q}, e${q}`})); }`;
  return `
var<workgroup> ${name}_block: array<array<vec4<f32>, ${stride}>, ${k}>;
fn ${name}_unit(lane: u32, v: u32, q: u32) -> u32 { return ${unit}; }
${places}
fn ${name}_fetch(base: u32, first: u32, lane: u32, v: u32, from_k: u32, end_k: u32) -> vec4<f32> {
  var value = vec4<f32>();
  ${
    isWide
      ? load(0, '', `load4_${name}`)
      : range(4)
          .map((q) => load(q, `[${q}]`, `load_${name}`))
          .join('\n  ')
  }
  return value;
}
fn ${name}_stage(lane: u32, v: u32, value: vec4<f32>) {
  ${stage}
}`;
}

function vectors({ extent }: Operand, k: number, threads: number): number[] {
  return range((extent * k) / 4 / threads);
}

function fetch({ name }: Operand, v: number, k0: string): string {
  return `${name}_fetch(${name}_base, first_${name}, lane, ${v}u, ${k0}, end_k)`;
}

function range(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i);
}
