// All kernels of the reference device, by the names of their calls.

export * from './attention.js';
export * from './blocks.js';
export * from './cast.js';
export * from './compare.js';
export * from './copy.js';
export * from './cross-entropy.js';
export * from './cum-sum.js';
export * from './custom.js';
export * from './dropout.js';
export * from './elementwise.js';
export * from './embedding.js';
export * from './gated.js';
export * from './gather.js';
export * from './matmul.js';
export * from './norm.js';
export * from './optimizer.js';
export * from './random.js';
export * from './reduce.js';
export * from './rotary.js';
export * from './row-norm.js';
export * from './softmax.js';
export * from './top-k.js';
