// All functions that encode kernel calls as commands, by the names of the calls.

export * from './encode-attention.js';
export * from './encode-blocks.js';
export * from './encode-cast.js';
export * from './encode-compare.js';
export * from './encode-copy.js';
export * from './encode-cross-entropy.js';
export * from './encode-cum-sum.js';
export * from './encode-custom.js';
export * from './encode-dropout.js';
export * from './encode-elementwise.js';
export * from './encode-embedding.js';
export * from './encode-gated.js';
export * from './encode-gather.js';
export * from './encode-matmul.js';
export * from './encode-norm.js';
export * from './encode-optimizer.js';
export * from './encode-random.js';
export * from './encode-reduce.js';
export * from './encode-rotary.js';
export * from './encode-row-norm.js';
export * from './encode-softmax.js';
export * from './encode-top-k.js';
