// Inputs that any rank can compute for any other, and what must come out of a reduction of them.

import {
  byteSize,
  fromF32Array,
  isFloat,
  type ReduceDType,
  type ReduceOptions,
  reducePartsPlain,
} from '@shardweave/dtypes';

/** Bytes that depend on the rank and a seed. */
export function patternBytes(rank: number, byteLength: number, seed = 0): Uint8Array {
  const bytes = new Uint8Array(byteLength);
  let state = (Math.imul(rank + 1, 0x9e3779b1) ^ Math.imul(seed + 1, 0x85ebca6b)) >>> 0;
  for (let i = 0; i < byteLength; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    bytes[i] = state >>> 24;
  }
  return bytes;
}

/**
 * Elements whose sum depends on the order of addition: magnitudes differ by some powers of two. No
 * NaN, whose payload is unspecified.
 */
export function patternElements(
  rank: number,
  count: number,
  dtype: ReduceDType,
  seed = 0,
): Uint8Array {
  if (!isFloat(dtype)) {
    return patternBytes(rank, count * byteSize(dtype), seed);
  }
  const random = patternBytes(rank, count * 2, seed);
  const values = Array.from({ length: count }, (_, i) => {
    const mantissa = 1 + random[2 * i]! / 256;
    const power = (random[2 * i + 1]! % 23) - 11;
    return (i % 2 === rank % 2 ? 1 : -1) * mantissa * 2 ** power;
  });
  return fromF32Array(values, dtype);
}

/** What combining `parts` gives by the plain specification of @shardweave/dtypes. */
export function expectedReduction(
  parts: readonly Uint8Array[],
  options: ReduceOptions,
): Uint8Array {
  const output = new Uint8Array(parts[0]!.length);
  reducePartsPlain(parts, output, options);
  return output;
}

/** Inputs and results of one case, computed once for all ranks of a process. */
export class Expectations {
  readonly #cache = new Map<string, Uint8Array>();

  bytes(rank: number, byteLength: number): Uint8Array {
    return this.#once(`${rank} ${byteLength}`, () => patternBytes(rank, byteLength));
  }

  elements(rank: number, count: number, dtype: ReduceDType): Uint8Array {
    return this.#once(`${rank} ${count} ${dtype}`, () =>
      patternElements(rank, count, dtype, count),
    );
  }

  /** Of the elements of ranks 0 to worldSize - 1. */
  reduction(worldSize: number, count: number, options: ReduceOptions): Uint8Array {
    const { dtype, op } = options;
    return this.#once(`${worldSize} ${count} ${dtype} ${op}`, () => {
      const parts = Array.from({ length: worldSize }, (_, r) => this.elements(r, count, dtype));
      return expectedReduction(parts, options);
    });
  }

  #once(key: string, make: () => Uint8Array): Uint8Array {
    const value = this.#cache.get(key) ?? make();
    this.#cache.set(key, value);
    return value;
  }
}
