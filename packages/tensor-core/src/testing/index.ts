// What tests of backends and of code above them need: the reference device, and kernel cases that
// hold any backend against it.

export { createReferenceBackend } from '../backends/reference/index.js';
