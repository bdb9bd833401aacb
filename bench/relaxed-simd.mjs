// Whatever measures the CPU device imports this. Node 20 has relaxed SIMD behind a flag of V8,
// which the command of apps/trainer sets too.

import { setFlagsFromString } from 'node:v8';

if (process.versions.node.startsWith('20.')) {
  setFlagsFromString('--experimental-wasm-relaxed-simd');
}
