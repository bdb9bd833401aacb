// All conformance cases of backends: every kernel compared with the reference device, and the
// queue.

import { attentionCases, hiddenKeyCases } from './cases/attention.js';
import { blocksCases } from './cases/blocks.js';
import { castCases } from './cases/cast.js';
import { compareCases } from './cases/compare.js';
import { copyCases } from './cases/copy.js';
import { crossEntropyCases } from './cases/cross-entropy.js';
import { cumSumCases } from './cases/cum-sum.js';
import { customCases } from './cases/custom.js';
import { dropoutCases } from './cases/dropout.js';
import { elementwiseCases } from './cases/elementwise.js';
import { embeddingCases } from './cases/embedding.js';
import { gatedCases } from './cases/gated.js';
import { gatherCases } from './cases/gather.js';
import { manyCases } from './cases/many.js';
import { matmulCases } from './cases/matmul.js';
import { normCases } from './cases/norm.js';
import { optimizerCases } from './cases/optimizer.js';
import { queueCases } from './cases/queue.js';
import { randomCases } from './cases/random.js';
import { reduceCases } from './cases/reduce.js';
import { rotaryCases } from './cases/rotary.js';
import { rowNormCases } from './cases/row-norm.js';
import { sharedBufferCases } from './cases/shared-buffer.js';
import { softmaxCases } from './cases/softmax.js';
import { specialRowCases } from './cases/special-rows.js';
import { specialValueCases } from './cases/special-values.js';
import { splitCases } from './cases/split.js';
import { topKCases } from './cases/top-k.js';
import type { ConformanceCase } from './kit/conformance-case.js';

/**
 * Returns the cases that every backend must pass. Pass a backend to a case's `run`, which rejects
 * with ConformanceError where the backend differs. The cases are independent of each other; one
 * backend can serve all of them, one at a time.
 */
export function kernelCases(): ConformanceCase[] {
  return [
    ...queueCases(),
    ...castCases(),
    ...copyCases(),
    ...elementwiseCases(),
    ...compareCases(),
    ...gatedCases(),
    ...gatherCases(),
    ...topKCases(),
    ...cumSumCases(),
    ...reduceCases(),
    ...softmaxCases(),
    ...rowNormCases(),
    ...rotaryCases(),
    ...embeddingCases(),
    ...blocksCases(),
    ...crossEntropyCases(),
    ...dropoutCases(),
    ...randomCases(),
    ...attentionCases(),
    ...matmulCases(),
    ...normCases(),
    ...optimizerCases(),
    ...customCases(),
    ...sharedBufferCases(),
    ...specialValueCases(),
    ...specialRowCases(),
  ];
}

/**
 * Returns cases of attention in which hidden keys hold NaN and infinities, for all devices except
 * webgpu on CPU drivers.
 */
export function hiddenKeyKernelCases(): ConformanceCase[] {
  return hiddenKeyCases();
}

/**
 * Returns cases of many rows, batches and terms, for devices whose views may have 1 MiB or more.
 */
export function manyKernelCases(): ConformanceCase[] {
  return manyCases();
}

/**
 * Returns cases of operands larger than one view, for a device made with `limits.maxViewBytes` of
 * at most 64 KiB (4 KiB is quick). On other devices they reject.
 */
export function splitKernelCases(): ConformanceCase[] {
  return splitCases();
}
