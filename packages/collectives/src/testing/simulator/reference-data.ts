// What each rank puts into a step and what must come out, computed once for all ranks and runs, by
// plain loops in rank order, which have nothing to do with how the parts traveled.

import {
  byteSize,
  type DType,
  fromF32Array,
  isFloat,
  type ReduceOp,
  toF32Array,
} from '@shardweave/dtypes';
import type { WireDType } from '../../call-signature.js';
import { expectedReduction, patternBytes, patternElements } from '../patterns.js';

export interface PartOptions {
  readonly dtype: WireDType;
  readonly count: number;
  readonly variant: number;
}

/** The number of different parts of one length; further parts repeat them. */
const NUM_DIFFERENT_PARTS = 4;

export class ReferenceData {
  readonly #cache = new Map<string, Uint8Array>();

  /** Part number `part` of a rank. It is shared, so it must not be changed. */
  part(rank: number, part: number, { dtype, count, variant }: PartOptions): Uint8Array {
    const seed = variant * NUM_DIFFERENT_PARTS + (part % NUM_DIFFERENT_PARTS);
    return this.#once(`${rank} ${seed} ${dtype} ${count}`, () =>
      dtype === 'u8'
        ? patternBytes(rank, count, seed)
        : patternElements(rank, count, dtype, 7919 * seed + count),
    );
  }

  /** The combination of part number `part` of ranks 0 to worldSize - 1. */
  reduction(
    worldSize: number,
    part: number,
    op: ReduceOp,
    options: PartOptions & { readonly dtype: DType; readonly hosts: readonly number[] | undefined },
  ): Uint8Array {
    const { dtype, count, variant, hosts } = options;
    const seed = variant * NUM_DIFFERENT_PARTS + (part % NUM_DIFFERENT_PARTS);
    return this.#once(`${worldSize} of ${seed} ${dtype} ${count} ${op} ${hosts}`, () => {
      const parts = Array.from({ length: worldSize }, (_, r) => this.part(r, part, options));
      const isOrdered = isFloat(dtype) && (op === 'sum' || op === 'mean');
      return hosts === undefined || !isOrdered
        ? expectedReduction(parts, { dtype, op })
        : hostReduction(parts, hosts, { dtype, op });
    });
  }

  #once(key: string, make: () => Uint8Array): Uint8Array {
    let value = this.#cache.get(key);
    if (value === undefined) {
      value = make();
      this.#cache.set(key, value);
    }
    return value;
  }
}

/**
 * The combination in f32: the ranks of each host in their order, then the hosts by their first
 * ranks, rounded once.
 */
function hostReduction(
  parts: readonly Uint8Array[],
  hosts: readonly number[],
  { dtype, op }: { readonly dtype: DType; readonly op: ReduceOp },
): Uint8Array {
  const sum = (terms: readonly Float32Array[]) =>
    terms.reduce((acc, term) => acc.map((value, i) => value + term[i]!));
  const wide = parts.map((part) => toF32Array(part, dtype));
  const sums = [...new Set(hosts)].map((host) =>
    sum(wide.filter((_, rank) => hosts[rank] === host)),
  );
  const total = sum(sums);
  const result = op === 'mean' ? total.map((value) => value / parts.length) : total;
  const bytes = fromF32Array(result, dtype);
  return new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

export function bytesPerElement(dtype: WireDType): number {
  return dtype === 'u8' ? 1 : byteSize(dtype);
}
