// The map of the memory that host, workers and kernels share: control words, the ring of commands
// and the codes in them. Plain constants only: this file is compiled both by TypeScript and by
// AssemblyScript, so the two sides cannot disagree.

// ---- regions, in bytes -----------------------------------------------------------------------
// Below 64 KiB lie AssemblyScript's own tables.
export const CONTROL_BASE = 65536;
export const RING_BASE = 69632;
export const SLOT_BYTES = 256;
/** Commands that fit the ring; a power of two. */
export const RING_SLOTS = 2048;
export const SCRATCH_BASE = 593920; // RING_BASE + SLOT_BYTES * RING_SLOTS
/**
 * What one thread needs: four blocks of f32, the packed panels of a product and its output tile.
 */
export const SCRATCH_BYTES = 2637824;
/** The part of the scratch that the packed panels of b take. */
export const MATMUL_PANEL_BYTES = 2162688;
/** The most columns of b that are packed at once, for f32 results. */
export const MATMUL_COLUMNS = 1024;
/** The same for 16-bit results, whose f32 sums wait in the scratch too until they are rounded. */
export const MATMUL_NARROW_COLUMNS = 512;
/** Terms of a result that are added up before they join the others. */
export const MATMUL_DEPTH = 256;

// ---- control words, byte offsets from CONTROL_BASE (apart by a cache line) --------------------
/** Commands published by the host. */
export const CTL_HEAD = 0;
/** Commands that have run entirely. */
export const CTL_COMPLETED = 64;
/** Changes whenever a sleeping thread should look again. */
export const CTL_SIGNAL = 128;
/** Threads asleep, or about to be. */
export const CTL_SLEEPERS = 192;
/** Not 0: threads leave their loop. */
export const CTL_STOP = 256;

// ---- a command: words (4 bytes) of a slot ------------------------------------------------------
/** Next chunk to hand out. Together with SLOT_SEQ one 64-bit word, changed by compare-exchange. */
export const SLOT_NEXT = 0;
/** Number of the command: tells a thread that was delayed that the slot has been reused. */
export const SLOT_SEQ = 1;
export const SLOT_DONE = 2;
export const SLOT_CHUNKS = 3;
export const SLOT_OP = 4;
/** Not 0: stamp times. */
export const SLOT_TRACE = 5;
/** f64 ms, start and end. */
export const SLOT_START = 8;
export const SLOT_END = 10;
export const SLOT_ARGS = 12;
export const SLOT_WORDS = 64;

// ---- codes ------------------------------------------------------------------------------------
// A new code takes any number that is free in its group (OP_, UNARY_, ...); gaps mean nothing.
// Order counts in three groups: floats come before integers, sums before extrema (REDUCE_), and
// arithmetic before comparisons (BINARY_).
export const F32 = 0;
export const F16 = 1;
export const BF16 = 2;
export const I32 = 3;
export const U32 = 4;

export const OP_FENCE = 0;
export const OP_COPY = 1;
export const OP_FILL = 2;
export const OP_CAST = 3;
export const OP_UNARY = 4;
export const OP_UNARY_BACKWARD = 5;
export const OP_AFFINE = 6;
export const OP_BINARY = 7;
export const OP_COPY_STRIDED = 8;
export const OP_REDUCE = 9;
export const OP_EXTREMUM_BACKWARD = 10;
export const OP_SOFTMAX = 11;
export const OP_SOFTMAX_BACKWARD = 12;
export const OP_LAYER_NORM = 13;
export const OP_LAYER_NORM_BACKWARD = 14;
export const OP_LAYER_NORM_PARAM_GRAD = 15;
export const OP_EMBEDDING = 16;
export const OP_EMBEDDING_BACKWARD = 17;
export const OP_CROSS_ENTROPY = 18;
export const OP_CROSS_ENTROPY_BACKWARD = 19;
export const OP_DROPOUT = 20;
export const OP_MATMUL = 21;
export const OP_NORM_NODES = 22;
export const OP_ADAM = 23;
export const OP_SGD = 24;
export const OP_NORM_TREE = 25;
export const OP_CLIP_FACTOR = 26;
export const OP_NOOP = 27;
export const OP_GATED = 40;
export const OP_GATED_BACKWARD = 41;
export const OP_RMS_NORM = 42;
export const OP_RMS_NORM_BACKWARD = 43;
export const OP_ROTARY = 44;
export const OP_WHERE = 45;
export const OP_GATHER = 46;
export const OP_GATHER_BACKWARD = 47;
export const OP_TOP_K = 48;
export const OP_CUM_SUM = 49;
export const OP_RANDOM = 50;
export const OP_ATTENTION = 60;
export const OP_ATTENTION_BACKWARD = 61;
export const OP_ATTENTION_DELTA = 62;
export const OP_ATTENTION_QUERY_GRADIENT = 63;
export const OP_ATTENTION_MASK_GRADIENT = 64;

export const UNARY_NEG = 0;
export const UNARY_ABS = 1;
export const UNARY_EXP = 2;
export const UNARY_LOG = 3;
export const UNARY_SQRT = 4;
export const UNARY_RSQRT = 5;
export const UNARY_SQUARE = 6;
export const UNARY_RECIPROCAL = 7;
export const UNARY_TANH = 8;
export const UNARY_SIGMOID = 9;
export const UNARY_RELU = 10;
export const UNARY_GELU = 11;
export const UNARY_GELU_TANH = 12;
export const UNARY_SILU = 13;
export const UNARY_SIN = 14;
export const UNARY_COS = 15;

export const GATE_FIRST = 0;
export const GATE_SECOND = 1;
export const GATE_BOTH = 2;

export const BINARY_ADD = 0;
export const BINARY_SUB = 1;
export const BINARY_MUL = 2;
export const BINARY_DIV = 3;
export const BINARY_MAXIMUM = 4;
export const BINARY_MINIMUM = 5;
export const BINARY_POW = 6;
/** Comparisons follow: those results are words. */
export const BINARY_EQ = 7;
export const BINARY_NE = 8;
export const BINARY_LT = 9;
export const BINARY_LE = 10;
export const BINARY_GT = 11;
export const BINARY_GE = 12;

export const RANDOM_UNIFORM = 0;
export const RANDOM_NORMAL = 1;

export const REDUCE_SUM = 0;
export const REDUCE_MEAN = 1;
export const REDUCE_MAX = 2;
export const REDUCE_MIN = 3;

// ---- what host and kernels agree on about sizes -------------------------------------------------
/**
 * Elements that one pass over scratch handles; 16-bit operands are converted this many at a time.
 */
export const BLOCK = 2048;
/**
 * Rows up to which a product reads b where it lies: packing it would cost more than the products.
 */
export const MATMUL_FEW_ROWS = 5;
/** Columns that few rows are multiplied with at once, of b stored [k, n]. */
export const MATMUL_FEW_COLUMNS = 8192;
/** Columns that kernels over [outer, dim, inner] take at once; a unit of work when inner > 1. */
export const COLUMN_BLOCK = 256;
/** Rows whose part of a norm's weight gradient is summed by itself. */
export const NORM_PART_ROWS = 64;
/** Queries, or keys, that attention works on at once: forward 192 by 96, backward 96 by 192. */
export const ATTENTION_LONG = 192;
export const ATTENTION_SHORT = 96;
/**
 * Queries up to which attention reads keys and values where they lie, all heads of a key at once.
 */
export const ATTENTION_FEW = 3;
/** Elements of a block of a norm, and blocks of a node; the seam's (src/backend.ts). */
export const NORM_BLOCK = 128;
export const NORM_NODE_BLOCKS = 256;

export const NORM_SQUARE = 0;
export const NORM_POWER = 1;
export const NORM_MAX = 2;
