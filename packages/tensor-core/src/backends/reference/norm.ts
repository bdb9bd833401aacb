// Norms of gradients. Blocks are summed in float64 and rounded once. What follows is f32 in the
// order that normNodes states, because its bits are part of the specification.

import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { NORM_BLOCK_ELEMENTS, NORM_NODE_ELEMENTS } from '../../kernel-calls/norm.js';
import type { Open } from './elements.js';

const SMALLEST_NORMAL = 2 ** -126;
/** PyTorch's guard against a division by zero. */
const EPSILON = Math.fround(1e-6);

export function normNodes(call: KernelCalls['normNodes'], open: Open): void {
  const { spans, power } = call;
  const x = open(call.x);
  const out = open(call.out);
  const blockOf = (start: number, end: number) => {
    let block = 0;
    for (let i = start; i < end; i++) {
      const magnitude = Math.abs(x.get(i));
      block = power === Infinity ? Math.max(block, magnitude) : block + magnitude ** power;
    }
    const rounded = Math.fround(block);
    return rounded < SMALLEST_NORMAL ? 0 : rounded;
  };
  let node = 0;
  for (const { start, length } of spans) {
    for (let at = 0; at < length; at += NORM_NODE_ELEMENTS) {
      const end = Math.min(at + NORM_NODE_ELEMENTS, length);
      const blocks: number[] = [];
      for (let block = at; block < end; block += NORM_BLOCK_ELEMENTS) {
        blocks.push(blockOf(start + block, start + Math.min(block + NORM_BLOCK_ELEMENTS, end)));
      }
      out.set(node++, joined(blocks, power === Infinity));
    }
  }
}

export function normTree({ x, out, spans, isMax }: KernelCalls['normTree'], open: Open): void {
  const from = open(x);
  const to = open(out);
  spans.forEach(({ start, length }, i) => {
    const values = Array.from({ length }, (_, k) => from.get(start + k));
    to.set(i, joined(values, isMax));
  });
}

export function clipFactor(call: KernelCalls['clipFactor'], open: Open): void {
  const { maxNorm, unscale } = call;
  const root = Math.fround(Math.sqrt(open(call.squares).get(0)));
  const norm = Math.fround(root * Math.fround(unscale));
  const bound = maxNorm < SMALLEST_NORMAL ? 0 : Math.fround(maxNorm);
  const ratio = bound / Math.fround(norm + EPSILON);
  const factor = maxNorm === Infinity ? 1 : Math.min(1, ratio < SMALLEST_NORMAL ? 0 : ratio);
  open(call.norm).set(0, norm);
  open(call.scale).set(0, Math.fround(factor) * Math.fround(unscale));
}

/** Joins neighbors until one is left. The last of an odd number goes up as it is. */
function joined(values: readonly number[], isMax: boolean): number {
  if (values.length <= 1) {
    return values[0] ?? 0;
  }
  const next: number[] = [];
  for (let i = 0; i < values.length; i += 2) {
    const [left, right] = [values[i]!, values[i + 1] ?? 0];
    next.push(isMax ? Math.max(left, right) : Math.fround(left + right));
  }
  return joined(next, isMax);
}
