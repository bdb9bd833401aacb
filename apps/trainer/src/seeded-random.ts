// Random numbers of the host that a seed repeats: a counter through a 32-bit finalizer, in the
// manner of SplitMix. Dropout and weights have generators of their own, which ranks agree on.

/**
 * A generator of whole numbers below 2^32, the same for equal seeds and streams, and different for
 * each stream.
 */
export function splitMix32(seed: number, stream: number): () => number {
  let state = mix(mix(seed | 0) ^ Math.imul(stream + 1, 0x9e3779b9));
  return () => {
    state = (state + 0x9e3779b9) | 0;
    return mix(state) >>> 0;
  };
}

function mix(x: number): number {
  let z = x ^ (x >>> 16);
  z = Math.imul(z, 0x21f0aaad);
  z ^= z >>> 15;
  z = Math.imul(z, 0x735a2d97);
  return z ^ (z >>> 15);
}
