// Turns on WebAssembly's relaxed SIMD, with which the CPU device fuses products, and which Node 20
// has behind a flag of V8. A process of the command may set that flag; an imported library should
// not.

import { setFlagsFromString } from 'node:v8';

/** Whether this Node has relaxed SIMD only behind the flag; later versions have it anyway. */
const NEEDS_FLAG = process.versions.node.startsWith('20.');

/** Turns it on for this process and the threads that it starts. */
export function allowRelaxedSimd(): void {
  if (NEEDS_FLAG) {
    setFlagsFromString('--experimental-wasm-relaxed-simd');
  }
}
