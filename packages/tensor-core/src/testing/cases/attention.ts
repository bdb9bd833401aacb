// Cases of attention and its gradients with all options: views of fused rows, groups of heads,
// causal masks, windows, segments, masks, offsets and dropout. Sizes lie around the blocks of the
// devices, and some cases put NaN into keys that are hidden.

import { byteSize, type DType } from '@shardweave/dtypes';
import type { AttentionOperands } from '../../kernel-calls/attention.js';
import type { View } from '../../view.js';
import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';
import { FLOATS } from '../kit/sizes.js';

interface Shape {
  readonly batch?: number;
  readonly heads?: number;
  readonly kvHeads?: number;
  readonly queries: number;
  readonly keys: number;
  readonly dim: number;
}

interface Options {
  readonly isCausal?: boolean;
  readonly window?: number;
  readonly queryOffset?: number;
  readonly p?: number;
  /** The length of each document, in queries and in keys. Ids begin below 0. */
  readonly documents?: number;
  readonly mask?: 'full' | 'rows' | 'columns' | 'hides rows';
  /** Whether rows of keys and values start at multiples of four elements. */
  readonly isAligned?: boolean;
  /** Whether gradients of keys and of values have a buffer each, as with rotary embedding. */
  readonly isApart?: boolean;
  /** What `fill` does, for the case's name. */
  readonly says?: string;
  /** Returns the value of an operand's element number i, or undefined for a random one. */
  readonly fill?: (operand: 'q' | 'k' | 'v' | 'dOut', i: number) => number | undefined;
}

const SQUARES = [1, 7, 63, 64, 65, 130] as const;

export function attentionCases(): ConformanceCase[] {
  return [
    ...SQUARES.map((size) =>
      attentionCase({ queries: size, keys: size, dim: 8 }, { isCausal: true }),
    ),
    ...FLOATS.map((dtype) =>
      attentionCase(
        { heads: 4, kvHeads: 2, queries: 70, keys: 70, dim: 6 },
        { isCausal: true },
        dtype,
      ),
    ),
    attentionCase({ batch: 2, heads: 3, queries: 5, keys: 67, dim: 7 }, {}),
    attentionCase(
      { heads: 3, kvHeads: 1, queries: 1, keys: 133, dim: 32 },
      { isCausal: true, queryOffset: 100 },
    ),
    ...FLOATS.map((dtype) =>
      attentionCase({ queries: 2, keys: 197, dim: 6 }, { isCausal: true, queryOffset: 190 }, dtype),
    ),
    // A generated token is such a call: many heads of one query, of which some share keys.
    attentionCase(
      { batch: 2, heads: 6, kvHeads: 2, queries: 1, keys: 110, dim: 10 },
      { isCausal: true },
    ),
    attentionCase(
      { batch: 2, heads: 6, kvHeads: 3, queries: 2, keys: 110, dim: 4 },
      { isCausal: true, documents: 60, p: 0.3 },
    ),
    attentionCase({ heads: 4, kvHeads: 2, queries: 3, keys: 101, dim: 4 }, { mask: 'full' }),
    attentionCase({ queries: 290, keys: 290, dim: 4 }, { isCausal: true }),
    // No query sees any of the first keys, however large a device's blocks are.
    attentionCase(
      { queries: 8, keys: 300, dim: 4 },
      { isCausal: true, queryOffset: 290, window: 20 },
    ),
    // These calls have few heads and many keys, so some devices split their gradients by keys.
    ...FLOATS.map((dtype) =>
      attentionCase(
        { heads: 2, kvHeads: 1, queries: 97, keys: 395, dim: 4 },
        { isCausal: true, queryOffset: 290 },
        dtype,
      ),
    ),
    attentionCase({ queries: 9, keys: 12, dim: 256 }, { isCausal: true, queryOffset: 3 }),
    attentionCase({ queries: 66, keys: 66, dim: 65 }, { queryOffset: -2, isCausal: true }),
    // The first or the last queries of these calls see nothing: a whole block of them, and a part
    // of the next.
    attentionCase({ queries: 240, keys: 100, dim: 4 }, { isCausal: true }),
    attentionCase({ queries: 200, keys: 100, dim: 4 }, { isCausal: true, queryOffset: -98 }),
    attentionCase({ queries: 104, keys: 104, dim: 2 }, { window: 5, queryOffset: 101 }),
    attentionCase(
      { queries: 200, keys: 100, dim: 2 },
      { isCausal: true, window: 5, queryOffset: 97 },
    ),
    attentionCase({ queries: 200, keys: 200, dim: 4 }, { isCausal: true, window: 30 }),
    attentionCase({ queries: 140, keys: 140, dim: 3 }, { window: 20 }),
    attentionCase({ batch: 2, queries: 150, keys: 150, dim: 5 }, { isCausal: true, documents: 40 }),
    attentionCase({ heads: 2, queries: 70, keys: 90, dim: 4 }, { documents: 25, queryOffset: 20 }),
    ...(['full', 'rows', 'columns', 'hides rows'] as const).map((mask) =>
      attentionCase({ batch: 2, heads: 2, queries: 35, keys: 70, dim: 4 }, { mask }),
    ),
    attentionCase({ queries: 20, keys: 20, dim: 4 }, { mask: 'full', isCausal: true }, 'bf16'),
    ...FLOATS.map((dtype) =>
      attentionCase(
        { batch: 2, heads: 2, queries: 67, keys: 67, dim: 6 },
        { isCausal: true, p: 0.3 },
        dtype,
      ),
    ),
    attentionCase({ queries: 3, keys: 70, dim: 4 }, { isCausal: true, queryOffset: -1000 }),
    attentionCase(
      { queries: 5, keys: 70, dim: 2 },
      {
        says: 'large scores',
        fill: (name, i) => (name === 'q' ? 300 : name === 'k' ? (i % 7) - 3 : undefined),
      },
    ),
    // A GPU loads these rows by vectors, in more than one block of queries and of keys.
    ...FLOATS.map((dtype) =>
      attentionCase(
        { heads: 2, kvHeads: 1, queries: 70, keys: 70, dim: 64 },
        { isCausal: true, isAligned: true },
        dtype,
      ),
    ),
    attentionCase({ queries: 66, keys: 70, dim: 80 }, { isAligned: true, window: 40 }),
    attentionCase({ queries: 35, keys: 40, dim: 128 }, { isCausal: true, isAligned: true }),
    attentionCase(
      { batch: 2, heads: 2, kvHeads: 1, queries: 1, keys: 70, dim: 64 },
      { isCausal: true, isAligned: true },
    ),
    attentionCase(
      { batch: 2, queries: 66, keys: 66, dim: 64 },
      { isCausal: true, isAligned: true, isApart: true, documents: 20, p: 0.3 },
    ),
    // Encoders attend so: to all keys of a text that shares its row with others.
    attentionCase(
      { batch: 2, queries: 66, keys: 66, dim: 64 },
      { isAligned: true, isApart: true, documents: 20, p: 0.3 },
    ),
    attentionCase(
      { heads: 2, kvHeads: 1, queries: 66, keys: 66, dim: 64 },
      { isCausal: true, isAligned: true, isApart: true },
    ),
    // All blocks are whole and nothing is hidden, so only the score of -infinity has the weight 0.
    attentionCase(
      { queries: 16, keys: 128, dim: 4 },
      {
        says: 'a score of -infinity',
        fill: (name, i) =>
          name === 'q' ? 10 + (i % 3) : name === 'k' && i === 281 ? -3e38 : undefined,
      },
    ),
  ];
}

/**
 * Returns cases in which keys hold NaN and infinities that some rows of a block see and other rows
 * of the same block do not.
 */
export function hiddenKeyCases(): ConformanceCase[] {
  const hidden = Number.NaN;
  const { POSITIVE_INFINITY: most, NEGATIVE_INFINITY: least } = Number;
  return [
    attentionCase(
      { queries: 70, keys: 70, dim: 4 },
      {
        isCausal: true,
        says: 'NaN in keys, values and slopes',
        fill: (name, i) => (name !== 'q' && i >= 33 * 4 && i < 34 * 4 ? hidden : undefined),
      },
    ),
    attentionCase(
      { queries: 70, keys: 70, dim: 4 },
      {
        documents: 30,
        says: 'infinite values and NaN in another document',
        fill: (name, i) => (i === 65 * 4 + 1 ? (name === 'v' ? most : hidden) : undefined),
      },
    ),
    attentionCase(
      { heads: 2, queries: 2, keys: 70, dim: 4 },
      {
        isCausal: true,
        queryOffset: 60,
        says: 'NaN in keys and values behind the last query',
        fill: (name, i) => (name !== 'q' && name !== 'dOut' && i >= 62 * 8 ? hidden : undefined),
      },
    ),
    attentionCase(
      { queries: 6, keys: 70, dim: 4 },
      {
        isCausal: true,
        says: 'scores of -infinity',
        fill: (name, i) => (name === 'q' && i < 4 ? least : name === 'k' ? 1 + i / 300 : undefined),
      },
    ),
  ];
}

function attentionCase(shape: Shape, options: Options, dtype: DType = 'f32'): ConformanceCase {
  const { batch = 1, heads = 1, kvHeads = heads, queries, keys, dim } = shape;
  const { fill: _, ...rest } = options;
  const said = Object.entries(rest).map(([key, value]) =>
    key === 'says' ? value : `${key} ${value}`,
  );
  const name = `attention ${dtype} [${batch}, ${heads}/${kvHeads}, ${queries}/${keys}, ${dim}] ${said.join(', ')}`;
  return recordedCase(name, 'transcendental', (calls) =>
    runAttention(calls, shape, { ...options, dtype }),
  );
}

/** Runs forward, backward, and the mask's gradient where there is a mask. */
export function runAttention(
  calls: CallRecorder,
  shape: Shape,
  { dtype, fill, ...options }: Options & { readonly dtype: DType },
): void {
  const { batch = 1, heads = 1, kvHeads = heads, queries, keys, dim } = shape;
  const special = (operand: Parameters<NonNullable<Options['fill']>>[0], size: number) =>
    Array.from({ length: size }, (_, i) => fill?.(operand, i) ?? calls.random.uniform(-1, 1));
  // Keys and values lie side by side in rows with a few more columns; queries have rows of their
  // own.
  const more = options.isAligned === true ? 4 : 2;
  const width = 2 * kvHeads * dim + more;
  const kValues = special('k', batch * keys * kvHeads * dim);
  const vValues = special('v', kValues.length);
  const kv = calls.values(
    Array.from({ length: batch * keys * width }, (_, i) => {
      const column = i % width;
      const from = Math.floor(i / width) * kvHeads * dim;
      const half = kvHeads * dim;
      if (column >= 2 * half) {
        return Number.NaN;
      }
      return column < half ? kValues[from + column]! : vValues[from + column - half]!;
    }),
    dtype,
  );
  const offset = options.isAligned === true ? 4 : even(dtype);
  const q = calls.values(special('q', batch * queries * heads * dim), dtype, { offset });
  const kvStrides = { batch: keys * width, head: dim, row: width };
  const kvSize = batch * keys * width - more - kvHeads * dim;
  const base: Omit<
    AttentionOperands,
    'q' | 'k' | 'v' | 'out' | 'stats' | 'mask' | 'querySegments' | 'keySegments'
  > = {
    batch,
    numHeads: heads,
    numKvHeads: kvHeads,
    numQueries: queries,
    numKeys: keys,
    dim,
    scale: 0.7,
    queryOffset: options.queryOffset ?? keys - queries,
    isCausal: options.isCausal ?? false,
    window: options.window ?? 0,
    qStrides: { batch: queries * heads * dim, head: dim, row: heads * dim },
    kStrides: kvStrides,
    vStrides: kvStrides,
    maskStrides: maskStrides(options.mask, [batch, heads, queries, keys]),
    dropout:
      options.p === undefined
        ? undefined
        : { p: options.p, key0: 77, key1: 5, counterOffset: 2 ** 33 + 3 },
  };
  const numRows = batch * heads * queries;
  const call = {
    ...base,
    q,
    k: calls.slice(kv, 0, kvSize),
    v: calls.slice(kv, kvHeads * dim, kvSize),
    mask: maskOf(calls, options.mask, [batch, heads, queries, keys]),
    ...segmentsOf(calls, options, { batch, queries, keys }),
    out: calls.output(numRows * dim, dtype, { tolerance: 'sum' }),
    // The second half of stats sums products with results that a device has rounded to 16 bits.
    stats: calls.output(2 * numRows, 'f32', { tolerance: dtype === 'f32' ? 'sum' : 'cancelling' }),
  };
  calls.run('attention', call);
  const gradients = () => calls.output(batch * keys * width, dtype, { tolerance: 'sum' });
  const wide = gradients();
  const dOut = calls.values(special('dOut', numRows * dim), dtype, { offset });
  calls.run('attentionBackward', {
    ...call,
    dOut,
    dq: calls.output(q.size, dtype, { tolerance: 'sum' }),
    dk: calls.slice(wide, 0, kvSize),
    dv: calls.slice(options.isApart ? gradients() : wide, kvHeads * dim, kvSize),
  });
  if (call.mask !== undefined) {
    const dMask = calls.output(call.mask.size, 'f32', { offset: 1, tolerance: 'sum' });
    calls.run('attentionMaskGradient', { ...call, dOut, dMask });
  }
}

function even(dtype: DType): number {
  return byteSize(dtype) === 2 ? 2 : 1;
}

type Extent = readonly [batch: number, heads: number, queries: number, keys: number];

function maskStrides(
  kind: Options['mask'],
  [, heads, queries, keys]: Extent,
): AttentionOperands['maskStrides'] {
  switch (kind) {
    case 'full':
      return [heads * queries * keys, queries * keys, keys, 1];
    case 'rows':
      return [queries, 0, 1, 0];
    case 'columns':
      return [0, 0, 0, 1];
    case 'hides rows':
      return [0, 0, keys, 1];
    default:
      return [0, 0, 0, 0];
  }
}

function maskOf(
  calls: CallRecorder,
  kind: Options['mask'],
  [batch, heads, queries, keys]: Extent,
): View | undefined {
  const lowest = Number.NEGATIVE_INFINITY;
  const random = () => (calls.random.uniform(0, 1) < 0.3 ? lowest : calls.random.uniform(-2, 2));
  switch (kind) {
    case 'full':
      return calls.values(Array.from({ length: batch * heads * queries * keys }, random), 'f32');
    case 'rows':
      return calls.values(Array.from({ length: batch * queries }, random), 'f16', { offset: 1 });
    case 'columns':
      return calls.values(Array.from({ length: keys }, random), 'f32', { offset: 1 });
    case 'hides rows': {
      const value = (_: unknown, i: number) => (Math.floor(i / keys) % 3 === 1 ? lowest : random());
      return calls.values(Array.from({ length: queries * keys }, value), 'bf16');
    }
    default:
      return undefined;
  }
}

function segmentsOf(
  calls: CallRecorder,
  { documents, queryOffset = 0 }: Options,
  {
    batch,
    queries,
    keys,
  }: { readonly batch: number; readonly queries: number; readonly keys: number },
): { readonly querySegments: View | undefined; readonly keySegments: View | undefined } {
  if (documents === undefined) {
    return { querySegments: undefined, keySegments: undefined };
  }
  const ids = (count: number, offset: number) =>
    calls.values(
      Array.from(
        { length: batch * count },
        (_, i) => Math.floor(((i % count) + offset) / documents) - 1,
      ),
      'i32',
    );
  const keySegments = ids(keys, 0);
  const isSelf = queries === keys && queryOffset === 0;
  return { querySegments: isSelf ? keySegments : ids(queries, queryOffset), keySegments };
}
