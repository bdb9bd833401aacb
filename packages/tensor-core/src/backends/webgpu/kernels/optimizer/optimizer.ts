// Adam, AdamW and SGD over segments of flat views. The host cuts segments into chunks, once per
// array of segments. A workgroup takes one chunk, all of whose elements have the same parameter
// group.

import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import type { AdamGroup, Segment, SgdGroup } from '../../../../kernel-calls/optimizer.js';
import type { View } from '../../../../view.js';
import { type Binding, defineKernel, linearGrid } from '../../kernel/kernel.js';
import { mainHead } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { eachRange } from '../../queue/row-blocks.js';

const GROUP_LANES = 256;
/** The elements of a chunk: 16 for each lane of a workgroup. */
const CHUNK = 16 * GROUP_LANES;
const GROUP_FLOATS = 12;

interface Step {
  readonly name: string;
  /** The parameter and the optimizer's state, which are updated in place. */
  readonly states: Readonly<Record<string, View>>;
  readonly grad: View;
  readonly gradScale: View | undefined;
  readonly segments: readonly Segment[];
  /** The values of each group, GROUP_FLOATS numbers apart. */
  readonly groups: Float32Array;
  /** WGSL that updates element i from its group G and `gradient(i)`. */
  readonly body: string;
}

/** A range of elements that bind at once. */
interface Window {
  readonly parts: readonly View[];
  readonly start: number;
  readonly length: number;
}

export function adam(ctx: KernelContext, call: KernelCalls['adam']): void {
  const { param, grad, expAvg, expAvgSq, gradScale, groups, segments } = call;
  runStep(ctx, {
    name: 'adam',
    states: { param, exp_avg: expAvg, exp_avg_sq: expAvgSq },
    grad,
    gradScale,
    segments,
    groups: packGroups(groups, adamValues),
    body: `
    let p = load_param(i) * G[0];
    let g = decayed(i, p, G[1]);
    let m = fma(G[2], load_exp_avg(i), G[3] * g);
    let v = fma(G[4], load_exp_avg_sq(i), G[5] * g * g);
    store_param(i, p - G[8] * m / fma(sqrt(v), G[6], G[7]));
    store_exp_avg(i, m);
    store_exp_avg_sq(i, v);`,
  });
}

export function sgd(ctx: KernelContext, call: KernelCalls['sgd']): void {
  const { param, grad, momentumBuffer, gradScale, groups, segments } = call;
  const hasBuffer = momentumBuffer !== undefined;
  const momentum = `
    var step = g;
    if (G[2] != 0.0) {
      let moved = select(fma(G[2], load_momentum(i), G[3] * g), g, G[5] == 1.0);
      store_momentum(i, moved);
      step = select(moved, fma(G[2], moved, g), G[4] == 1.0);
    }`;
  runStep(ctx, {
    name: 'sgd',
    states: hasBuffer ? { param, momentum: momentumBuffer } : { param },
    grad,
    gradScale,
    segments,
    groups: packGroups(groups, sgdValues),
    body: `
    let p = load_param(i);
    let g = decayed(i, p, G[1]);
    ${hasBuffer ? momentum : 'let step = g;'}
    store_param(i, fma(-G[0], step, p));`,
  });
}

function adamValues(group: AdamGroup): number[] {
  const { lr, beta1, beta2, eps, weightDecay, biasCorrection1, biasCorrection2 } = group;
  return [
    group.decoupled ? 1 - lr * weightDecay : 1,
    group.decoupled ? 0 : weightDecay,
    beta1,
    1 - beta1,
    beta2,
    1 - beta2,
    1 / Math.sqrt(biasCorrection2),
    eps,
    lr / biasCorrection1,
  ];
}

function sgdValues(group: SgdGroup): number[] {
  const { lr, momentum, dampening, weightDecay, nesterov, isFirstStep } = group;
  return [lr, weightDecay, momentum, 1 - dampening, nesterov ? 1 : 0, isFirstStep ? 1 : 0];
}

function packGroups<G>(groups: readonly G[], values: (group: G) => number[]): Float32Array {
  const packed = new Float32Array(groups.length * GROUP_FLOATS);
  for (const [i, group] of groups.entries()) {
    packed.set(values(group), i * GROUP_FLOATS);
  }
  return packed;
}

function runStep(ctx: KernelContext, step: Step): void {
  const { name, states, grad, gradScale, segments } = step;
  const names = Object.keys(states);
  const key = `${name} ${names.length} ${grad.dtype} ${gradScale === undefined ? '' : 'scaled'}`;
  const compiled = ctx.kernel(key, () =>
    defineKernel({
      label: key,
      bindings: [
        ...names.map((n): Binding => ({ name: n, type: 'f32', access: 'read_write' })),
        { name: 'grad', type: grad.dtype, access: 'read' },
        { name: 'chunks', type: 'raw', access: 'read' },
        { name: 'groups', type: 'f32', access: 'read' },
        ...(gradScale === undefined
          ? []
          : [{ name: 'scale', type: 'f32', access: 'read' } as const]),
      ],
      params: { first_chunk: 'u32', num_chunks: 'u32', window_start: 'u32' },
      workgroupSize: [GROUP_LANES, 1, 1],
      body: `
fn gradient(i: u32) -> f32 { return load_grad(i)${gradScale === undefined ? '' : ' * load_scale(0u)'}; }
// Without decay the parameter must not matter: 0 times a NaN in it is not 0.
fn decayed(i: u32, p: f32, decay: f32) -> f32 {
  let g = gradient(i);
  return select(fma(p, decay, g), g, decay == 0.0);
}
${mainHead([GROUP_LANES, 1, 1])}
  if (group >= P.num_chunks) { return; }
  let at = 3u * (P.first_chunk + group);
  let start = load_chunks(at) - P.window_start;
  let length = load_chunks(at + 1u);
  let first_value = ${GROUP_FLOATS}u * load_chunks(at + 2u);
  var G: array<f32, 9>;
  for (var q = 0u; q < 9u; q++) { G[q] = load_groups(first_value + q); }
  for (var j = lane; j < length; j += ${GROUP_LANES}u) {
    let i = start + j;
    ${step.body}
  }
}`,
    }),
  );
  const views = [...names.map((n) => states[n]!), grad];
  const windows: Window[] = [];
  eachRange(ctx, views, name, (parts, start, length) => windows.push({ parts, start, length }));
  const table = ctx.table(segments, () => cutChunks(segments, windows));
  ctx.withScratch('f32', step.groups.length, (groups) => {
    ctx.upload(groups, new Uint8Array(step.groups.buffer));
    windows.forEach(({ parts, start }, i) => {
      const numChunks = table.ends[i]! - (table.ends[i - 1] ?? 0);
      if (numChunks === 0) {
        return;
      }
      ctx.dispatch(compiled, {
        params: {
          first_chunk: table.ends[i - 1] ?? 0,
          num_chunks: numChunks,
          window_start: start,
        },
        views: [...parts, table.view, groups, ...(gradScale === undefined ? [] : [gradScale])],
        grid: linearGrid(numChunks),
      });
    });
  });
}

/**
 * Returns [start, length, group] of chunks that cross no border of segments or windows, and the
 * number of chunks up to the end of each window. A segment of 5,000 elements in group 1 gives [0,
 * 4096, 1] and [4096, 904, 1].
 */
function cutChunks(
  segments: readonly Segment[],
  windows: readonly Window[],
): { words: Uint32Array; ends: number[] } {
  const words: number[] = [];
  const ends: number[] = [];
  for (const window of windows) {
    const windowEnd = window.start + window.length;
    for (const { start, length, group } of segments) {
      const end = Math.min(start + length, windowEnd);
      for (let at = Math.max(start, window.start); at < end; at += CHUNK) {
        words.push(at, Math.min(CHUNK, end - at), group);
      }
    }
    ends.push(words.length / 3);
  }
  return { words: Uint32Array.from(words), ends };
}
