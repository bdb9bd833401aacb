// Checks calls by the rules of alignment, aliasing and extent. So an op that would corrupt memory
// on a real device gets an error on the reference device.

import { byteSize } from '@shardweave/dtypes';
import { blocksByteLength } from '@shardweave/dtypes/blocks';
import { ShapeError, StateError } from '../../errors.js';
import type { AttentionOperands, HeadStrides } from '../../kernel-calls/attention.js';
import {
  type KernelCalls,
  type KernelName,
  NESTED_VIEWS,
} from '../../kernel-calls/kernel-calls.js';
import { hasWideLogits } from '../../kernel-calls/matmul.js';
import type { Span } from '../../kernel-calls/norm.js';
import { numNormNodes } from '../../norm-spans.js';
import type { View } from '../../view.js';

/** The views that each kernel writes, each with the inputs that it may replace. */
const OUTPUTS: Readonly<Record<KernelName, Readonly<Record<string, readonly string[]>>>> = {
  fill: { out: [] },
  cast: { out: [] },
  unary: { out: ['x'] },
  unaryBackward: { out: ['dy'] },
  gated: { out: [] },
  gatedBackward: { out: [], outUp: [] },
  rotary: { out: [] },
  affine: { out: ['x'] },
  binary: { out: ['a', 'b'] },
  compare: { out: [] },
  where: { out: [] },
  gather: { out: [] },
  gatherBackward: { dx: [] },
  topK: { out: [] },
  cumSum: { out: [] },
  copyStrided: { out: [] },
  reduce: { out: [] },
  extremumBackward: { out: [] },
  softmax: { out: ['x'] },
  softmaxBackward: { out: ['dy'] },
  rowNorm: { out: [], sum: [], mean: [], rstd: [] },
  rowNormBackward: { dx: [], dWeight: [], dBias: [] },
  decodeBlocks: { out: [] },
  blockDots: { out: [] },
  embedding: { out: [] },
  embeddingBackward: { dTable: [] },
  crossEntropy: { loss: [], lse: [] },
  crossEntropyBackward: { out: ['logits'] },
  dropout: { out: ['x'] },
  random: { out: [] },
  attention: { out: [], stats: [] },
  attentionBackward: { stats: [], dq: [], dk: [], dv: [] },
  attentionMaskGradient: { dMask: [] },
  matmul: { out: [], aSums: [], bSums: [], activated: [] },
  normNodes: { out: [] },
  normTree: { out: [] },
  clipFactor: { norm: [], scale: [] },
  adam: { param: [], expAvg: [], expAvgSq: [] },
  sgd: { param: [], momentumBuffer: [] },
  custom: { out: [] },
};

/** The elements that each view of a call must have. Strided views may have more. */
const EXTENTS: { [K in KernelName]: (call: KernelCalls[K]) => Readonly<Record<string, number>> } = {
  fill: () => ({}),
  cast: ({ out }) => ({ x: out.size }),
  unary: ({ out }) => ({ x: out.size }),
  unaryBackward: ({ out }) => ({ x: out.size, dy: out.size }),
  gated: ({ rows, cols, row }) => {
    const halves = (rows - 1) * row + cols;
    return { gate: halves, up: halves, out: rows * cols };
  },
  gatedBackward: ({ of, outUp, rows, cols, row }) => {
    const halves = (rows - 1) * row + cols;
    const whole = rows * cols;
    const own = of === 'both' && outUp === undefined ? 2 * whole : whole;
    return { gate: halves, up: halves, dy: whole, out: own, outUp: whole };
  },
  rotary: ({ tokens, heads, half, period }) => {
    const whole = tokens * heads * 2 * half;
    return { x: whole, frequencies: 2 * half, positions: period, out: whole };
  },
  affine: ({ out }) => ({ x: out.size }),
  binary: ({ shape, aStrides, bStrides }) => ({
    a: reach(shape, aStrides),
    b: reach(shape, bStrides),
    out: product(shape),
  }),
  compare: ({ shape, aStrides, bStrides }) => ({
    a: reach(shape, aStrides),
    b: reach(shape, bStrides),
    out: product(shape),
  }),
  where: ({ shape, conditionStrides, aStrides, bStrides }) => ({
    condition: reach(shape, conditionStrides),
    a: reach(shape, aStrides),
    b: reach(shape, bStrides),
    out: product(shape),
  }),
  gather: ({ outer, dim, inner, count }) => {
    const picked = outer * count * inner;
    return { x: outer * dim * inner, ids: picked, out: picked };
  },
  gatherBackward: ({ outer, dim, inner, count }) => {
    const picked = outer * count * inner;
    return { ids: picked, dy: picked, dx: outer * dim * inner };
  },
  topK: ({ outer, dim, inner, count }) => {
    return { x: outer * dim * inner, out: outer * count * inner };
  },
  cumSum: ({ outer, dim, inner }) => ({ x: outer * dim * inner, out: outer * dim * inner }),
  copyStrided: ({ shape, xOffset, xStrides, outOffset, outStrides }) => ({
    x: xOffset + reach(shape, xStrides),
    out: outOffset + reach(shape, outStrides),
  }),
  reduce: ({ outer, dim, inner }) => ({ x: outer * dim * inner, out: outer * inner }),
  extremumBackward: ({ outer, dim, inner }) => {
    const [whole, reduced] = [outer * dim * inner, outer * inner];
    return { x: whole, y: reduced, dy: reduced, out: whole };
  },
  softmax: ({ rows, cols }) => ({ x: rows * cols, out: rows * cols }),
  softmaxBackward: ({ rows, cols }) => ({ y: rows * cols, dy: rows * cols, out: rows * cols }),
  rowNorm: ({ rows, cols }) => {
    const whole = rows * cols;
    const sums = { residual: whole, sum: whole };
    return { x: whole, ...sums, weight: cols, bias: cols, out: whole, mean: rows, rstd: rows };
  },
  rowNormBackward: ({ rows, cols }) => {
    const whole = rows * cols;
    const gradients = { dy: whole, dSum: whole, dx: whole, dWeight: cols, dBias: cols };
    return { x: whole, weight: cols, mean: rows, rstd: rows, ...gradients };
  },
  decodeBlocks: ({ type, rows, width, count, columns }) => ({
    words: Math.ceil(blocksByteLength(type, rows * width) / 4),
    ids: count,
    out: count * columns,
  }),
  blockDots: ({ type, m, n, k }) => ({
    words: Math.ceil(blocksByteLength(type, n * k) / 4),
    a: m * k,
    out: m * n,
    bias: n,
  }),
  embedding: ({ rows, cols, count }) => ({ table: rows * cols, ids: count, out: count * cols }),
  embeddingBackward: ({ rows, cols, count }) => {
    return { ids: count, dy: count * cols, dTable: rows * cols };
  },
  crossEntropy: ({ rows, cols }) => ({ logits: rows * cols, targets: rows, loss: rows, lse: rows }),
  crossEntropyBackward: ({ rows, cols }) => {
    const whole = rows * cols;
    return { logits: whole, targets: rows, lse: rows, dLoss: rows, out: whole };
  },
  dropout: ({ out }) => ({ x: out.size }),
  random: () => ({}),
  attention: attentionExtents,
  attentionBackward: (call) => {
    const extents = attentionExtents(call);
    const { q, k, v, out } = extents;
    return { ...extents, dOut: out, dq: q, dk: k, dv: v };
  },
  attentionMaskGradient: (call) => {
    const extents = attentionExtents(call);
    return { ...extents, dOut: extents.out, dMask: extents.mask };
  },
  matmul: (call) => {
    const { m, n, k, transposeA, transposeB, batch, epilogue } = call;
    const a = transposeA ? [k, m] : [m, k];
    const b = transposeB ? [n, k] : [k, n];
    const out = reach([...batch, m, n], [...call.outBatch, call.outRow, 1]);
    const isWholeRows = epilogue?.kind === 'crossEntropyBackward';
    return {
      a: reach([...batch, ...a], [...call.aBatch, call.aRow, 1]),
      b: reach([...batch, ...b], [...call.bBatch, call.bRow, 1]),
      out: isWholeRows ? m * call.outRow : out,
      bias: n,
      aSums: m,
      bSums: n,
      ...{ addend: out, activated: out, at: out },
      ...{ targets: m, lse: m, dLoss: m },
    };
  },
  normNodes: ({ spans }) => ({ x: spansEnd(spans), out: numNormNodes(spans) }),
  normTree: ({ spans }) => ({ x: spansEnd(spans), out: spans.length }),
  clipFactor: () => ({ squares: 1, norm: 1, scale: 1 }),
  adam: ({ param: { size } }) => ({ grad: size, expAvg: size, expAvgSq: size, gradScale: 1 }),
  sgd: ({ param: { size } }) => ({ grad: size, momentumBuffer: size, gradScale: 1 }),
  custom: ({ shapes }) =>
    Object.fromEntries(Object.entries(shapes).map(([name, shape]) => [name, product(shape)])),
};
/** Outputs of which the rows of one may lie between those of another in one buffer. */
const INTERLEAVED: ReadonlySet<string> = new Set(['dq', 'dk', 'dv']);
/** Kernels whose views may be longer than what the kernels touch. */
const STRIDED: ReadonlySet<KernelName> = new Set([
  'attention',
  'attentionBackward',
  'attentionMaskGradient',
  'binary',
  'compare',
  'where',
  'copyStrided',
  'matmul',
  'normNodes',
  'normTree',
]);

/**
 * Checks the views of a call.
 * @throws {ShapeError} for sizes and alignments that don't fit the call
 * @throws {StateError} for operands that overlap where they must not
 */
export function checkCall<K extends KernelName>(kernel: K, call: KernelCalls[K]): void {
  const nested = Object.entries(call).filter(([key]) => NESTED_VIEWS.has(key));
  const views = [call, ...nested.map(([, values]) => (values ?? {}) as object)]
    .flatMap((values) => Object.entries(values))
    .filter((entry): entry is [string, View] => isView(entry[1]));
  const outputs = OUTPUTS[kernel];
  const extents = EXTENTS[kernel](call);
  for (const [key, view] of views) {
    checkPlace(`${kernel}.${key}`, view, key in outputs ? 4 : byteSize(view.dtype));
    checkExtent(`${kernel}.${key}`, view, extents[key], STRIDED.has(kernel));
  }
  for (const [key, view] of views) {
    if (!(key in outputs)) {
      continue;
    }
    for (const [other, otherView] of views) {
      const isInterleaved = INTERLEAVED.has(key) && INTERLEAVED.has(other);
      if (other === key || isInterleaved || !isOverlapping(view, otherView)) {
        continue;
      }
      if (outputs[key]!.includes(other) && isSame(view, otherView)) {
        continue;
      }
      throw new StateError(
        `${kernel}: expected ${key} apart from ${other}, got bytes ${rangeText(view)} and ${rangeText(otherView)} of buffer ${view.buffer.id}.`,
      );
    }
  }
  if (kernel === 'matmul') {
    checkMatmulWords(call as KernelCalls['matmul']);
  }
  if (kernel === 'copyStrided') {
    checkCopyWords(call as KernelCalls['copyStrided']);
  }
}

function checkPlace(name: string, view: View, alignment: number): void {
  const { byteOffset, size, dtype, buffer } = view;
  const end = byteOffset + size * byteSize(dtype);
  if (byteOffset % alignment !== 0) {
    throw new ShapeError(
      `${name}: expected an offset of whole ${alignment} bytes, got ${byteOffset}.`,
    );
  }
  if (byteOffset < 0 || size < 1 || end > buffer.byteLength) {
    throw new ShapeError(
      `${name}: expected elements within ${buffer.byteLength} bytes, got ${size} ${dtype} at byte ${byteOffset}.`,
    );
  }
}

function checkExtent(name: string, view: View, extent: number | undefined, mayBeLonger: boolean) {
  if (extent === undefined || view.size === extent || (mayBeLonger && view.size > extent)) {
    return;
  }
  throw new ShapeError(`${name}: expected ${extent} elements, got ${view.size}.`);
}

/**
 * Requires that a 16-bit out, which is written as words, is dense or has rows of whole words,
 * unless the rows are written with all that lies between them.
 */
function checkMatmulWords(call: KernelCalls['matmul']): void {
  if (byteSize(call.out.dtype) === 4 || hasWideLogits(call)) {
    return;
  }
  const { m, n, outRow, batch, outBatch } = call;
  const isDense =
    isDenseWalk([...batch, m, n], [...outBatch, outRow, 1]) &&
    call.out.size === product([...batch, m, n]);
  if (isDense || [n, outRow, ...outBatch].every(isEven)) {
    return;
  }
  throw new ShapeError(
    `matmul: expected a 16-bit out that is dense or has even n and strides, got n ${n}, row stride ${outRow}, batch strides ${outBatch.join(', ')}.`,
  );
}

function checkCopyWords(call: KernelCalls['copyStrided']): void {
  if (byteSize(call.out.dtype) === 4) {
    return;
  }
  const { shape, outOffset, outStrides } = call;
  const isDense =
    outOffset === 0 && isDenseWalk(shape, outStrides) && call.out.size === product(shape);
  const last = shape.length - 1;
  const evenOnes = [outOffset, shape[last]!, ...outStrides.slice(0, last)];
  if (isDense || (outStrides[last] === 1 && evenOnes.every(isEven))) {
    return;
  }
  throw new ShapeError(
    `copyStrided: expected a 16-bit out that is dense or starts and ends rows on words, got shape ${shape.join(', ')}, strides ${outStrides.join(', ')}, offset ${outOffset}.`,
  );
}

function attentionExtents(call: AttentionOperands) {
  const { batch, numHeads, numKvHeads, numQueries, numKeys, dim } = call;
  const rows = (heads: number, count: number, strides: HeadStrides) =>
    reach([batch, heads, count, dim], [strides.batch, strides.head, strides.row, 1]);
  const numRows = batch * numHeads * numQueries;
  return {
    q: rows(numHeads, numQueries, call.qStrides),
    k: rows(numKvHeads, numKeys, call.kStrides),
    v: rows(numKvHeads, numKeys, call.vStrides),
    out: numRows * dim,
    stats: 2 * numRows,
    mask: reach([batch, numHeads, numQueries, numKeys], call.maskStrides),
    querySegments: batch * numQueries,
    keySegments: batch * numKeys,
  };
}

function isView(value: unknown): value is View {
  return typeof value === 'object' && value !== null && 'buffer' in value;
}

function isOverlapping(a: View, b: View): boolean {
  if (a.buffer.id !== b.buffer.id) {
    return false;
  }
  return a.byteOffset < endOf(b) && b.byteOffset < endOf(a);
}

function isSame(a: View, b: View): boolean {
  return a.byteOffset === b.byteOffset && a.dtype === b.dtype && a.size === b.size;
}

/** Returns the end of a view's last word, up to which a 16-bit output may overwrite. */
function endOf({ byteOffset, size, dtype }: View): number {
  return Math.ceil((byteOffset + size * byteSize(dtype)) / 4) * 4;
}

function rangeText(view: View): string {
  return `[${view.byteOffset}, ${endOf(view)})`;
}

function isEven(value: number): boolean {
  return value % 2 === 0;
}

function isDenseWalk(shape: readonly number[], strides: readonly number[]): boolean {
  let dense = 1;
  for (let axis = shape.length - 1; axis >= 0; axis--) {
    if (shape[axis] !== 1 && strides[axis] !== dense) {
      return false;
    }
    dense *= shape[axis]!;
  }
  return true;
}

function spansEnd(spans: readonly Span[]): number {
  const last = spans.at(-1)!;
  return last.start + last.length;
}

function product(shape: readonly number[]): number {
  return shape.reduce((total, dim) => total * dim, 1);
}

/** Returns one more than the largest element that a walk visits. */
function reach(shape: readonly number[], strides: readonly number[]): number {
  return shape.reduce((last, dim, axis) => last + (dim - 1) * strides[axis]!, 1);
}
