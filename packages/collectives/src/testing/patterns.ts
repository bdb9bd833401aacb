// Inputs that any rank can compute for any other, and the expected results of reducing them.

import {
  byteSize,
  isFloat,
  RankSum,
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
 * Elements whose sum depends on the order of addition: signs and magnitudes differ by some powers
 * of two. There is no NaN, whose payload is unspecified.
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
  const elements = dtype === 'f32' ? new Uint32Array(count) : new Uint16Array(count);
  for (let i = 0; i < count; i++) {
    const sign = i % 2 === rank % 2 ? 0 : 1;
    const power = (random[2 * i + 1]! % 23) - 11;
    const mantissa = random[2 * i]!;
    if (dtype === 'f16') {
      elements[i] = (sign << 15) | ((15 + power) << 10) | (mantissa << 2);
    } else {
      const bits = ((sign << 31) | ((127 + power) << 23) | (mantissa << 15)) >>> 0;
      elements[i] = dtype === 'f32' ? bits : bits >>> 16;
    }
  }
  return new Uint8Array(elements.buffer);
}

/** The combination of `parts` by the plain specification of @shardweave/dtypes. */
export function expectedReduction(
  parts: readonly Uint8Array[],
  options: ReduceOptions,
): Uint8Array {
  const output = new Uint8Array(parts[0]!.length);
  reducePartsPlain(parts, output, options);
  return output;
}

/** For more elements the plain specification takes too long; the wasm equals it bit for bit. */
const PLAIN_MAX_ELEMENTS = 32 * 1024;

/** The inputs and results of one case, computed once for all ranks of a process. */
export class Expectations {
  readonly #inputs = new Map<string, Uint8Array>();
  readonly #reductions = new Map<string, Promise<Uint8Array>>();

  bytes(rank: number, byteLength: number): Uint8Array {
    return this.#input(`${rank} ${byteLength}`, () => patternBytes(rank, byteLength));
  }

  elements(rank: number, count: number, dtype: ReduceDType): Uint8Array {
    return this.#input(`${rank} ${count} ${dtype}`, () =>
      patternElements(rank, count, dtype, count),
    );
  }

  /** The combination of the elements of ranks 0 to worldSize - 1. */
  reduction(worldSize: number, count: number, options: ReduceOptions): Promise<Uint8Array> {
    const key = `${worldSize} ${count} ${options.dtype} ${options.op}`;
    const made = this.#reductions.get(key) ?? this.#reduce(worldSize, count, options);
    this.#reductions.set(key, made);
    return made;
  }

  async #reduce(worldSize: number, count: number, options: ReduceOptions): Promise<Uint8Array> {
    const parts = Array.from({ length: worldSize }, (_, r) =>
      this.elements(r, count, options.dtype),
    );
    if (count <= PLAIN_MAX_ELEMENTS) {
      return expectedReduction(parts, options);
    }
    const output = new Uint8Array(parts[0]!.length);
    await (await RankSum.create()).reduce(parts, output, options);
    return output;
  }

  #input(key: string, make: () => Uint8Array): Uint8Array {
    const value = this.#inputs.get(key) ?? make();
    this.#inputs.set(key, value);
    return value;
  }
}
