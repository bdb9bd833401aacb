// Encodes the commands of assembly/elementwise.ts and elementwise-binary.ts. Costs are rough
// measurements in ns per element on one thread, which only decide how far work is split.

import {
  BINARY_ADD,
  BINARY_DIV,
  BINARY_MAXIMUM,
  BINARY_MINIMUM,
  BINARY_MUL,
  BINARY_POW,
  BINARY_SUB,
  OP_AFFINE,
  OP_BINARY,
  OP_UNARY,
  OP_UNARY_BACKWARD,
  UNARY_ABS,
  UNARY_COS,
  UNARY_EXP,
  UNARY_GELU,
  UNARY_GELU_TANH,
  UNARY_LOG,
  UNARY_NEG,
  UNARY_RECIPROCAL,
  UNARY_RELU,
  UNARY_RSQRT,
  UNARY_SIGMOID,
  UNARY_SILU,
  UNARY_SIN,
  UNARY_SQRT,
  UNARY_SQUARE,
  UNARY_TANH,
} from '../../../assembly/layout.js';
import type { BinaryKind, UnaryKind } from '../../kernel-calls/elementwise.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../kind-table.js';
import { collapseShape, denseStrides, elementCount } from './collapse-shape.js';
import type { CommandWriter } from './command-writer.js';

export const UNARY_CODES: Readonly<Record<UnaryKind, number>> = {
  neg: UNARY_NEG,
  abs: UNARY_ABS,
  exp: UNARY_EXP,
  log: UNARY_LOG,
  sqrt: UNARY_SQRT,
  rsqrt: UNARY_RSQRT,
  square: UNARY_SQUARE,
  reciprocal: UNARY_RECIPROCAL,
  tanh: UNARY_TANH,
  sigmoid: UNARY_SIGMOID,
  sin: UNARY_SIN,
  cos: UNARY_COS,
  relu: UNARY_RELU,
  silu: UNARY_SILU,
  gelu: UNARY_GELU,
  geluTanh: UNARY_GELU_TANH,
};

const BINARY_CODES: Readonly<Record<BinaryKind, number>> = {
  add: BINARY_ADD,
  sub: BINARY_SUB,
  mul: BINARY_MUL,
  div: BINARY_DIV,
  maximum: BINARY_MAXIMUM,
  minimum: BINARY_MINIMUM,
  pow: BINARY_POW,
};

export const CHEAP_NS = 0.3;
export const TRANSCENDENTAL_NS = 1.5;
const TRANSCENDENTAL: ReadonlySet<UnaryKind> = new Set([
  'exp',
  'log',
  'tanh',
  'sigmoid',
  'sin',
  'cos',
  'silu',
  'gelu',
  'geluTanh',
]);

export function unary({ kind, x, out }: KernelCalls['unary'], w: CommandWriter): void {
  w.start(OP_UNARY, 'unary')
    .int(ofKind('unary', UNARY_CODES, kind))
    .view(x)
    .view(out)
    .int(x.size);
  w.commit(w.chunksFor(x.size * unaryNs(kind)));
}

export function unaryBackward(
  { kind, x, dy, out }: KernelCalls['unaryBackward'],
  w: CommandWriter,
): void {
  w.start(OP_UNARY_BACKWARD, 'unaryBackward').int(ofKind('unaryBackward', UNARY_CODES, kind));
  w.view(x).view(dy).view(out).int(x.size);
  w.commit(w.chunksFor(x.size * unaryNs(kind)));
}

export function affine({ x, out, scale, shift }: KernelCalls['affine'], w: CommandWriter): void {
  w.start(OP_AFFINE, 'affine').view(x).view(out).int(x.size).float(scale).float(shift);
  w.commit(w.chunksFor(x.size * CHEAP_NS));
}

export function binary(call: KernelCalls['binary'], w: CommandWriter): void {
  writePair('binary', ofKind('binary', BINARY_CODES, call.kind), call, w);
}

/** Encodes a kernel of two operands, by its code. */
export function writePair(
  name: string,
  code: number,
  call: KernelCalls['binary'] | KernelCalls['compare'],
  w: CommandWriter,
): void {
  const total = elementCount(call.shape);
  const { shape, strides } = collapseShape(call.shape, [
    call.aStrides,
    call.bStrides,
    denseStrides(call.shape),
  ]);
  w.start(OP_BINARY, name).int(code);
  w.view(call.a).view(call.b).view(call.out).int(total, shape.length);
  shape.forEach((extent, d) => {
    w.int(extent, strides[0]![d]!, strides[1]![d]!);
  });
  w.commit(w.chunksFor(total * (call.kind === 'pow' ? 20 : CHEAP_NS)));
}

function unaryNs(kind: UnaryKind): number {
  return TRANSCENDENTAL.has(kind) ? TRANSCENDENTAL_NS : CHEAP_NS;
}
