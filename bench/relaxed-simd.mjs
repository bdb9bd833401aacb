// Imported by whoever measures the CPU device: Node 20 has relaxed SIMD behind a flag of V8, and
// the command of apps/trainer sets it too.

import { setFlagsFromString } from 'node:v8';

if (process.versions.node.startsWith('20.')) {
  setFlagsFromString('--experimental-wasm-relaxed-simd');
}
