// What tests of backends and of code above them need: the reference device, kernel cases that hold
// any backend against it, and op cases against float64 twins, in any test runner or page.

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
