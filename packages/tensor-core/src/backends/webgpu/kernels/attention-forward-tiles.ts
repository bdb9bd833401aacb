// WGSL of attention's results: rows are queries, columns keys. See attention-tile.ts.

import { defineKernel, type Kernel } from '../kernel.js';
import { pairHelpers } from './attention-pairs.js';
import {
  type AttentionSpec,
  attentionInputs,
  HEAD_BASES,
  head,
  KEY_COLUMNS,
  keyBlocks,
  keyOf,
  lines,
  PARAMS,
  range,
  Shape,
} from './attention-tile.js';

export function forwardKernel(spec: AttentionSpec): { readonly key: string; build(): Kernel } {
  const key = keyOf('attention', spec);
  return { key, build: () => buildForward(key, spec) };
}

function buildForward(label: string, spec: AttentionSpec): Kernel {
  const shape = new Shape(spec);
  const { tile } = spec;
  const { vectors, columns } = shape;
  const outAt = (row: string) => `((batch * P.queries + ${row}) * P.heads + head) * P.dim`;
  return defineKernel({
    label,
    bindings: [
      ...attentionInputs(spec, ['q', 'k', 'v']),
      { name: 'out', type: spec.dtype, access: 'read_write' },
      { name: 'stats', type: 'f32', access: 'read_write' },
    ],
    params: PARAMS,
    isCuttable: true,
    workgroupSize: [tile.lanes, 1, 1],
    body: `${pairHelpers(spec)}
var<workgroup> left: array<vec4<f32>, ${shape.width * vectors}>;
var<workgroup> weights: array<vec4<f32>, ${columns * vectors}>;
var<workgroup> parts: array<vec4<f32>, ${tile.lanes * vectors}>;
var<workgroup> row_most: array<f32, ${tile.rows}>;
var<workgroup> row_factor: array<f32, ${tile.rows}>;
var<workgroup> lanes_seen: array<u32, ${tile.lanes}>;
${head(spec)}${HEAD_BASES}
  ${shape.loadRows('left', (row, d) => `P.scale * load_q(q_base + ${row} * P.q_row + ${d})`, 'P.queries')}
  if (lane < ${tile.rows}u) { row_most[lane] = -inf(); }
  ${shape.zeros('o', shape.dims)}
  ${lines(range(vectors).map((r) => `var sum${r} = vec4<f32>();`))}
  // One bit a row.
  var seen = 0u;
  workgroupBarrier();
  ${keyBlocks(spec, shape)}
    ${shape.scores('left', 'weights', KEY_COLUMNS)}
    for (var r = 0u; r < ${vectors}u; r++) {
      var most = vec4<f32>(-inf());
      for (var j = 0u; j < ${tile.perLane}u; j++) {
        let column = lane + j * ${tile.lanes}u;
        var value = weights[column * ${vectors}u + r];
        if (is_partial) {
          for (var c = 0u; c < 4u; c++) {
            let pair = scored(value[c], batch, head, row0 + 4u * r + c, first + column);
            value[c] = pair.x;
            seen |= u32(pair.y) << (4u * r + c);
          }
          weights[column * ${vectors}u + r] = value;
        }
        for (var c = 0u; c < 4u; c++) { most[c] = larger(most[c], value[c]); }
      }
      parts[lane * ${vectors}u + r] = most;
    }
    if (!is_partial) { seen = ${2 ** tile.rows - 1}u; }
    workgroupBarrier();
    if (lane < ${tile.rows}u) {
      let before = row_most[lane];
      var most = before;
      for (var i = 0u; i < ${tile.lanes}u; i++) { most = larger(most, parts[i * ${vectors}u + lane / 4u][lane % 4u]); }
      row_most[lane] = most;
      row_factor[lane] = select(exp_of(before - most), 1.0, before == most);
    }
    workgroupBarrier();
    ${lines(range(vectors).map((r) => rescale(r, shape)))}
    workgroupBarrier();
    ${shape.sums([{ into: 'o', weights: 'weights', at: 'v_base + (first + c) * P.v_row', load: 'load_v' }], { marks: 'weights', count: 'count' })}
    workgroupBarrier();
  }
  ${lines(range(vectors).map((r) => `parts[lane * ${vectors}u + ${r}u] = sum${r};`))}
  lanes_seen[lane] = seen;
  workgroupBarrier();
  if (lane < ${tile.rows}u) {
    var total = 0.0;
    var any_seen = 0u;
    for (var i = 0u; i < ${tile.lanes}u; i++) {
      total += parts[i * ${vectors}u + lane / 4u][lane % 4u];
      any_seen |= lanes_seen[i];
    }
    let most = row_most[lane];
    let sees = ((any_seen >> lane) & 1u) == 1u;
    // A row whose scores are all -infinity has no largest one to take out.
    let is_lost = most == -inf();
    row_factor[lane] = select(0.0, select(1.0 / total, nan(), is_lost), sees);
    if (row0 + lane < P.queries) {
      let lse = select(-inf(), select(most + log_of(total), nan(), is_lost), sees);
      store_stats(((batch + P.first_batch) * P.heads + head) * P.queries + row0 + lane, lse);
    }
  }
  workgroupBarrier();
  ${shape.store('o', { dtype: spec.dtype, at: outAt, count: 'P.queries', factor: (r, c) => `row_factor[${4 * r + c}u]`, to: 'out' })}
}`,
  });
}

/**
 * Weights of four rows from their scores, and what was summed before brought to the new maximum.
 */
function rescale(r: number, { vectors, tile, dims }: Shape): string {
  const four = (name: string) =>
    `vec4<f32>(${range(4)
      .map((c) => `${name}[${4 * r + c}u]`)
      .join(', ')})`;
  return `{
      let factor = ${four('row_factor')};
      let most = ${four('row_most')};
      let shift = select(most, vec4<f32>(), most == vec4<f32>(-inf()));
      sum${r} *= factor;
      ${range(dims)
        .map((i) => `o${i}_${r} *= factor;`)
        .join(' ')}
      for (var j = 0u; j < ${tile.perLane}u; j++) {
        let column = lane + j * ${tile.lanes}u;
        var value = weights[column * ${vectors}u + ${r}u];
        for (var c = 0u; c < 4u; c++) {
          let is_hidden = value[c] == -inf();
          let weight = select(exp_of(value[c] - shift[c]), 0.0, is_hidden);
          sum${r}[c] += weight;
          value[c] = select(weight * kept(batch, head, row0 + ${4 * r}u + c, first + column), -1.0, is_hidden && is_partial);
        }
        weights[column * ${vectors}u + ${r}u] = value;
      }
    }`;
}
