// The seam between tensors and devices: everything a device must be able to do.
// A backend is a queue over byte buffers. It knows nothing of autograd, ownership, pools or
// tags; those live above it and are the same for every device. Three implementations: webgpu,
// cpu (WebAssembly) and reference (plain float64 loops, the specification of every kernel).
//
// Ordering   alloc, write, copy, run and read take effect in call order, as on one queue. All
//            but read and sync return at once, having at most encoded the work.
// Ownership  a BackendBuffer belongs to whoever allocated it and is freed once. It may be freed
//            while queued work uses it; its bytes may be handed out again to later commands.
// Failure    run never throws for the device's state. A lost device or a shader error rejects the
//            next read or sync, and every later one, with a typed error.
// Memory     a failed allocation is not the end: first whoever keeps memory for reuse gives it back
//            (see onMemoryPressure) and it is tried again, then OutOfMemoryError fails that alloc, write,
//            run or read alone. A device that learns of it late (webgpu) fails the next read or sync
//            in its place: what was queued since the allocation may not have run. The buffer is then
//            lost: commands that name it throw OutOfMemoryError, and those without it run as ever.
// Aliasing   an output overlaps no input, except exactly (same buffer, offset, dtype, size)
//            where a kernel's comment says "in place". Callers check; backends may rely on it.
// Alignment  byteOffset is a multiple of the dtype's size, for outputs also of 4. 16-bit outputs
//            are written as whole 32-bit words, so the last word's other half may be clobbered:
//            buffers are padded to 4 bytes. Kernels with output strides say what they need.
// Numbers    every kernel computes in f32 (cpu and webgpu) whatever the storage, and rounds to
//            nearest even once, at the store. Sums have a fixed order, independent of threads.

import type { DType } from '@shardweave/dtypes';

/** An allocation on a device. Contents are undefined until written. */
export interface BackendBuffer {
  /** Unique for the life of the backend; never reused, so it can key a cache of bind groups. */
  readonly id: number;
  /** A multiple of 4, at least 4. */
  readonly byteLength: number;
  /** Whether its allocation is known to have failed: it can only be freed. */
  readonly isLost?: boolean;
}

/** A contiguous run of elements inside a buffer. */
export interface View {
  readonly buffer: BackendBuffer;
  readonly byteOffset: number;
  readonly dtype: DType;
  /** In elements. */
  readonly size: number;
}

export interface BackendLimits {
  /** Largest buffer that alloc can make. */
  readonly maxBufferBytes: number;
  /**
   * Largest view of one operand that a kernel accepts at once. Kernels marked "any size" split
   * larger views themselves; for the others the op above throws LimitError.
   */
  readonly maxViewBytes: number;
}

export interface BackendInfo {
  readonly kind: 'webgpu' | 'cpu' | 'reference';
  /** For people: adapter name and driver, or 'wasm relaxed simd, 2 threads'. */
  readonly description: string;
  readonly isSoftware: boolean;
  /** What its kernels are compiled for, as far as bits depend on it: adapter and driver; '' for nothing. */
  readonly compiledFor: string;
  /** Whether the device computes on the host's own memory (reads and writes are memcpy). */
  readonly isHostMemory: boolean;
  readonly limits: BackendLimits;
}

/** Receives what a profiler shows; times in ms on the clock of performance.now(). */
export type BackendTraceSink = (event: {
  readonly name: string;
  readonly track: 'device' | 'staging';
  readonly startMs: number;
  readonly endMs: number;
  readonly bytes?: number;
}) => void;

/**
 * Where a kernel's intermediate results lie while it runs. The device that queued the kernel counts
 * them and holds them under its limit; take throws LimitError and OutOfMemoryError as it does for tensors.
 */
export interface Scratch {
  /** `byteLength` is a multiple of 4. */
  take(byteLength: number): BackendBuffer;
  give(buffer: BackendBuffer): void;
}

export interface Backend {
  readonly info: BackendInfo;

  /**
   * `byteLength` is a multiple of 4.
   * @throws {LimitError} above maxBufferBytes, and OutOfMemoryError
   * where the device knows at once that there is no room.
   */
  alloc(byteLength: number, label: string): BackendBuffer;
  free(buffer: BackendBuffer): void;

  /** Uploads; `bytes` is copied before this returns. Offset and length are multiples of 4. */
  write(buffer: BackendBuffer, byteOffset: number, bytes: Uint8Array): void;
  /**
   * Reads back once everything queued before has run. Fills and returns `into` (whose length is
   * byteLength), or a fresh array. Offset and length are multiples of 4.
   */
  read(
    buffer: BackendBuffer,
    byteOffset: number,
    byteLength: number,
    into?: Uint8Array,
  ): Promise<Uint8Array>;
  /** Between different buffers; offsets and length are multiples of 4. */
  copy(
    from: BackendBuffer,
    fromOffset: number,
    to: BackendBuffer,
    toOffset: number,
    byteLength: number,
  ): void;
  /**
   * Queues one kernel. What it needs in between it takes from `scratch`, or without one from memory of
   * the backend's own.
   */
  run<K extends KernelName>(kernel: K, call: KernelCalls[K], scratch?: Scratch): void;
  /** Takes from `scratch`, and gives back, what `run` would, and queues nothing. Absent: nothing. */
  planScratch?<K extends KernelName>(kernel: K, call: KernelCalls[K], scratch: Scratch): void;

  /**
   * Calls `relieve` whenever an allocation fails, for it to give back what it keeps for reuse. Several
   * ranks that share the backend relieve each other. Returns its removal. A device that computes
   * nothing may lack it.
   */
  onMemoryPressure?(relieve: () => void): () => void;

  /** Hands everything encoded so far to the device; does not wait. */
  flush(): void;
  /** Resolves when everything queued so far has run. */
  sync(): Promise<void>;
  /** Bytes held by buffers that were allocated and not freed, and their number. */
  usage(): { readonly bytes: number; readonly buffers: number };
  /** Kernels queued since creation; for tests that count dispatches. */
  readonly dispatches: number;
  /** Starts (or with undefined stops) reporting kernel and staging times. */
  trace(sink: BackendTraceSink | undefined): void;
  /** Frees everything and stops its threads. Pending reads reject. Idempotent. */
  dispose(): Promise<void>;
}

// ---- kernels ---------------------------------------------------------------------------------
// Views are dense and row-major unless strides are given. "float" is f32, f16 or bf16; views of
// one call may mix float dtypes freely. Strides are in elements.

export type UnaryKind =
  | 'neg'
  | 'abs'
  | 'exp'
  | 'log'
  | 'sqrt'
  | 'rsqrt'
  | 'square'
  | 'reciprocal'
  | 'tanh'
  | 'sigmoid'
  | 'sin'
  | 'cos'
  | 'relu'
  | 'silu'
  | 'gelu'
  | 'geluTanh';

/** What a gate passes its first half through. */
export type GateKind = 'silu' | 'gelu' | 'geluTanh';

export type BinaryKind = 'add' | 'sub' | 'mul' | 'div' | 'maximum' | 'minimum' | 'pow';

/** A comparison; NaN is in none but 'ne'. */
export type CompareKind = 'eq' | 'ne' | 'lt' | 'le' | 'gt' | 'ge';

/** Hyperparameters of one optimizer group. Bias corrections are 1 - beta^t, made on the host. */
export interface AdamGroup {
  readonly lr: number;
  readonly beta1: number;
  readonly beta2: number;
  readonly eps: number;
  readonly weightDecay: number;
  readonly biasCorrection1: number;
  readonly biasCorrection2: number;
  /** true: AdamW (param *= 1 - lr*wd before the step); false: Adam (grad += wd*param). */
  readonly decoupled: boolean;
}

export interface SgdGroup {
  readonly lr: number;
  readonly momentum: number;
  readonly dampening: number;
  readonly weightDecay: number;
  readonly nesterov: boolean;
  /** On the first step the momentum buffer is set to the gradient, as PyTorch does. */
  readonly isFirstStep: boolean;
}

/** Elements [start, start + length) of a flat view belong to optimizer group `group`. */
export interface Segment {
  readonly start: number;
  readonly length: number;
  readonly group: number;
}

/** Elements [start, start + length) of a view. */
export interface Span {
  readonly start: number;
  readonly length: number;
}

/** How far apart the parts of one operand of attention lie, in elements; columns have stride 1. */
export interface HeadStrides {
  readonly batch: number;
  readonly head: number;
  readonly row: number;
}

/** What both passes of attention take. */
export interface AttentionOperands {
  /** Queries: rows [batch, numHeads, numQueries, dim] through qStrides. */
  q: View;
  /** Keys: rows [batch, numKvHeads, numKeys, dim] through kStrides. */
  k: View;
  /** Values, as the keys, through vStrides. */
  v: View;
  /** Rows as the queries', dense as [batch, numQueries, numHeads, dim]. */
  out: View;
  /**
   * f32 [2, batch, numHeads, numQueries]. Forward writes the first half: log-sum-exp of each row's scores,
   * -inf where it sees nothing. Backward reads it and writes the second: sum(dOut * out) of each row.
   */
  stats: View;
  /** Added to the scores, any float, [batch, numHeads, numQueries, numKeys] through maskStrides; -inf hides. */
  mask: View | undefined;
  /** u32 or i32 [batch, numQueries] and [batch, numKeys], both or none: a query sees keys of its own number. */
  querySegments: View | undefined;
  keySegments: View | undefined;
  batch: number;
  /** A multiple of numKvHeads: consecutive query heads share keys and values. */
  numHeads: number;
  numKvHeads: number;
  numQueries: number;
  numKeys: number;
  /** At most MAX_HEAD_DIM; in 16 bits even. */
  dim: number;
  scale: number;
  /** Query i stands at position queryOffset + i, key j at j. A whole number, of either sign. */
  queryOffset: number;
  /** Whether a query sees no key behind its own position. */
  isCausal: boolean;
  /** Above 0: a query sees keys that are less than so many positions away. */
  window: number;
  qStrides: HeadStrides;
  kStrides: HeadStrides;
  vStrides: HeadStrides;
  /** May be 0; the last is 0 or 1. */
  maskStrides: readonly [batch: number, head: number, row: number, column: number];
  /** Drops weights as `dropout` does elements of [batch, numHeads, numQueries, numKeys]. */
  dropout:
    | {
        readonly p: number;
        readonly key0: number;
        readonly key1: number;
        readonly counterOffset: number;
      }
    | undefined;
}

/** Largest head of attention. */
export const MAX_HEAD_DIM = 256;

/** Elements whose magnitudes a norm adds up by themselves, before anything else; see normNodes. */
export const NORM_BLOCK_ELEMENTS = 128;
/** Most elements behind one result of normNodes: 256 blocks. */
export const NORM_NODE_ELEMENTS = 256 * NORM_BLOCK_ELEMENTS;

/** Values of a tensor as a custom kernel's plain twin sees them, row-major, whatever the storage. */
export interface PlainArray {
  readonly shape: readonly number[];
  readonly data: Float64Array;
}

/** A user's kernel: see defineOp, which makes and checks it. */
export interface CustomKernel {
  /** Equal names don't make equal kernels: the text does. */
  readonly name: string;
  readonly params: Readonly<Record<string, 'f32' | 'u32'>>;
  /** Declares `element`, with the accessors of each input and the parameters `P`. */
  readonly wgsl: string;
  /** The same on the host: fills out.data. */
  plain(
    inputs: Readonly<Record<string, PlainArray>>,
    out: PlainArray,
    params: Readonly<Record<string, number>>,
  ): void;
}

export interface KernelCalls {
  /** out[i] = value, converted to out's dtype. Any size. */
  fill: { out: View; value: number };

  /**
   * out[i] = x[i] in another dtype, any pair, any size. Float to float rounds to nearest even and
   * keeps NaN, infinities and subnormals. Float to integer truncates toward zero and saturates,
   * NaN gives 0. Integer to integer keeps the bits.
   */
  cast: { x: View; out: View };

  /** out[i] = f(x[i]), float, in place allowed, any size. gelu is the erf form. */
  unary: { kind: UnaryKind; x: View; out: View };
  /** out[i] = dy[i] * f'(x[i]), in place over dy allowed, any size. relu'(0) = 0, abs'(0) = 0. */
  unaryBackward: { kind: UnaryKind; x: View; dy: View; out: View };

  /**
   * out[r, c] = f(gate[r, c]) * up[r, c], float, out dense [rows, cols]. Rows of gate and up are `row`
   * apart: cols, or 2 * cols where they are the halves of one operand. Any size.
   */
  gated: {
    kind: GateKind;
    gate: View;
    up: View;
    out: View;
    rows: number;
    cols: number;
    row: number;
  };
  /**
   * Gradients of the above. Of 'gate': dy * up * f'(gate), and of 'up': dy * f(gate), both dense [rows,
   * cols]; of 'both': [rows, 2 * cols], that of gate in front. Any size.
   */
  gatedBackward: {
    kind: GateKind;
    of: 'gate' | 'up' | 'both';
    gate: View;
    up: View;
    dy: View;
    out: View;
    rows: number;
    cols: number;
    row: number;
  };

  /**
   * Of heads h < numRotated of x [tokens, heads, 2 * half]: columns j and j + half are a point that turns
   * by position * frequency j, or back where inverse; other heads are copied. frequencies: u32 [2, half],
   * high and low words of turns * 2^64; angles are products of integers, modulo a turn. Token t stands
   * at positions[t mod period] (u32 or i32, below 2^31), or at offset + t mod period. Any size.
   */
  rotary: {
    x: View;
    frequencies: View;
    positions: View | undefined; // [period]
    out: View;
    tokens: number;
    heads: number;
    numRotated: number;
    half: number;
    period: number;
    offset: number;
    isInverse: boolean;
  };

  /** out[i] = x[i] * scale + shift, float, in place allowed, any size. */
  affine: { x: View; out: View; scale: number; shift: number };

  /**
   * out = a (kind) b over `shape` (rank 1 to 6), out dense, a and b read through strides (0
   * broadcasts). Floats mix; integers must agree in dtype and have no div and pow. In place over a
   * or b where its strides are dense. Any size when all three are dense and equal in shape.
   */
  binary: {
    kind: BinaryKind;
    a: View;
    b: View;
    out: View;
    shape: readonly number[];
    aStrides: readonly number[];
    bStrides: readonly number[];
  };

  /**
   * out = 1 where a (kind) b over `shape` (rank 1 to 6), else 0; out u32, dense. Operands as binary's. Any
   * size when both are dense.
   */
  compare: {
    kind: CompareKind;
    a: View;
    b: View;
    out: View;
    shape: readonly number[];
    aStrides: readonly number[];
    bStrides: readonly number[];
  };
  /**
   * out = a where condition (u32 or i32) is not 0, else b, over `shape` (rank 1 to 6), out dense; a and b
   * as binary's. Any size when all are dense.
   */
  where: {
    condition: View;
    a: View;
    b: View;
    out: View;
    shape: readonly number[];
    conditionStrides: readonly number[];
    aStrides: readonly number[];
    bStrides: readonly number[];
  };

  /**
   * out[o, n, i] = x[o, ids[o, n, i], i] of x [outer, dim, inner], ids (u32 or i32) and out [outer, count,
   * inner], of any dtype; an id outside [0, dim) gives 0. Any number of outer ones.
   */
  gather: {
    x: View;
    ids: View;
    out: View;
    outer: number;
    dim: number;
    inner: number;
    count: number;
  };
  /** dx[o, d, i] = sum over n with ids[o, n, i] = d of dy[o, n, i], in order of n, in f32; all is written. */
  gatherBackward: {
    ids: View;
    dy: View;
    dx: View;
    outer: number;
    dim: number;
    inner: number;
    count: number;
  };
  /**
   * out (i32 or u32) [outer, count, inner]: indices of the largest along dim of x (float), in descending
   * order, the first of equal ones first; NaN is the largest, and zeros of both signs are equal.
   */
  topK: { x: View; out: View; outer: number; dim: number; inner: number; count: number };
  /** Sums along dim up to and with each element, from its end where isReverse. Integers wrap. */
  cumSum: {
    x: View;
    out: View; // [outer, dim, inner], an integer where x is
    outer: number;
    dim: number;
    inner: number;
    isReverse: boolean;
  };

  /**
   * out[outOffset + sum(i*outStrides)] = x[xOffset + sum(i*xStrides)] for all i in `shape` (rank 1
   * to 6), equal dtypes, any dtype: transpose, slice, cat, expand. x strides may be 0, never
   * negative. 16-bit outputs: either dense over the whole of out with outOffset 0, or last out
   * stride 1 with outOffset, last extent and the other out strides even.
   */
  copyStrided: {
    x: View;
    out: View;
    shape: readonly number[];
    xOffset: number;
    xStrides: readonly number[];
    outOffset: number;
    outStrides: readonly number[];
  };

  /** x [outer, dim, inner] -> out [outer, inner], float. */
  reduce: {
    kind: 'sum' | 'mean' | 'max' | 'min';
    x: View;
    out: View;
    outer: number;
    dim: number;
    inner: number;
  };
  /**
   * Gradient of max or min: dy split evenly among the entries of x equal to y. A line whose y is NaN
   * has none equal to it, and its gradient is NaN.
   */
  extremumBackward: {
    x: View; // [outer, dim, inner]
    y: View; // [outer, inner]
    dy: View; // [outer, inner]
    out: View; // [outer, dim, inner]
    outer: number;
    dim: number;
    inner: number;
  };

  /**
   * Row softmax (or log-softmax) of scale * x, [rows, cols], in place allowed. With causalRows =
   * P > 0, row r is query position t = r mod P and sees columns j <= t + cols - P; the others
   * become 0 (log: -inf).
   */
  softmax: {
    x: View;
    out: View;
    rows: number;
    cols: number;
    scale: number;
    isLog: boolean;
    causalRows: number;
  };
  /** From y = softmax(scale * x): out = scale * y * (dy - sum(dy * y)); isLog: scale * (dy - exp(y) * sum(dy)). In place over dy allowed. */
  softmaxBackward: {
    y: View;
    dy: View;
    out: View;
    rows: number;
    cols: number;
    scale: number;
    isLog: boolean;
  };

  /**
   * out = (x - mean) * rstd * weight + bias per row of [rows, cols]; mean, rstd f32 [rows]; biased
   * variance. With a residual, sum = x + residual is stored, and what was stored is normalized.
   */
  layerNorm: {
    x: View;
    residual?: View | undefined;
    sum?: View | undefined;
    weight: View | undefined; // [cols]
    bias: View | undefined; // [cols]
    out: View;
    mean: View;
    rstd: View;
    rows: number;
    cols: number;
    eps: number;
  };
  /** dx of the above, x being what was normalized; dSum is added last where given. */
  layerNormBackward: {
    x: View;
    weight: View | undefined;
    mean: View;
    rstd: View;
    dy: View;
    dSum?: View | undefined;
    dx: View;
    rows: number;
    cols: number;
  };
  /** dWeight = sum over rows of dy * xhat, dBias = sum over rows of dy; either may be absent. */
  layerNormParamGrad: {
    x: View;
    mean: View;
    rstd: View;
    dy: View;
    dWeight: View | undefined;
    dBias: View | undefined;
    rows: number;
    cols: number;
  };

  /**
   * out = x * rstd * (weight + weightOffset) per row of [rows, cols]; rstd = 1 / sqrt(mean(x^2) + eps),
   * f32 [rows]. With a residual, sum = x + residual is stored, and what was stored is normalized.
   */
  rmsNorm: {
    x: View;
    residual: View | undefined;
    sum: View | undefined;
    weight: View | undefined; // [cols]
    weightOffset: number;
    out: View;
    rstd: View;
    rows: number;
    cols: number;
    eps: number;
  };
  /** dx of the above, dSum added last where given, and dWeight; either of them may be absent. */
  rmsNormBackward: {
    x: View;
    weight: View | undefined;
    weightOffset: number;
    rstd: View;
    dy: View;
    dSum: View | undefined;
    dx: View | undefined;
    dWeight: View | undefined;
    rows: number;
    cols: number;
  };

  /** out[i, :] = table[ids[i], :]; ids u32 or i32 [count]; an id outside [0, rows) gives zeros. Any size of table. */
  embedding: { table: View; ids: View; out: View; rows: number; cols: number; count: number };
  /** dTable[v, :] = sum over i with ids[i] = v of dy[i, :], in order of i; all rows are written. Any size of table. */
  embeddingBackward: {
    ids: View;
    dy: View;
    dTable: View;
    rows: number;
    cols: number;
    count: number;
  };

  /**
   * loss[i] = logSumExp(logits[i, :]) - logits[i, targets[i]]; lse[i] = logSumExp; both f32 [rows];
   * targets u32 or i32. A target outside [0, cols) gives loss 0. Any size.
   */
  crossEntropy: { logits: View; targets: View; loss: View; lse: View; rows: number; cols: number };
  /** out[i, j] = dLoss[i] * (exp(logits[i, j] - lse[i]) - (j == targets[i])); rows without a target get 0. In place over logits allowed. Any size. */
  crossEntropyBackward: {
    logits: View;
    targets: View;
    lse: View; // f32 [rows]
    dLoss: View; // f32 [rows]
    out: View;
    rows: number;
    cols: number;
  };

  /**
   * out[i] = keep(i) ? x[i] / (1 - p) : 0, in place allowed, any size. keep(i): with e =
   * counterOffset + i, word (e mod 4) of Philox4x32-10 with key (key0, key1) and counter
   * (floor(e / 4) low 32, high 32, 0, 0) is >= floor(p * 2^32). Its own gradient kernel.
   */
  dropout: { x: View; out: View; p: number; key0: number; key1: number; counterOffset: number };

  /**
   * Random numbers, equal to the bit on all devices: out[i] = n * scale, f32 rounded to out's dtype, where
   * the integer n is made of word (e mod 4) of dropout's generator at e = counterOffset + i. uniform: n = 2
   * floor(word / 2^8) + 1 - 2^24. normal: n / 2^21 is the normal number below which lies the part (first +
   * word * range / 2^32) / 2^32 of all, range 0 standing for 2^32; see random-recipe.ts. Any size.
   */
  random: {
    kind: 'uniform' | 'normal';
    out: View;
    key0: number;
    key1: number;
    counterOffset: number;
    scale: number;
    first: number;
    range: number;
  };

  /**
   * out = dropped(softmax(scale * q k^T + mask)) v by head, over the keys that each query sees (Dao,
   * "FlashAttention-2", 2023): nothing of numQueries x numKeys is kept, and blocks that no row of
   * theirs sees are passed over. A row that sees nothing is 0. A key that a row doesn't see reaches
   * nothing of it, NaN neither, but on CPU drivers of webgpu, which multiply NaN by the weight 0 of
   * keys that rows nearby see. q, k, v and out have one dtype.
   */
  attention: AttentionOperands;
  /**
   * Gradients of the above, scores computed again and their weights from stats: dq, dk and dv are of
   * the sizes, strides and dtype of q, k and v, and of one buffer where their elements are apart. Sums
   * over the queries (dk, dv) run head by head of a group and along the rows, or rows first where a
   * device takes all heads at once; those over the keys (dq) ascend. The order is fixed.
   */
  attentionBackward: AttentionOperands & {
    dOut: View; // as out
    dq: View;
    dk: View;
    dv: View;
  };

  /**
   * out[b] = alpha * op(a[b]) x op(b[b]) + bias (+ out[b] if accumulate), for outer x inner
   * batches. op(a) is m x k: stored [m, k] with row stride aRow, or if transposeA [k, m] with row
   * stride aRow; op(b) is k x n: stored [k, n], or if transposeB [n, k], with row stride bRow;
   * out [m, n] with row stride outRow. Columns have stride 1. Batch strides may be 0 for a and b.
   * bias: [n]. 16-bit out: dense, or n, outRow and the batch strides even. Operands with batch 1
   * may have any size as long as two of their stored rows fit a view; LimitError else.
   */
  matmul: {
    a: View;
    b: View;
    out: View;
    bias: View | undefined;
    m: number;
    n: number;
    k: number;
    transposeA: boolean;
    transposeB: boolean;
    aRow: number;
    bRow: number;
    outRow: number;
    batch: readonly [outer: number, inner: number];
    aBatch: readonly [outer: number, inner: number];
    bBatch: readonly [outer: number, inner: number];
    outBatch: readonly [outer: number, inner: number];
    alpha: number;
    accumulate: boolean;
  };

  /**
   * Norms, first part. Each span is cut into nodes of NORM_NODE_ELEMENTS, the last one shorter, and
   * nodes into blocks of NORM_BLOCK_ELEMENTS. A block is the sum of |x[i]|^power, or the largest
   * |x[i]| where power is Infinity, in an order that depends on its length alone; below the smallest
   * normal number it counts as 0. Neighboring blocks are added, then neighbors of those, and so on;
   * one without a neighbor stays. out f32: the nodes of the first span, then those of the next.
   * Spans ascend and don't overlap. x float, of any size, but a node must fit a view.
   */
  normNodes: { x: View; out: View; spans: readonly Span[]; power: number };
  /**
   * Norms, second part: out[i] is span i of x, f32, added up as blocks are in normNodes, or its
   * largest element where isMax.
   */
  normTree: { x: View; out: View; spans: readonly Span[]; isMax: boolean };
  /**
   * norm[0] = unscale * sqrt(squares[0]) and scale[0] = unscale * min(1, maxNorm / (norm[0] + 1e-6)),
   * where maxNorm is Infinity unscale itself; all f32 [1]. Each operation is rounded to f32 correctly
   * on every device, division and root too; a bound or a quotient below the normal numbers counts as 0.
   */
  clipFactor: { squares: View; norm: View; scale: View; maxNorm: number; unscale: number };

  /**
   * One Adam or AdamW step as PyTorch's, in place on param, expAvg, expAvgSq (f32, equal sizes);
   * grad float, multiplied by gradScale[0] (f32 [1]) where given. Elements of no segment are left
   * alone. Segments ascend and don't overlap; keep the array's identity, so it can key a cache.
   * Any size.
   */
  adam: {
    param: View;
    grad: View;
    expAvg: View;
    expAvgSq: View;
    gradScale: View | undefined;
    groups: readonly AdamGroup[];
    segments: readonly Segment[];
  };
  /** One SGD step as PyTorch's; momentumBuffer absent where all momentums are 0. As adam otherwise. */
  sgd: {
    param: View;
    grad: View;
    momentumBuffer: View | undefined;
    gradScale: View | undefined;
    groups: readonly SgdGroup[];
    segments: readonly Segment[];
  };

  /**
   * out[i] = element(i) of a user's kernel, in any dtypes, from all of the inputs; out dense. Where the
   * device computes on the host's memory the plain twin runs in its place, in float64, in queue order;
   * what it throws rejects the next read or sync, as a shader error does, or is thrown at once.
   */
  custom: {
    kernel: CustomKernel;
    inputs: Readonly<Record<string, View>>;
    out: View;
    /** Of the inputs by name, and of 'out'. */
    shapes: Readonly<Record<string, readonly number[]>>;
    params: Readonly<Record<string, number>>;
  };
}

export type KernelName = keyof KernelCalls;
