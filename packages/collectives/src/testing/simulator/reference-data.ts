// What each rank puts into a step and what must come out, computed once for all ranks and runs: by
// plain loops in rank order, which have nothing to do with how the parts travelled.

import { byteSize, type DType, type ReduceOp } from '@shardweave/dtypes';
import type { WireDType } from '../../call-signature.js';
import { expectedReduction, patternBytes, patternElements } from '../patterns.js';

export interface PartOptions {
  readonly dtype: WireDType;
  readonly count: number;
  readonly variant: number;
}

/** Parts of one length beyond this many are drawn again. */
const NUM_DIFFERENT_PARTS = 4;

export class ReferenceData {
  readonly #cache = new Map<string, Uint8Array>();

  /** Rank r's part number `part`; shared, so nobody may change it. */
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
    options: PartOptions & { readonly dtype: DType },
  ): Uint8Array {
    const { dtype, count, variant } = options;
    const seed = variant * NUM_DIFFERENT_PARTS + (part % NUM_DIFFERENT_PARTS);
    return this.#once(`${worldSize} of ${seed} ${dtype} ${count} ${op}`, () => {
      const parts = Array.from({ length: worldSize }, (_, r) => this.part(r, part, options));
      return expectedReduction(parts, { dtype, op });
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

export function bytesPerElement(dtype: WireDType): number {
  return dtype === 'u8' ? 1 : byteSize(dtype);
}
