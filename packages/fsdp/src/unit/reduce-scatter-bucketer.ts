// Gathers gradients that are to be reduced into buckets, so that many small ones share a collective
// (fairscale's ReduceScatterBucketer). One for all instances of a tree; a bucket for each dtype and
// set of ranks. Starts follow the order of the calls, so ranks agree.
//
// Note [buckets]
// A bucket's input has a row for each rank, capacity bytes long; a gradient's shards are read back
// from the device straight into their places. Starting it reduces what is filled. A gradient that
// is larger than a bucket starts at once and overtakes what waits. Buffers are the group's host
// buffers, held from the first gradient of a backward to the end of the bucket's reduction.

import { tellFailure } from '@shardweave/collectives';
import { byteSize } from '@shardweave/dtypes';
import type { DType, Storage } from '@shardweave/tensor-core';
import type { UnitLinks } from './unit-links.js';

/** One flat parameter's gradient on its way. */
export interface OutgoingGradient {
  /** For traces and errors. */
  readonly name: string;
  /** Equal shards of all ranks one after another, in the dtype of the wire; read when added. */
  readonly whole: Storage;
  readonly worldSize: number;
  readonly links: UnitLinks;
  /** Alone, whatever the cap. */
  readonly isBucketed: boolean;
  /** Takes this rank's reduced shard, which is the bucketer's again when it settles. */
  onReduced(shard: Uint8Array): void | Promise<void>;
}

export interface BucketerOptions {
  /** Bytes of a bucket's input; 0: no buckets. */
  readonly capBytes: number;
  /**
   * Bytes of all gradients of a dtype and its ranks that may come in one backward: a bucket is not
   * made larger.
   */
  mostBytes(links: UnitLinks, dtype: DType): number;
  /** What ranks compare of a reduction that is about to start. */
  identity(names: readonly string[], links: UnitLinks): string;
}

/** A gradient's place in a bucket. */
interface Entry {
  readonly gradient: OutgoingGradient;
  /** In each row. */
  readonly offset: number;
  readonly byteLength: number;
}

interface Bucket {
  readonly links: UnitLinks;
  readonly dtype: DType;
  readonly worldSize: number;
  /** Bytes of a row. */
  readonly capacity: number;
  input: Uint8Array | undefined;
  filled: number;
  entries: Entry[];
  reads: Promise<unknown>[];
}

interface Reduction {
  readonly entries: readonly Entry[];
  readonly links: UnitLinks;
  /** All ranks' sum of this rank's row. */
  readonly output: Promise<Uint8Array>;
}

export class ReduceScatterBucketer {
  readonly #options: BucketerOptions;
  readonly #buckets: Bucket[] = [];
  #started: Reduction[] = [];

  constructor(options: BucketerOptions) {
    this.#options = options;
  }

  /** Reductions that have started and are not yet taken. */
  get numStarted(): number {
    return this.#started.length;
  }

  /** Queues the gradient's read-back, and starts what is to be reduced now; never waits. */
  add(gradient: OutgoingGradient): void {
    const { whole, worldSize } = gradient;
    const byteLength = whole.byteLength / worldSize;
    const bucket = this.#bucketFor(gradient);
    if (bucket === undefined || byteLength > bucket.capacity) {
      this.#startAlone(gradient, byteLength);
      return;
    }
    if (bucket.filled + byteLength > bucket.capacity) {
      this.#start(bucket);
    }
    bucket.input ??= bucket.links.hostBuffers.take(bucket.capacity * worldSize);
    const offset = bucket.filled;
    for (let rank = 0; rank < worldSize; rank++) {
      const place = rank * bucket.capacity + offset;
      const part = bucket.input.subarray(place, place + byteLength);
      const read = whole.read(rank * byteLength, byteLength, part);
      read.catch(() => undefined); // seen by the reduction, which a reset may keep from starting
      bucket.reads.push(read);
    }
    bucket.entries.push({ gradient, offset, byteLength });
    bucket.filled += byteLength;
    if (bucket.filled === bucket.capacity) {
      this.#start(bucket);
    }
  }

  /** Starts what waits in buckets; nothing where none does. */
  flush(): void {
    for (const bucket of this.#buckets) {
      this.#start(bucket);
    }
  }

  /**
   * Flushes, waits, and hands out the results: reductions in the order of their starts, gradients
   * of one in the order they came.
   */
  async finish(): Promise<void> {
    this.flush();
    for (let next = this.#started.shift(); next !== undefined; next = this.#started.shift()) {
      const output = await next.output;
      for (const { gradient, offset, byteLength } of next.entries) {
        await gradient.onReduced(output.subarray(offset, offset + byteLength));
      }
      next.links.hostBuffers.give(output);
    }
  }

  /** Forgets everything after a failure; reads and reductions may still be under way. */
  reset(): void {
    this.#buckets.length = 0;
    this.#started = [];
  }

  #bucketFor({ links, whole, worldSize, isBucketed }: OutgoingGradient): Bucket | undefined {
    const { capBytes, mostBytes } = this.#options;
    if (!isBucketed || capBytes <= 0) {
      return undefined;
    }
    const { dtype } = whole;
    const known = this.#buckets.find(
      (bucket) =>
        bucket.dtype === dtype &&
        bucket.links.reduceGroup === links.reduceGroup &&
        bucket.links.replicas?.group === links.replicas?.group,
    );
    if (known !== undefined) {
      return known;
    }
    const size = byteSize(dtype);
    const most = Math.min(capBytes, mostBytes(links, dtype));
    const capacity = size * Math.floor(most / size / worldSize);
    const bucket: Bucket = {
      links,
      dtype,
      worldSize,
      capacity,
      input: undefined,
      filled: 0,
      entries: [],
      reads: [],
    };
    this.#buckets.push(bucket);
    return bucket;
  }

  #startAlone(gradient: OutgoingGradient, byteLength: number): void {
    const { whole, links, worldSize } = gradient;
    const input = links.hostBuffers.take(whole.byteLength);
    const entries = [{ gradient, offset: 0, byteLength }];
    const ready = whole.read(0, whole.byteLength, input);
    this.#reduce({ entries, links, dtype: whole.dtype, worldSize, shardBytes: byteLength, ready });
  }

  #start(bucket: Bucket): void {
    const { links, dtype, worldSize, capacity, input, filled, entries, reads } = bucket;
    if (input === undefined) {
      return;
    }
    bucket.input = undefined;
    bucket.filled = 0;
    bucket.entries = [];
    bucket.reads = [];
    const ready = Promise.all(reads).then(() => {
      // Rows follow one another on the wire.
      for (let rank = 1; filled < capacity && rank < worldSize; rank++) {
        input.copyWithin(rank * filled, rank * capacity, rank * capacity + filled);
      }
      return input;
    });
    this.#reduce({ entries, links, dtype, worldSize, shardBytes: filled, ready });
  }

  #reduce(reduction: {
    readonly entries: readonly Entry[];
    readonly links: UnitLinks;
    readonly dtype: DType;
    readonly worldSize: number;
    readonly shardBytes: number;
    /** The host buffer, whose beginning has the shards. */
    readonly ready: Promise<Uint8Array>;
  }): void {
    const { entries, links, dtype, worldSize, shardBytes, ready } = reduction;
    ready.catch(() => undefined); // seen by whoever awaits the reduction
    const { reduceGroup, reductions, replicas, hostBuffers } = links;
    const names = entries.map(({ gradient }) => gradient.name);
    const identity = this.#options.identity(names, links);
    const options = { dtype, op: 'sum', tag: names.join(' + '), identity } as const;
    let output = ready;
    if (worldSize > 1) {
      output = reductions.enqueue(
        ready,
        async (input) => {
          const shard = hostBuffers.take(input.byteLength / worldSize);
          const whole = input.subarray(0, shardBytes * worldSize);
          await reduceGroup.reduceScatter(whole, shard.subarray(0, shardBytes), options);
          hostBuffers.give(input);
          return shard;
        },
        { failed: (error) => tellFailure(reduceGroup, 'a reduction', error) },
      );
    }
    if (replicas !== undefined) {
      output = replicas.order.enqueue(
        output,
        async (shard) => {
          const part = shard.subarray(0, shardBytes);
          await replicas.group.allReduce(part, part, options);
          return shard;
        },
        { failed: (error) => tellFailure(replicas.group, 'a reduction', error) },
      );
    }
    this.#started.push({ entries, links, output });
  }
}
