// Checks of a call's arguments: what can't be right whatever the other ranks call is refused before
// anything is sent, and the job goes on.

import { byteSize, type DType, type ReduceOptions } from '@shardweave/dtypes';
import { countedParts, evenParts, type PartLayout, partBytes } from './algorithms/part-layout.js';
import type { WireDType } from './call-signature.js';
import type { CollectiveUsageError } from './errors.js';
import type { ReduceCallOptions } from './process-group.js';

/** How a buffer is divided, and what ranks compare of it. */
export interface Division {
  readonly layout: PartLayout;
  /** Of the signature: bytes of one part, or of all where they are uneven. */
  readonly byteLength: number;
  /** Of the signature: a hash of uneven counts, or 0. */
  readonly layoutHash: number;
}

export class CallArguments {
  readonly #rank: number;
  readonly #worldSize: number;
  readonly #error: (call: string, message: string) => CollectiveUsageError;

  constructor(
    rank: number,
    worldSize: number,
    error: (call: string, message: string) => CollectiveUsageError,
  ) {
    this.#rank = rank;
    this.#worldSize = worldSize;
    this.#error = error;
  }

  /** `part` is this rank's, `whole` has all ranks' parts. */
  division(
    call: string,
    part: Uint8Array,
    whole: { readonly name: string; readonly bytes: Uint8Array },
    { dtype = 'u8', counts }: { dtype?: WireDType; counts?: readonly number[] },
  ): Division {
    if (counts === undefined) {
      const { byteLength } = part;
      this.bytes(call, whole.name, whole.bytes, byteLength * this.#worldSize);
      return { layout: evenParts(this.#worldSize, byteLength), byteLength, layoutHash: 0 };
    }
    const isCount = (count: number) => Number.isSafeInteger(count) && count >= 0;
    if (counts.length !== this.#worldSize || !counts.every(isCount)) {
      throw this.#error(
        call,
        `expected ${this.#worldSize} counts of elements, got [${counts.join(', ')}].`,
      );
    }
    const layout = countedParts(counts, wireByteSize(dtype));
    const own = partBytes(layout, this.#rank);
    if (part.byteLength !== own) {
      const count = counts[this.#rank];
      throw this.#error(
        call,
        `expected ${own} bytes for ${count} ${dtype} of rank ${this.#rank}, got ${part.byteLength}.`,
      );
    }
    const byteLength = layout.offsets.at(-1)!;
    this.bytes(call, whole.name, whole.bytes, byteLength);
    return { layout, byteLength, layoutHash: hashOf(counts) };
  }

  /** `part` may be its place in `whole` or lie elsewhere, but not over other parts: they are in use. */
  noOverlap(call: string, part: Uint8Array, whole: Uint8Array, place: number): void {
    if (part.buffer !== whole.buffer || part.byteLength === 0 || whole.byteLength === 0) {
      return;
    }
    const start = part.byteOffset - whole.byteOffset;
    const isApart = start >= whole.byteLength || start + part.byteLength <= 0;
    if (!isApart && start !== place) {
      throw this.#error(
        call,
        `input and output overlap, expected that only at byte ${place}, got byte ${start}.`,
      );
    }
  }

  reduceOptions(call: string, byteLength: number, options: ReduceCallOptions): ReduceOptions {
    const { dtype, op } = options;
    if (dtype === 'u8') {
      throw this.#error(call, 'u8 can be moved but not added up. Choose another dtype.');
    }
    const size = byteSize(dtype satisfies DType);
    if (byteLength % size !== 0) {
      throw this.#error(call, `expected whole ${dtype} elements, got ${byteLength} bytes.`);
    }
    return { dtype, op };
  }

  bytes(call: string, name: string, bytes: Uint8Array, byteLength: number): void {
    if (bytes.byteLength !== byteLength) {
      throw this.#error(
        call,
        `expected an ${name} of ${byteLength} bytes for ${this.#worldSize} ranks, ` +
          `got ${bytes.byteLength}.`,
      );
    }
  }

  rank(call: string, name: string, rank: number): void {
    if (!Number.isInteger(rank) || rank < 0 || rank >= this.#worldSize) {
      throw this.#error(call, `expected a ${name} below ${this.#worldSize}, got ${rank}.`);
    }
  }

  /** Of send and recv. Returns the channel. */
  pointToPoint(call: string, peer: number, channel = 0): number {
    this.rank(call, 'peer', peer);
    if (peer === this.#rank) {
      throw this.#error(call, `expected another rank, got its own, ${peer}.`);
    }
    if (!Number.isInteger(channel) || channel < 0 || channel > 0xffffffff) {
      throw this.#error(call, `expected an unsigned 32-bit channel, got ${channel}.`);
    }
    return channel;
  }
}

function wireByteSize(dtype: WireDType): number {
  return dtype === 'u8' ? 1 : byteSize(dtype);
}

/** FNV-1a over the counts' 64 bits, never 0: that means even parts. */
function hashOf(counts: readonly number[]): number {
  let hash = 0x811c9dc5;
  for (const count of counts) {
    for (const word of [count >>> 0, Math.floor(count / 2 ** 32)]) {
      hash = Math.imul(hash ^ word, 0x01000193) >>> 0;
      hash = (hash ^ (hash >>> 15)) >>> 0; // lets the high bits reach the low ones
    }
  }
  return hash === 0 ? 1 : hash;
}
