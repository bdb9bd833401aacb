// What tests of backends and of code above them need: the reference device, and kernel cases that
// hold any backend against it, in any test runner or page.

export { createReferenceBackend, type ReferenceOptions } from '../backends/reference/index.js';
export type { ConformanceCase } from './conformance-case.js';
export { ConformanceError } from './conformance-error.js';
export { kernelCases, splitKernelCases } from './kernel-cases.js';
