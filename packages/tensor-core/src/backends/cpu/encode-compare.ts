// Encodes the commands of assembly/compare.ts.

import {
  BINARY_EQ,
  BINARY_GE,
  BINARY_GT,
  BINARY_LE,
  BINARY_LT,
  BINARY_NE,
  OP_WHERE,
} from '../../../assembly/layout.js';
import type { CompareKind } from '../../kernel-calls/compare.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../kind-table.js';
import { collapseShape, denseStrides, elementCount } from './collapse-shape.js';
import type { CommandWriter } from './command-writer.js';
import { CHEAP_NS, writePair } from './encode-elementwise.js';

const COMPARE_CODES: Readonly<Record<CompareKind, number>> = {
  eq: BINARY_EQ,
  ne: BINARY_NE,
  lt: BINARY_LT,
  le: BINARY_LE,
  gt: BINARY_GT,
  ge: BINARY_GE,
};

export function compare(call: KernelCalls['compare'], w: CommandWriter): void {
  writePair('compare', ofKind('compare', COMPARE_CODES, call.kind), call, w);
}

export function where(call: KernelCalls['where'], w: CommandWriter): void {
  const total = elementCount(call.shape);
  const { shape, strides } = collapseShape(call.shape, [
    call.conditionStrides,
    call.aStrides,
    call.bStrides,
    denseStrides(call.shape),
  ]);
  w.start(OP_WHERE, 'where').address(call.condition).view(call.a).view(call.b).view(call.out);
  w.int(total, shape.length);
  shape.forEach((extent, d) => {
    w.int(extent, strides[0]![d]!, strides[1]![d]!, strides[2]![d]!);
  });
  w.commit(w.chunksFor(total * CHEAP_NS));
}
