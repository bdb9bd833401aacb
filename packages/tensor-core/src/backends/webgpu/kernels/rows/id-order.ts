// The order of ids along lines: their places sorted by id, and among equal ids by place. Gradients
// that sum by id go through it, since atomic additions would sum in any order. The ids [7, 2, 7]
// have the order [1, 0, 2].

import { floorLog2 } from '@shardweave/dtypes/float64';
import type { View } from '../../../../view.js';
import { FLOPS_PER_BYTE } from '../../kernel/cut-grid.js';
import { defineKernel, type Kernel } from '../../kernel/kernel.js';
import { LOAD_NS, WAIT_NS } from '../../kernel/lane-time.js';
import { INTEGER_DIVIDE } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { ELEMENTWISE_SIZE, elementwiseGrid, elementwiseMain } from '../elementwise/elementwise.js';

/** Ids [outer, count, inner]: outer * inner lines of `count` ids, `inner` elements apart. */
export interface IdLines {
  readonly ids: View;
  readonly outer: number;
  readonly count: number;
  readonly inner: number;
}

/**
 * The length of the first sorted runs, a power of two, in which each id counts the ids that come
 * before it. Longer runs are merged from these. On lavapipe, lengths from 32 to 256 cost the same
 * within a third.
 */
const RUN = 128;

/**
 * WGSL `line_of(e)` for element e of an order: its line's number, where the line begins among
 * orders and where among ids.
 */
export const LINE_OF = `${INTEGER_DIVIDE}
struct Line { number: u32, start: u32, ids: u32 }
fn line_of(e: u32) -> Line {
  let number = divide(e, P.count);
  let o = divide(number, P.inner);
  return Line(number, number * P.count, (o * P.count) * P.inner + number - o * P.inner);
}`;

/**
 * Runs `body` with the places of all ids in their lines, sorted line by line: [outer * inner,
 * count]. It is a merge sort in which each element computes its own rank.
 */
export function withIdOrder(
  ctx: KernelContext,
  { ids, outer, count, inner }: IdLines,
  body: (order: View) => void,
): void {
  const words = outer * count * inner;
  const sort = (
    { name, rank, steps, stepNs }: Sort,
    [from, to]: readonly [View, View],
    run: number,
  ) => {
    const key = `id order ${name}`;
    const compiled = ctx.kernel(key, () => sortKernel(key, rank));
    const { grid, perLane } = elementwiseGrid(ctx, words);
    ctx.dispatch(compiled, {
      params: { run, count, inner, words, per_lane: perLane },
      views: [ids, from, to],
      grid,
      flops: FLOPS_PER_BYTE * WORD_BYTES * words * steps(run),
      laneNs: perLane * steps(run) * stepNs,
    });
  };
  ctx.withScratch('u32', words, (first) => {
    sort(RUNS, [ids, first], RUN);
    if (count <= RUN) {
      body(first);
      return;
    }
    ctx.withScratch('u32', words, (second) => {
      let [from, to] = [first, second];
      for (let run = RUN; run < count; run *= 2) {
        sort(MERGE, [from, to], run);
        [from, to] = [to, from];
      }
      body(from);
    });
  });
}

const WORD_BYTES = 4;

interface Sort {
  readonly name: string;
  readonly rank: string;
  /** The loads of an element, and the time of each. */
  steps(run: number): number;
  readonly stepNs: number;
}

/** Puts a place at its rank in its run: after smaller ids, and after equal ones before it. */
const RUNS: Sort = {
  name: 'runs',
  rank: `
fn sort(e: u32) {
  let line = line_of(e);
  let i = e - line.start;
  let id = load_ids(line.ids + i * P.inner);
  let start = i & ~(P.run - 1u);
  var rank = 0u;
  for (var j = start; j < min(start + P.run, P.count); j++) {
    let other = load_ids(line.ids + j * P.inner);
    rank += select(0u, 1u, other < id || (other == id && j < i));
  }
  store_out(line.start + start + rank, i);
}`,
  steps: (run) => run,
  stepNs: LOAD_NS,
};

/**
 * Merges two sorted runs: a place goes after those of its own run before it, and after those of the
 * other run that come before it, which a binary search counts.
 */
const MERGE: Sort = {
  name: 'merge',
  rank: `
fn sort(e: u32) {
  let line = line_of(e);
  let i = load_order(e);
  let id = load_ids(line.ids + i * P.inner);
  let k = e - line.start;
  let own = k & ~(P.run - 1u);
  let is_second = (k & P.run) != 0u;
  let other = select(own + P.run, own - P.run, is_second);
  var low = min(other, P.count);
  var high = min(other + P.run, P.count);
  while (low < high) {
    let middle = (low + high) / 2u;
    let theirs = load_ids(line.ids + load_order(line.start + middle) * P.inner);
    if (theirs < id || (theirs == id && is_second)) { low = middle + 1u; } else { high = middle; }
  }
  let before = low - min(other, P.count);
  store_out(line.start + min(own, other) + (k - own) + before, i);
}`,
  steps: (run) => 2 * (floorLog2(run) + 1),
  stepNs: WAIT_NS,
};

function sortKernel(label: string, sort: string): Kernel {
  return defineKernel({
    label,
    bindings: [
      { name: 'ids', type: 'raw', access: 'read' },
      { name: 'order', type: 'raw', access: 'read' },
      { name: 'out', type: 'raw', access: 'read_write' },
    ],
    params: { run: 'u32', count: 'u32', inner: 'u32', words: 'u32', per_lane: 'u32' },
    workgroupSize: ELEMENTWISE_SIZE,
    body: `${LINE_OF}
${sort}
${elementwiseMain('sort(u);')}`,
  });
}
