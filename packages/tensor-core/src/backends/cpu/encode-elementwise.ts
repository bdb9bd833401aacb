// Encodes the commands of assembly/elementwise.ts, binary.ts, copy.ts and dropout.ts. Costs are
// rough measurements in ns per element on one thread, which only decide how far work is split.

import { byteSize, f32ToBf16, f32ToF16 } from '@shardweave/dtypes';
import {
  BINARY_ADD,
  BINARY_DIV,
  BINARY_EQ,
  BINARY_GE,
  BINARY_GT,
  BINARY_LE,
  BINARY_LT,
  BINARY_MAXIMUM,
  BINARY_MINIMUM,
  BINARY_MUL,
  BINARY_NE,
  BINARY_POW,
  BINARY_SUB,
  GATE_BOTH,
  GATE_FIRST,
  GATE_SECOND,
  OP_AFFINE,
  OP_BINARY,
  OP_CAST,
  OP_COPY_STRIDED,
  OP_DROPOUT,
  OP_FILL,
  OP_GATED,
  OP_GATED_BACKWARD,
  OP_RANDOM,
  OP_UNARY,
  OP_UNARY_BACKWARD,
  OP_WHERE,
  RANDOM_NORMAL,
  RANDOM_UNIFORM,
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
import type { CompareKind } from '../../kernel-calls/compare.js';
import type { BinaryKind, UnaryKind } from '../../kernel-calls/elementwise.js';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import { ofKind } from '../../kind-table.js';
import { normalTable } from '../../random-recipe.js';
import type { View } from '../../view.js';
import { collapseShape, denseStrides } from './collapse-shape.js';
import { addressOf, type CommandWriter } from './command-writer.js';

const UNARY_CODES: Readonly<Record<UnaryKind, number>> = {
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

const BINARY_CODES: Readonly<Record<BinaryKind | CompareKind, number>> = {
  eq: BINARY_EQ,
  ne: BINARY_NE,
  lt: BINARY_LT,
  le: BINARY_LE,
  gt: BINARY_GT,
  ge: BINARY_GE,
  add: BINARY_ADD,
  sub: BINARY_SUB,
  mul: BINARY_MUL,
  div: BINARY_DIV,
  maximum: BINARY_MAXIMUM,
  minimum: BINARY_MINIMUM,
  pow: BINARY_POW,
};

const GATE_PARTS = { gate: GATE_FIRST, up: GATE_SECOND, both: GATE_BOTH } as const;

const CHEAP_NS = 0.3;
const TRANSCENDENTAL_NS = 1.5;
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

export function fill({ out, value }: KernelCalls['fill'], w: CommandWriter): void {
  w.start(OP_FILL, 'fill')
    .address(out)
    .int(byteSize(out.dtype), bitsOf(out.dtype, value), out.size);
  w.commit(w.chunksFor(out.size * 0.2));
}

export function cast({ x, out }: KernelCalls['cast'], w: CommandWriter): void {
  w.start(OP_CAST, 'cast').view(x).view(out).int(x.size);
  w.commit(w.chunksFor(x.size * CHEAP_NS));
}

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

export function gated(call: KernelCalls['gated'], w: CommandWriter): void {
  const { kind, rows, cols, row } = call;
  w.start(OP_GATED, 'gated').int(ofKind('gated', UNARY_CODES, kind));
  w.view(call.gate).view(call.up).view(call.out).int(rows, cols, row);
  w.commit(w.chunksFor(rows * cols * TRANSCENDENTAL_NS));
}

export function gatedBackward(call: KernelCalls['gatedBackward'], w: CommandWriter): void {
  const { kind, of, rows, cols, row } = call;
  w.start(OP_GATED_BACKWARD, 'gatedBackward').int(
    ofKind('gatedBackward', UNARY_CODES, kind),
    ofKind('gatedBackward', GATE_PARTS, of),
  );
  w.view(call.gate).view(call.up).view(call.dy).view(call.out).int(rows, cols, row);
  w.commit(w.chunksFor(rows * cols * TRANSCENDENTAL_NS * (of === 'both' ? 2 : 1)));
}

export function affine({ x, out, scale, shift }: KernelCalls['affine'], w: CommandWriter): void {
  w.start(OP_AFFINE, 'affine').view(x).view(out).int(x.size).float(scale).float(shift);
  w.commit(w.chunksFor(x.size * CHEAP_NS));
}

export function binary(call: KernelCalls['binary'], w: CommandWriter): void {
  writePair('binary', call, w);
}

export function compare(call: KernelCalls['compare'], w: CommandWriter): void {
  writePair('compare', call, w);
}

function writePair(
  name: string,
  call: KernelCalls['binary'] | KernelCalls['compare'],
  w: CommandWriter,
): void {
  const total = elementCount(call.shape);
  const { shape, strides } = collapseShape(call.shape, [
    call.aStrides,
    call.bStrides,
    denseStrides(call.shape),
  ]);
  w.start(OP_BINARY, name).int(ofKind(name, BINARY_CODES, call.kind));
  w.view(call.a).view(call.b).view(call.out).int(total, shape.length);
  shape.forEach((extent, d) => {
    w.int(extent, strides[0]![d]!, strides[1]![d]!);
  });
  w.commit(w.chunksFor(total * (call.kind === 'pow' ? 20 : CHEAP_NS)));
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

export function copyStrided(call: KernelCalls['copyStrided'], w: CommandWriter): void {
  const { x, out, xOffset, outOffset } = call;
  const total = elementCount(call.shape);
  const width = byteSize(x.dtype);
  const { shape, strides } = collapseShape(call.shape, [call.xStrides, call.outStrides]);
  w.start(OP_COPY_STRIDED, 'copyStrided');
  w.int(
    elementAddress(x, xOffset),
    elementAddress(out, outOffset),
    width === 4 ? 2 : 1,
    total,
    shape.length,
  );
  shape.forEach((extent, d) => {
    w.int(extent, strides[0]![d]!, strides[1]![d]!);
  });
  w.commit(w.chunksFor(total));
}

export function dropout(call: KernelCalls['dropout'], w: CommandWriter): void {
  const { x, out, p, counterOffset } = call;
  if (p >= 1) {
    fill({ out, value: 0 }, w);
    return;
  }
  w.start(OP_DROPOUT, 'dropout').view(x).view(out).int(x.size);
  w.int(Math.floor(p * 2 ** 32)).float(1 / (1 - p));
  w.int(call.key0, call.key1, counterOffset, Math.floor(counterOffset / 2 ** 32));
  w.commit(w.chunksFor(x.size * 2));
}

export function random(call: KernelCalls['random'], w: CommandWriter): void {
  const { kind, out, key0, key1, counterOffset, scale, first, range } = call;
  const isNormal = kind === 'normal';
  w.start(OP_RANDOM, 'random').int(isNormal ? RANDOM_NORMAL : RANDOM_UNIFORM);
  w.view(out).int(out.size, key0, key1, counterOffset, Math.floor(counterOffset / 2 ** 32));
  w.float(scale).int(first, range);
  if (isNormal) {
    w.payload(new Uint8Array(normalTable().buffer), [0]);
  }
  w.commit(w.chunksFor(out.size * (isNormal ? 6 : 2)));
}

function unaryNs(kind: UnaryKind): number {
  return TRANSCENDENTAL.has(kind) ? TRANSCENDENTAL_NS : CHEAP_NS;
}

function elementCount(shape: readonly number[]): number {
  return shape.reduce((product, extent) => product * extent, 1);
}

function elementAddress(view: View, offset: number): number {
  return addressOf(view.buffer) + view.byteOffset + offset * byteSize(view.dtype);
}

/**
 * Returns the bits of `value` in a dtype. For an integer dtype the value is truncated toward zero
 * and saturates, and NaN gives 0.
 */
function bitsOf(dtype: View['dtype'], value: number): number {
  switch (dtype) {
    case 'f32':
      return new Int32Array(new Float32Array([value]).buffer)[0]!;
    case 'f16':
      return f32ToF16(Math.fround(value));
    case 'bf16':
      return f32ToBf16(Math.fround(value));
    case 'i32':
      return Number.isNaN(value)
        ? 0
        : Math.trunc(Math.min(2 ** 31 - 1, Math.max(-(2 ** 31), value)));
    case 'u32':
      return Number.isNaN(value) ? 0 : Math.trunc(Math.min(2 ** 32 - 1, Math.max(0, value)));
  }
}
