// Cases of matmul: shapes, transposes, dtypes, strides, batches, bias, alpha, accumulation, sums of
// operands and epilogues.

import type { DType } from '@shardweave/dtypes';
import type { KernelCalls } from '../../kernel-calls/kernel-calls.js';
import type { Epilogue } from '../../kernel-calls/matmul.js';
import type { View } from '../../view.js';
import type { CallRecorder, FloatOptions } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

type Call = KernelCalls['matmul'];

/**
 * The shapes [m, n, k]: single elements, tails of tiles on each side, whole tiles, vectors and long
 * sums.
 */
const SHAPES = [
  [1, 1, 1],
  [7, 5, 3],
  [63, 65, 33],
  [65, 63, 64],
  [64, 64, 64],
  [32, 128, 16],
  [1, 65, 130],
  [65, 1, 130],
  [5, 7, 1000],
] as const;
/**
 * The shapes [m, n, k] of cases with alpha, bias and accumulation. Beside tails of tiles they have
 * more than one block of k, of m and of n on the CPU device.
 */
const EPILOGUE_SHAPES = [
  [7, 5, 3],
  [33, 65, 17],
  [64, 64, 64],
  [9, 10, 700],
  [3, 12, 700],
  [130, 6, 270],
  [5, 520, 9],
] as const;
const DTYPES: readonly (readonly [a: DType, b: DType, out: DType])[] = [
  ['f16', 'f16', 'f16'],
  ['bf16', 'bf16', 'bf16'],
  ['f16', 'f16', 'f32'],
  ['bf16', 'f32', 'f32'],
  ['f32', 'bf16', 'f16'],
];
const TRANSPOSES = [
  [false, false],
  [false, true],
  [true, false],
  [true, true],
] as const;

export function matmulCases(): ConformanceCase[] {
  return [
    ...TRANSPOSES.map(([transposeA, transposeB]) => shapesCase(transposeA, transposeB)),
    ...FLOATS.map(alignedCase),
    ...DTYPES.map(dtypesCase),
    ...FLOATS.map(epilogueCase),
    biasMixCase(),
    ...FLOATS.map(sumsCase),
    ...FLOATS.map(endingsCase),
    longEndingsCase(),
    ...FLOATS.map(batchCase),
    ...FLOATS.map(attentionCase),
    stridedCase(),
    sameBufferCase(),
  ];
}

function shapesCase(transposeA: boolean, transposeB: boolean): ConformanceCase {
  const letters = `${transposeA ? 'T' : 'N'}${transposeB ? 'T' : 'N'}`;
  return recordedCase(`matmul ${letters} f32 of all shapes`, 'sum', (calls) => {
    for (const [m, n, k] of SHAPES) {
      runDense(calls, ['f32', 'f32', 'f32'], { m, n, k, transposeA, transposeB });
    }
    // What lies behind the first pair of matrices is the second, of which a block of k may take
    // nothing.
    const two = { m: 7, n: 5, k: 3, matrices: 2 };
    runDense(calls, ['f32', 'f32', 'f32'], { ...two, transposeA, transposeB });
  });
}

/**
 * Takes rows that start and end at multiples of four elements, which hardware loads as vectors,
 * some of them inside longer rows, and sums over so much of k that it is cut.
 */
function alignedCase(dtype: DType): ConformanceCase {
  return recordedCase(`matmul ${dtype} of all shapes in aligned rows`, 'sum', (calls) => {
    const run = (
      extent: { m: number; n: number; k: number; transposeA: boolean; transposeB: boolean },
      { isLast = false, spare = 0 } = {},
    ) => {
      const { m, n, k, transposeA, transposeB } = extent;
      const aRow = (transposeA ? m : k) + spare;
      const bRow = (transposeB ? k : n) + spare;
      const outRow = n + spare;
      calls.run('matmul', {
        ...PLAIN,
        ...extent,
        ...{ aRow, bRow, outRow },
        a: calls.floats((transposeA ? k : m) * aRow, dtype, { offset: 4 }),
        b: calls.floats((transposeB ? n : k) * bRow, dtype, { offset: 8 }),
        bias: isLast ? calls.floats(n, dtype) : undefined,
        out: isLast
          ? calls.floats(m * outRow, dtype, { offset: 4, isWritten: true })
          : calls.output(m * outRow, dtype, { offset: 4, isWritten: true }),
        alpha: isLast ? -0.125 : 1,
        accumulate: isLast,
      });
    };
    for (const [transposeA, transposeB] of TRANSPOSES) {
      run({ m: 36, n: 44, k: 20, transposeA, transposeB }, { spare: 4 });
      run({ m: 4, n: 68, k: 36, transposeA, transposeB });
    }
    const plain = { transposeA: false, transposeB: false };
    run({ m: 36, n: 44, k: 20, ...plain }, { isLast: true });
    run({ m: 12, n: 20, k: 1100, ...plain }, { isLast: true, spare: 4 });
    run({ m: 12, n: 20, k: 1100, transposeA: true, transposeB: false });
    run({ m: 6, n: 10, k: 1541, transposeA: true, transposeB: false }, { spare: 2 });
  });
}

function dtypesCase(dtypes: readonly [DType, DType, DType]): ConformanceCase {
  const [a, b, out] = dtypes;
  return recordedCase(`matmul ${a} by ${b} to ${out}`, 'sum', (calls) => {
    for (const [transposeA, transposeB] of TRANSPOSES) {
      runDense(calls, dtypes, { m: 7, n: 5, k: 3, transposeA, transposeB });
      runDense(calls, dtypes, { m: 33, n: 65, k: 63, transposeA, transposeB });
      runDense(calls, dtypes, { m: 64, n: 64, k: 32, transposeA, transposeB });
    }
  });
}

function epilogueCase(dtype: DType): ConformanceCase {
  return recordedCase(`matmul ${dtype} with alpha, bias and accumulation`, 'sum', (calls) => {
    for (const [m, n, k] of EPILOGUE_SHAPES) {
      for (const accumulate of [false, true]) {
        for (const bias of [undefined, calls.floats(n, dtype, { offset: 1 })]) {
          runDense(calls, [dtype, dtype, dtype], { m, n, k, alpha: -0.125, accumulate, bias });
        }
      }
    }
  });
}

function biasMixCase(): ConformanceCase {
  return recordedCase('matmul with a bias of another dtype', 'sum', (calls) => {
    const extent = { m: 9, n: 33, k: 20 };
    const bias = (dtype: DType) => calls.floats(33, dtype, { offset: 1 });
    runDense(calls, ['f16', 'f16', 'f16'], { ...extent, bias: bias('f32') });
    runDense(calls, ['f32', 'f32', 'f32'], { ...extent, bias: bias('bf16') });
  });
}

/** Also sums an operand, in rows of vectors and others, and in one part of k and several. */
function sumsCase(dtype: DType): ConformanceCase {
  return recordedCase(`matmul ${dtype} of all shapes with sums`, 'sum', (calls) => {
    for (const [m, n, k, sumsType] of [
      [5, 7, 3, dtype],
      [130, 66, 33, 'f32'],
      [12, 20, 1100, 'f32'],
    ] as const) {
      const extent = { m, n, k, transposeA: true, bRow: n, outRow: n, aRow: m };
      const operands = () => ({
        a: calls.floats(k * m, dtype, { offset: 4 }),
        b: calls.floats(k * n, dtype, { offset: 8 }),
        out: calls.output(m * n, dtype, { offset: 4, isWritten: true }),
      });
      const sums = (size: number) => calls.output(size, sumsType, { offset: 2, isWritten: true });
      calls.run('matmul', { ...PLAIN, ...extent, ...operands(), aSums: sums(m) });
      calls.run('matmul', { ...PLAIN, ...extent, ...operands(), bSums: sums(n), alpha: 0.5 });
    }
  });
}

/**
 * Runs every epilogue, in rows of vectors and others, over edges of tiles, after a bias, and with
 * so much of k that it is cut into parts.
 */
function endingsCase(dtype: DType): ConformanceCase {
  return recordedCase(`matmul ${dtype} with every epilogue`, 'sum', (calls) => {
    for (const [m, n, k, activation] of [
      [5, 7, 3, 'silu'],
      [36, 68, 20, 'geluTanh'],
      [12, 20, 1100, 'relu'],
    ] as const) {
      const { end, like } = endings(calls, dtype, { m, n, k });
      end({ kind: 'add', addend: like() }, { hasBias: true, accumulate: n === 7 });
      const activated = calls.output(m * n, dtype, { offset: 4 });
      end({ kind: 'activate', activation, activated }, { hasBias: true });
      end({ kind: 'slope', activation, at: like() });
      end(logitSlopes(calls, m, n));
    }
  });
}

/** Runs the two epilogues whose text is longest, and one over parts of k. */
function longEndingsCase(): ConformanceCase {
  return recordedCase('matmul f32 of all shapes with an epilogue', 'sum', (calls) => {
    const [m, n] = [36, 68];
    const { end, like } = endings(calls, 'f32', { m, n, k: 20 });
    end({ kind: 'slope', activation: 'geluTanh', at: like() });
    end(logitSlopes(calls, m, n));
    const cut = endings(calls, 'f32', { m: 12, n: 20, k: 1100 });
    cut.end({ kind: 'slope', activation: 'geluTanh', at: cut.like() });
  });
}

function endings(
  calls: CallRecorder,
  dtype: DType,
  { m, n, k }: { m: number; n: number; k: number },
) {
  return {
    end: (epilogue: Epilogue, { accumulate = false, hasBias = false } = {}) =>
      calls.run('matmul', {
        ...PLAIN,
        ...{ m, n, k, aRow: k, bRow: n, outRow: n, accumulate, epilogue },
        a: calls.floats(m * k, dtype, { offset: 4 }),
        b: calls.floats(k * n, dtype, { offset: 8, low: -0.3, high: 0.3 }),
        bias: hasBias ? calls.floats(n, dtype, { offset: 2 }) : undefined,
        out: accumulate
          ? calls.floats(m * n, dtype, { offset: 4, isWritten: true })
          : calls.output(m * n, dtype, { offset: 4 }),
      }),
    like: () => calls.floats(m * n, dtype, { offset: 8, low: -3, high: 3 }),
  };
}

/** Makes an epilogue with targets before the columns, in them, after them and of no class. */
function logitSlopes(calls: CallRecorder, m: number, n: number): Epilogue {
  const ids = Array.from({ length: m }, (_, i) => [3, 6 + (i % n), 6 + n, -100][i % 4]!);
  return {
    kind: 'crossEntropyBackward',
    targets: calls.values(ids, 'i32', { offset: 1 }),
    lse: calls.floats(m, 'f32', { offset: 1, low: 1, high: 2 }),
    dLoss: calls.floats(m, 'f32', { offset: 3 }),
    first: 6,
    classes: 7 + n,
  };
}

/** Takes dense batches. In odd 16-bit matrices words straddle rows and matrices. */
function batchCase(dtype: DType): ConformanceCase {
  return recordedCase(`matmul ${dtype} batched and broadcast`, 'sum', (calls) => {
    for (const [m, n, k] of [
      [3, 5, 7],
      [1, 1, 3],
      [17, 33, 9],
    ] as const) {
      const [aSize, bSize, outSize] = [m * k, k * n, m * n];
      const call = { ...PLAIN, m, n, k, aRow: k, bRow: n, outRow: n, batch: [2, 3] as const };
      const outBatch = [3 * outSize, outSize] as const;
      const run = (batches: Pick<Call, 'aBatch' | 'bBatch'>, accumulate: boolean) => {
        const a = calls.floats(6 * aSize, dtype, { offset: 1 });
        const b = calls.floats(6 * bSize, dtype, { offset: 3 });
        const out = outputOf(calls, 6 * outSize, dtype, accumulate);
        calls.run('matmul', { ...call, a, b, out, ...batches, outBatch, accumulate });
      };
      const dense = { aBatch: [3 * aSize, aSize], bBatch: [3 * bSize, bSize] } as const;
      run(dense, false);
      run(dense, true);
      run({ aBatch: dense.aBatch, bBatch: [0, 0] }, false);
      run({ aBatch: [0, aSize], bBatch: [bSize, 0] }, false);
    }
  });
}

/**
 * Computes attention over heads of [batch, seq, heads * dim] by products, without copying heads.
 */
function attentionCase(dtype: DType): ConformanceCase {
  return recordedCase(`matmul ${dtype} over interleaved heads`, 'sum', (calls) => {
    for (const seq of [10, 7]) {
      attention(calls, dtype, seq);
    }
  });
}

function attention(calls: CallRecorder, dtype: DType, seq: number): void {
  const [batch, heads, dim] = [2, 3, 6];
  const width = heads * dim;
  const flat = batch * seq * width;
  /** Returns q, k or v of a buffer that holds the three side by side, as one product makes them. */
  const packed = (all: View, part: number) => ({
    view: calls.slice(all, part * width, 3 * flat - part * width),
    row: 3 * width,
    batch: [seq * 3 * width, dim] as const,
  });
  const merged = (view: View) => ({ view, row: width, batch: [seq * width, dim] as const });
  const square = (view: View) => ({
    view,
    row: seq,
    batch: [heads * seq * seq, seq * seq] as const,
  });
  type Heads = ReturnType<typeof packed>;
  const run = (
    [a, b, out]: readonly [Heads, Heads, Heads],
    spec: Pick<Call, 'm' | 'n' | 'k'> & Partial<Call>,
  ) =>
    calls.run('matmul', {
      ...PLAIN,
      batch: [batch, heads],
      a: a.view,
      b: b.view,
      out: out.view,
      aRow: a.row,
      bRow: b.row,
      outRow: out.row,
      aBatch: a.batch,
      bBatch: b.batch,
      outBatch: out.batch,
      ...spec,
    });

  const qkv = calls.floats(3 * flat, dtype);
  const weights = square(calls.floats(batch * heads * seq * seq, dtype));
  const scores = square(calls.output(batch * heads * seq * seq, dtype));
  const toScores = { m: seq, n: seq, k: dim, transposeB: true, alpha: 0.4 };
  run([packed(qkv, 0), packed(qkv, 1), scores], toScores);
  const toValues = { m: seq, n: dim, k: seq };
  run([weights, packed(qkv, 2), merged(calls.output(flat, dtype))], toValues);

  // The gradients go into one buffer, in which the rows of one lie between those of the others.
  const gradients = calls.output(3 * flat, dtype);
  const dOut = merged(calls.floats(flat, dtype));
  run([weights, packed(qkv, 1), packed(gradients, 0)], toValues);
  run([weights, packed(qkv, 0), packed(gradients, 1)], { ...toValues, transposeA: true });
  run([weights, dOut, packed(gradients, 2)], { ...toValues, transposeA: true });
}

/** Takes rows that are longer than the matrix is wide. What lies between them must survive. */
function stridedCase(): ConformanceCase {
  return recordedCase('matmul into and out of wider rows', 'sum', (calls) => {
    for (const dtype of FLOATS) {
      for (const [transposeA, transposeB] of TRANSPOSES) {
        const [m, n, k] = [9, 34, 21];
        const [aRow, bRow, outRow] = [(transposeA ? m : k) + 5, (transposeB ? k : n) + 3, n + 4];
        const a = calls.floats((transposeA ? k : m) * aRow, dtype, { offset: 1 });
        const b = calls.floats((transposeB ? n : k) * bRow, dtype, { offset: 2 });
        const out = calls.output(m * outRow, dtype, { offset: 2 });
        const extent = { m, n, k, transposeA, transposeB, aRow, bRow, outRow };
        calls.run('matmul', { ...PLAIN, ...extent, a, b, out });
      }
    }
  });
}

function sameBufferCase(): ConformanceCase {
  return recordedCase('matmul of a matrix by its own transpose', 'sum', (calls) => {
    for (const dtype of FLOATS) {
      const x = calls.floats(33 * 20, dtype);
      const out = calls.output(33 * 33, dtype);
      const extent = { m: 33, n: 33, k: 20, transposeB: true, aRow: 20, bRow: 20, outRow: 33 };
      calls.run('matmul', { ...PLAIN, ...extent, a: x, b: x, out });
    }
  });
}

/** The options of a product of two plain matrices, which uses none of them. */
export const PLAIN = {
  bias: undefined,
  transposeA: false,
  transposeB: false,
  batch: [1, 1],
  aBatch: [0, 0],
  bBatch: [0, 0],
  outBatch: [0, 0],
  alpha: 1,
  accumulate: false,
} as const;

function runDense(
  calls: CallRecorder,
  [aType, bType, outType]: readonly [DType, DType, DType],
  options: { m: number; n: number; k: number; matrices?: number } & Partial<
    Pick<Call, 'transposeA' | 'transposeB' | 'alpha' | 'accumulate' | 'bias'>
  >,
): void {
  const { matrices = 1, ...rest } = options;
  const { m, n, k, transposeA = false, transposeB = false, accumulate = false } = rest;
  calls.run('matmul', {
    ...PLAIN,
    ...rest,
    batch: [1, matrices],
    aBatch: [0, m * k],
    bBatch: [0, k * n],
    outBatch: [0, m * n],
    a: calls.floats(matrices * m * k, aType, { offset: 1 }),
    b: calls.floats(matrices * k * n, bType, { offset: 3 }),
    out: outputOf(calls, matrices * m * n, outType, accumulate),
    aRow: transposeA ? m : k,
    bRow: transposeB ? k : n,
    outRow: n,
  });
}

function outputOf(calls: CallRecorder, size: number, dtype: DType, accumulate: boolean): View {
  const options: FloatOptions = { offset: 2, isWritten: true };
  return accumulate ? calls.floats(size, dtype, options) : calls.output(size, dtype, options);
}
