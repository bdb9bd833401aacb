// Entry for tests of backends and of code above them: the reference device, kernel cases that
// compare any backend with it, and op cases that compare ops with float64 twins, for any test
// runner or page.

export { createReferenceBackend, type ReferenceOptions } from '../backends/reference/index.js';
export type { ConformanceCase } from './conformance-case.js';
export { ConformanceError } from './conformance-error.js';
export {
  hiddenKeyKernelCases,
  kernelCases,
  manyKernelCases,
  splitKernelCases,
} from './kernel-cases.js';
export { opCases } from './op-cases.js';
export { type OpCase, type OpInput, type OpSpec, opCase } from './op-check.js';
export type { FloatDType } from './op-tolerance.js';
export type { TwinArray } from './twins/twin-array.js';
