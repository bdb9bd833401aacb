// Hashes a list of numbers that all ranks must agree on.

import { FNV_BASIS, fnv1a } from '@shardweave/dtypes';

/** The hash of a text's UTF-16 units, as hashNumbers makes it. */
export function hashText(text: string): number {
  return hashNumbers(Array.from({ length: text.length }, (_, i) => text.charCodeAt(i)));
}

/** FNV-1a in 32 bits over integers of up to 64 bits; never 0, which stands for no list. */
export function hashNumbers(numbers: readonly number[]): number {
  let hash = FNV_BASIS;
  for (const number of numbers) {
    for (const word of [number >>> 0, Math.floor(number / 2 ** 32)]) {
      hash = fnv1a([word], hash);
      hash = (hash ^ (hash >>> 15)) >>> 0; // lets the high bits reach the low ones
    }
  }
  return hash === 0 ? 1 : hash;
}
