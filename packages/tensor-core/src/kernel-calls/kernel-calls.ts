// The calls of all kernels, which are the seam between ops and backends.

import type { AttentionCalls } from './attention.js';
import type { BlocksCalls } from './blocks.js';
import type { CastCalls } from './cast.js';
import type { CompareCalls } from './compare.js';
import type { CopyCalls } from './copy.js';
import type { CrossEntropyCalls } from './cross-entropy.js';
import type { CumSumCalls } from './cum-sum.js';
import type { CustomCalls } from './custom.js';
import type { DropoutCalls } from './dropout.js';
import type { ElementwiseCalls } from './elementwise.js';
import type { EmbeddingCalls } from './embedding.js';
import type { GatedCalls } from './gated.js';
import type { GatherCalls } from './gather.js';
import type { MatmulCalls } from './matmul.js';
import type { NormCalls } from './norm.js';
import type { OptimizerCalls } from './optimizer.js';
import type { RandomCalls } from './random.js';
import type { ReduceCalls } from './reduce.js';
import type { RotaryCalls } from './rotary.js';
import type { RowNormCalls } from './row-norm.js';
import type { SoftmaxCalls } from './softmax.js';
import type { TopKCalls } from './top-k.js';

/**
 * What each kernel is called with, by its name: the table that every backend implements whole.
 * `backend.run('cast', { x, out })` takes KernelCalls['cast'].
 */
export interface KernelCalls
  extends AttentionCalls,
    BlocksCalls,
    CastCalls,
    CompareCalls,
    CopyCalls,
    CrossEntropyCalls,
    CumSumCalls,
    CustomCalls,
    DropoutCalls,
    ElementwiseCalls,
    EmbeddingCalls,
    GatedCalls,
    GatherCalls,
    MatmulCalls,
    NormCalls,
    OptimizerCalls,
    RandomCalls,
    ReduceCalls,
    RotaryCalls,
    RowNormCalls,
    SoftmaxCalls,
    TopKCalls {}

/** The name of a kernel, such as 'matmul' or 'softmax'. */
export type KernelName = keyof KernelCalls;

/**
 * The properties of calls whose values hold views themselves: a custom kernel's operands and a
 * product's epilogue.
 */
export const NESTED_VIEWS: ReadonlySet<string> = new Set(['inputs', 'epilogue']);
