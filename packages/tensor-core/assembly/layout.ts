// This is the map of the memory that host, workers and kernels share: control words, the ring of
// commands and the codes in them. The file has plain constants only. TypeScript and AssemblyScript
// both compile it, so the two sides cannot disagree.

// ---- regions, in bytes -----------------------------------------------------------------------
// AssemblyScript's own tables lie below 64 KiB.
export const CONTROL_BASE = 65536;
export const RING_BASE = 69632;
export const SLOT_BYTES = 256;
/** The number of commands that fit the ring, a power of two. */
export const RING_SLOTS = 2048;
export const SCRATCH_BASE = 593920; // RING_BASE + SLOT_BYTES * RING_SLOTS
/**
 * The scratch of one thread: four blocks of f32, then the packed panels and sums of a product, or
 * what attention needs.
 */
export const SCRATCH_BYTES = 2637824;
/** The part of the scratch that the packed panels of b take. */
export const MATMUL_PANEL_BYTES = 2162688;
/** The most columns of b that are packed at once for f32 results. */
export const MATMUL_COLUMNS = 1024;
/**
 * The most columns of b that are packed at once for 16-bit results, whose f32 sums also wait in
 * scratch until they are rounded.
 */
export const MATMUL_NARROW_COLUMNS = 512;
/** The number of terms of a result that are added up before their sum is added to the others. */
export const MATMUL_DEPTH = 256;

// ---- control words: byte offsets from CONTROL_BASE, a cache line apart -------------------------
/** The number of commands that the host has published. */
export const CTL_HEAD = 0;
/** The number of commands that have run entirely. */
export const CTL_COMPLETED = 64;
/** A word that changes whenever a sleeping thread should look again. */
export const CTL_SIGNAL = 128;
/** The number of threads that sleep or are about to. */
export const CTL_SLEEPERS = 192;
/** If this is not 0, threads leave their loop. */
export const CTL_STOP = 256;

// ---- a command: words (4 bytes) of a slot ------------------------------------------------------
/**
 * The next chunk to hand out. With SLOT_SEQ it forms one 64-bit word, which changes by
 * compare-exchange.
 */
export const SLOT_NEXT = 0;
/** The number of the command, by which a delayed thread notices that the slot has been reused. */
export const SLOT_SEQ = 1;
export const SLOT_DONE = 2;
export const SLOT_CHUNKS = 3;
export const SLOT_OP = 4;
/** If this is not 0, start and end times are stored. */
export const SLOT_TRACE = 5;
/** The start and the end, each in ms as an f64. */
export const SLOT_START = 8;
export const SLOT_END = 10;
export const SLOT_ARGS = 12;
export const SLOT_WORDS = 64;

// ---- codes ------------------------------------------------------------------------------------
// A new code takes any free number in its group (OP_, UNARY_, ...), and gaps mean nothing. Order
// matters in three groups: floats come before integers, sums before extrema (REDUCE_), and
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
export const OP_ROW_NORM = 13;
export const OP_ROW_NORM_BACKWARD = 14;
export const OP_ROW_NORM_PARAM_GRAD = 15;
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
export const OP_ROTARY = 44;
export const OP_WHERE = 45;
export const OP_GATHER = 46;
export const OP_GATHER_BACKWARD = 47;
export const OP_TOP_K = 48;
export const OP_CUM_SUM = 49;
export const OP_RANDOM = 50;
export const OP_DECODE_BLOCKS = 51;
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
/** The comparisons follow, whose results are words. */
export const BINARY_EQ = 7;
export const BINARY_NE = 8;
export const BINARY_LT = 9;
export const BINARY_LE = 10;
export const BINARY_GT = 11;
export const BINARY_GE = 12;

export const RANDOM_UNIFORM = 0;
export const RANDOM_NORMAL = 1;

export const BLOCKS_Q8_0 = 0;
export const BLOCKS_Q4_0 = 1;
export const BLOCKS_Q4_1 = 2;
export const BLOCKS_Q5_0 = 3;
export const BLOCKS_Q5_1 = 4;
export const BLOCKS_Q4_K = 5;
export const BLOCKS_Q5_K = 6;
export const BLOCKS_Q6_K = 7;
/** What a product's command adds to these where its second operand lies in such blocks. */
export const BLOCKS_IN_PRODUCT = 16;
/** What it adds where the rows of the first operand are rounded to 8 bits, too. */
export const BLOCKS_IN_ROUNDED_PRODUCT = 32;

export const REDUCE_SUM = 0;
export const REDUCE_MEAN = 1;
export const REDUCE_MAX = 2;
export const REDUCE_MIN = 3;

// ---- sizes that host and kernels agree on ------------------------------------------------------
/**
 * The number of elements that one pass over scratch handles. 16-bit operands are converted this
 * many at a time.
 */
export const BLOCK = 2048;
/**
 * A product of at most this many rows reads b where it lies, since packing it would cost more than
 * the product.
 */
export const MATMUL_FEW_ROWS = 5;
/**
 * Where a library's product may be cut: at a multiple of this many rows, those of any library's
 * tiles, or else of the blocks in which 16-bit numbers are widened.
 */
export const LIBRARY_ROWS = 48;
/** The rows, columns and terms of such a block. Three blocks of f32 fit the scratch. */
export const LIBRARY_BLOCK = 384;
/** What stands for the columns at once of a product by a library, in f32 and in bf16. */
export const BY_LIBRARY = 0;
export const BY_BF16_LIBRARY = -1;
/** The number of columns of a b stored [k, n] that few rows are multiplied with at once. */
export const MATMUL_FEW_COLUMNS = 8192;
/**
 * The number of columns that kernels over [outer, dim, inner] handle at once. Where inner > 1 they
 * are a unit of work.
 */
export const COLUMN_BLOCK = 256;
/** The number of rows whose part of an RMS norm's weight gradient is summed separately. */
export const NORM_PART_ROWS = 64;
/**
 * The queries and keys that attention works on at once: 192 by 96 in the forward pass, 96 by 192 in
 * the backward pass.
 */
export const ATTENTION_LONG = 192;
export const ATTENTION_SHORT = 96;
/**
 * With at most this many queries, attention reads keys and values where they lie, for all heads of
 * a position at once.
 */
export const ATTENTION_FEW = 3;
/**
 * The elements of a block of a gradient norm, and the blocks of a node. All devices use the same
 * ones (src/kernel-calls/norm.ts).
 */
export const NORM_BLOCK = 128;
export const NORM_NODE_BLOCKS = 256;

export const NORM_SQUARE = 0;
export const NORM_POWER = 1;
export const NORM_MAX = 2;
