// All functions that turn kernel calls into dispatches, by the names of the calls.

export * from './attention/attention.js';
export * from './elementwise/cast.js';
export * from './elementwise/compare.js';
export * from './elementwise/copy.js';
export * from './elementwise/custom.js';
export * from './elementwise/dropout.js';
export * from './elementwise/elementwise.js';
export * from './elementwise/random.js';
export * from './matmul/matmul.js';
export * from './optimizer/optimizer.js';
export * from './rows/blocks.js';
export * from './rows/cross-entropy.js';
export * from './rows/cum-sum.js';
export * from './rows/embedding.js';
export * from './rows/gated.js';
export * from './rows/gather.js';
export * from './rows/norm.js';
export * from './rows/reduce.js';
export * from './rows/rotary.js';
export * from './rows/row-norm.js';
export * from './rows/softmax.js';
export * from './rows/top-k.js';
