// Comparisons, and the choice between two operands by a condition, both through strides.

import type { CompareKind } from '../../kernel-calls/compare.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../kind-table.js';
import type { Open } from './elements.js';
import { forEachIndex } from './strided.js';

const HOLDS: Readonly<Record<CompareKind, (a: number, b: number) => boolean>> = {
  eq: (a, b) => a === b,
  ne: (a, b) => a !== b,
  lt: (a, b) => a < b,
  le: (a, b) => a <= b,
  gt: (a, b) => a > b,
  ge: (a, b) => a >= b,
};

export function compare(call: KernelCalls['compare'], open: Open): void {
  const a = open(call.a);
  const b = open(call.b);
  const out = open(call.out);
  const holds = ofKind('compare', HOLDS, call.kind);
  forEachIndex(call.shape, [call.aStrides, call.bStrides], (position, [aOffset, bOffset]) => {
    out.set(position, holds(a.get(aOffset!), b.get(bOffset!)) ? 1 : 0);
  });
}

export function where(call: KernelCalls['where'], open: Open): void {
  const condition = open(call.condition);
  const a = open(call.a);
  const b = open(call.b);
  const out = open(call.out);
  const strides = [call.conditionStrides, call.aStrides, call.bStrides];
  forEachIndex(call.shape, strides, (position, [at, aOffset, bOffset]) => {
    out.set(position, condition.get(at!) !== 0 ? a.get(aOffset!) : b.get(bOffset!));
  });
}
