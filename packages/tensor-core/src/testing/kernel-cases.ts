// All conformance cases of the seam: every kernel against the reference device, and the queue.

import { elementwiseCases } from './cases/elementwise.js';
import { layerNormCases } from './cases/layer-norm.js';
import { matmulCases } from './cases/matmul.js';
import { softmaxCases } from './cases/softmax.js';
import type { ConformanceCase } from './conformance-case.js';

/**
 * The cases, each independent of the others: pass a backend to `run`, which rejects with
 * ConformanceError where the backend differs. One backend can serve all of them.
 */
export function kernelCases(): ConformanceCase[] {
  return [...elementwiseCases(), ...softmaxCases(), ...layerNormCases(), ...matmulCases()];
}
