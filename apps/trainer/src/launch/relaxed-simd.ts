// Node 20 has WebAssembly's relaxed SIMD, with which the CPU device fuses products, behind a flag
// of V8. A process of the command may set it; a library that is imported never would.

import { setFlagsFromString } from 'node:v8';

/** Whether this Node has relaxed SIMD, but only where it is told to: later ones just have it. */
const NEEDS_FLAG = process.versions.node.startsWith('20.');

/** For this process and the threads it starts. */
export function allowRelaxedSimd(): void {
  if (NEEDS_FLAG) {
    setFlagsFromString('--experimental-wasm-relaxed-simd');
  }
}
