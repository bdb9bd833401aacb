// Comparisons, and the choice between two operands by a condition. NaN is tested by its bits, since
// drivers may assume that there is none.

import type { CompareKind } from '../../../../kernel-calls/compare.js';
import type { KernelCalls } from '../../../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../../../kind-table.js';
import type { View } from '../../../../view.js';
import { INTEGER_DIVIDE } from '../../kernel/wgsl.js';
import type { KernelContext } from '../../queue/context.js';
import { map } from './elementwise.js';
import { collapse, eachWalkBlock, stridedIndex, strideParams } from './strided.js';

const OPERATORS: Readonly<Record<CompareKind, string>> = {
  eq: '==',
  ne: '!=',
  lt: '<',
  le: '<=',
  gt: '>',
  ge: '>=',
};

export function compare(ctx: KernelContext, call: KernelCalls['compare']): void {
  const { kind, a, b, out, shape, aStrides, bStrides } = call;
  const isInteger = a.dtype === 'i32' || a.dtype === 'u32';
  const holds = `a ${ofKind('compare', OPERATORS, kind)} b`;
  const isEither = 'is_nan(a) || is_nan(b)';
  const withNan = kind === 'ne' ? `${isEither} || ${holds}` : `!(${isEither}) && ${holds}`;
  pairwise(ctx, {
    name: `compare ${kind}`,
    inputs: { a, b },
    strides: [aStrides, bStrides],
    shape,
    out,
    value: `return select(0u, 1u, ${isInteger ? holds : withNan});`,
  });
}

export function where(ctx: KernelContext, call: KernelCalls['where']): void {
  const { condition, a, b, out, shape, conditionStrides, aStrides, bStrides } = call;
  pairwise(ctx, {
    name: 'where',
    inputs: { condition, a, b },
    strides: [conditionStrides, aStrides, bStrides],
    shape,
    out,
    value: 'if (condition != 0) { return a; } return b;',
  });
}

/**
 * Computes out[i] by the WGSL statements `value`, in which each input's name stands for its
 * element: `return a + b;`.
 */
function pairwise(
  ctx: KernelContext,
  call: {
    readonly name: string;
    readonly inputs: Readonly<Record<string, View>>;
    readonly strides: readonly (readonly number[])[];
    readonly shape: readonly number[];
    readonly out: View;
    readonly value: string;
  },
): void {
  const { name, inputs, out, value } = call;
  const names = Object.keys(inputs);
  const walk = collapse(call.shape, call.strides);
  const loads = (at: (input: string) => string) =>
    names.map((input) => `let ${input} = load_${input}(${at(input)});`).join(' ');
  if (out.size === 1 || (walk.shape.length === 1 && walk.strides.every((s) => s[0] === 1))) {
    map(ctx, { name, inputs, out, value: `${loads(() => 'i')} ${value}` });
    return;
  }
  const whole = { op: name, walk, operands: Object.values(inputs), out };
  eachWalkBlock(ctx, whole, (block) => {
    const rank = block.walk.shape.length;
    map(ctx, {
      name: `${name} rank ${rank}`,
      inputs: Object.fromEntries(names.map((input, i) => [input, block.operands[i]!])),
      out: block.out,
      integers: strideParams(block.walk, names),
      isWhole: true,
      helpers: `${INTEGER_DIVIDE}\n${stridedIndex(rank, names)}`,
      value: `let at = strided(i); ${loads((input) => `at.${input}`)} ${value}`,
    });
  });
}
