// Entry for tests of backends and of code above them: the reference device, kernel cases that
// compare any backend with it, and op cases that compare ops with float64 twins, for any test
// runner or page.

export { createReferenceBackend, type ReferenceOptions } from '../backends/reference/index.js';
export {
  hiddenKeyKernelCases,
  kernelCases,
  manyKernelCases,
  splitKernelCases,
} from './kernel-cases.js';
export type { ConformanceCase } from './kit/conformance-case.js';
export { ConformanceError } from './kit/conformance-error.js';
export { type OpCase, type OpInput, type OpSpec, opCase } from './kit/op-check.js';
export type { FloatDType } from './kit/op-tolerance.js';
export { opCases } from './op-cases.js';
export type { TwinArray } from './twins/twin-array.js';
