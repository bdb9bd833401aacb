// Collects gradients that are to be reduced in buckets, so that many small ones share a collective
// (fairscale's ReduceScatterBucketer). All instances of a tree share one bucketer, which has a
// bucket for each dtype and set of ranks. Reductions start in the order of the calls, which is the
// same on all ranks.
//
// Note [buckets]
// A bucket's input has a row for each rank, `capacity` bytes long; a gradient's shards are read
// back from the device straight into their places. Starting the bucket reduces what is filled. A
// gradient that is larger than a bucket starts at once and overtakes those that wait. The buffers
// are the group's host buffers, held from the first gradient of a backward to the end of the
// bucket's reduction. A gradient that is reduced alone needs none where its device computes in the
// host's memory: it is sent from there, and its sum is made there.

import { tellFailure } from '@shardweave/collectives';
import { byteSize } from '@shardweave/dtypes';
import type { DType, HostBlock, Storage } from '@shardweave/tensor-core';
import type { RoundReduction } from './group-rounds.js';
import { isSameReduction, type UnitLinks } from './unit-links.js';
import { reduceWhole, type WholeReduction, type WholeRounds } from './whole-rounds.js';

/** The gradient of one flat parameter on its way to the other ranks. */
export interface OutgoingGradient {
  /** The name in traces and errors. */
  readonly name: string;
  /**
   * Equal shards for all ranks one after another, in the dtype of the wire. It is read by `add`.
   */
  readonly whole: Storage;
  /** The number of shards. */
  readonly worldSize: number;
  /** Whether it is one shard, whose sum all ranks get. */
  readonly isWhole: boolean;
  readonly links: UnitLinks;
  /** Whether it may wait in a bucket; if not, it is reduced alone whatever the cap. */
  readonly isBucketed: boolean;
  /**
   * Makes memory of the device for this rank's reduced shard, where it may lie there at once.
   * Without it, or where it returns undefined, the shard comes in a host buffer.
   */
  makeBlock?(byteLength: number): HostBlock | undefined;
  /**
   * Takes this rank's reduced shard; with gradientGroups the sums that a round gives, in order. The
   * bytes are the bucketer's again when it settles, unless they are the block of `makeBlock`, which
   * is the taker's.
   */
  onReduced(sums: readonly Uint8Array[], block: HostBlock | undefined): void | Promise<void>;
}

export interface BucketerOptions {
  /** The bytes of a bucket's input; 0: no buckets. */
  readonly capBytes: number;
  /**
   * The bytes of all gradients that may come in one backward for a dtype and a set of ranks; a
   * bucket is not made larger than that.
   */
  mostBytes(links: UnitLinks, dtype: DType): number;
  /** The identity that ranks compare for a reduction that is about to start. */
  identity(names: readonly string[], links: UnitLinks): string;
  /** How the present round of a step in groups is reduced. Default: in rank order. */
  round?(): RoundReduction | undefined;
  /** Adds up the gradients that every rank has whole, in a step in groups. */
  readonly wholeRounds?: WholeRounds | undefined;
}

/** The place of a gradient in a bucket. */
interface Entry {
  readonly gradient: OutgoingGradient;
  /** The offset in each row, in bytes. */
  readonly offset: number;
  readonly byteLength: number;
}

interface Bucket {
  readonly links: UnitLinks;
  readonly dtype: DType;
  readonly worldSize: number;
  readonly isWhole: boolean;
  /** The bytes of a row. */
  readonly capacity: number;
  input: Uint8Array | undefined;
  filled: number;
  entries: Entry[];
  reads: Promise<unknown>[];
}

interface Reduction {
  readonly entries: readonly Entry[];
  readonly links: UnitLinks;
  /**
   * This rank's row, summed over all ranks; the sums of a round follow one another. Undefined where
   * the sum is held until the last call of a step.
   */
  readonly output: Promise<Uint8Array | undefined>;
  /** Whether the output is one of the group's host buffers. */
  readonly isInBuffer: boolean;
  readonly numSums: number;
  readonly shardBytes: number;
  /** The memory of the device that the row lies in, if any. */
  readonly block: HostBlock | undefined;
}

export class ReduceScatterBucketer {
  readonly #options: BucketerOptions;
  readonly #buckets: Bucket[] = [];
  #started: Reduction[] = [];

  constructor(options: BucketerOptions) {
    this.#options = options;
  }

  /** The number of reductions that have started and whose results are not yet taken. */
  get numStarted(): number {
    return this.#started.length;
  }

  /** Queues the gradient's read-back, and starts what is to be reduced at once; never waits. */
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

  /** Starts whatever waits in buckets. */
  flush(): void {
    for (const bucket of this.#buckets) {
      this.#start(bucket);
    }
  }

  /**
   * Flushes, waits, and hands out the results: reductions in the order in which they started, the
   * gradients of one reduction in the order in which they came.
   */
  async finish(): Promise<void> {
    this.flush();
    for (let next = this.#started.shift(); next !== undefined; next = this.#started.shift()) {
      const output = await next.output;
      if (output === undefined) {
        continue;
      }
      for (const { gradient, offset, byteLength } of next.entries) {
        const sums = Array.from({ length: next.numSums }, (_, i) => {
          const start = i * next.shardBytes + offset;
          return output.subarray(start, start + byteLength);
        });
        await gradient.onReduced(sums, next.block);
      }
      if (next.isInBuffer) {
        next.links.hostBuffers.give(output);
      }
    }
  }

  /** Forgets everything after a failure; reads and reductions may still be under way. */
  reset(): void {
    this.#buckets.length = 0;
    for (const { output, block } of this.#started) {
      const release = () => block?.release();
      output.then(release, release);
    }
    this.#started = [];
  }

  #bucketFor({
    links,
    whole,
    worldSize,
    isWhole,
    isBucketed,
  }: OutgoingGradient): Bucket | undefined {
    const { capBytes, mostBytes } = this.#options;
    if (!isBucketed || capBytes <= 0) {
      return undefined;
    }
    const { dtype } = whole;
    const known = this.#buckets.find(
      (bucket) =>
        bucket.dtype === dtype &&
        bucket.isWhole === isWhole &&
        isSameReduction(bucket.links, links),
    );
    if (known !== undefined) {
      return known;
    }
    const size = byteSize(dtype);
    const most = Math.min(capBytes, mostBytes(links, dtype));
    const capacity = size * Math.floor(most / size / worldSize);
    const empty = { input: undefined, filled: 0, entries: [], reads: [] };
    const bucket: Bucket = { links, dtype, worldSize, isWhole, capacity, ...empty };
    this.#buckets.push(bucket);
    return bucket;
  }

  #startAlone(gradient: OutgoingGradient, byteLength: number): void {
    const { whole, links, worldSize, isWhole } = gradient;
    const { dtype } = whole;
    const entries = [{ gradient, offset: 0, byteLength }];
    const reduction = { entries, links, dtype, worldSize, isWhole, shardBytes: byteLength };
    const sent = worldSize > 1 ? whole.device.pool.blocks.takeFrom(whole) : undefined;
    if (sent === undefined) {
      const input = links.hostBuffers.take(whole.byteLength);
      this.#reduce({ ...reduction, ready: whole.read(0, whole.byteLength, input) });
      return;
    }
    const block = gradient.makeBlock?.(byteLength);
    const ready = Promise.all([sent.settle(), block?.settle()]).then(() => sent.bytes);
    this.#reduce({ ...reduction, ready, sent, block });
  }

  #start(bucket: Bucket): void {
    const { links, dtype, worldSize, isWhole, capacity, input, filled, entries, reads } = bucket;
    if (input === undefined) {
      return;
    }
    bucket.input = undefined;
    bucket.filled = 0;
    bucket.entries = [];
    bucket.reads = [];
    const ready = Promise.all(reads).then(() => {
      // The rows of a bucket that is not full move together, because they follow one another on the
      // wire.
      for (let rank = 1; filled < capacity && rank < worldSize; rank++) {
        input.copyWithin(rank * filled, rank * capacity, rank * capacity + filled);
      }
      return input;
    });
    this.#reduce({ entries, links, dtype, worldSize, isWhole, shardBytes: filled, ready });
  }

  #reduce(reduction: {
    readonly entries: readonly Entry[];
    readonly links: UnitLinks;
    readonly dtype: DType;
    readonly worldSize: number;
    readonly isWhole: boolean;
    readonly shardBytes: number;
    /** The buffer that begins with the shards, once they are read. */
    readonly ready: Promise<Uint8Array>;
    /** The memory of the device that the shards lie in, and that for the sum, if any. */
    readonly sent?: HostBlock | undefined;
    readonly block?: HostBlock | undefined;
  }): void {
    const { entries, links, dtype, worldSize, isWhole, shardBytes, ready, sent, block } = reduction;
    ready.catch(() => undefined); // seen by whoever awaits the reduction
    const { reduceGroup, reductions, replicas, hostBuffers } = links;
    const names = entries.map(({ gradient }) => gradient.name);
    const identity = this.#options.identity(names, links);
    if (isWhole) {
      this.#reduceWhole(reduction, { dtype, op: 'sum', tag: names.join(' + '), identity });
      return;
    }
    const round = this.#options.round?.();
    const numSums = round?.numSums ?? 1;
    const tree = round && { tree: round.tree };
    const options = { dtype, op: 'sum', tag: names.join(' + '), identity, ...tree } as const;
    let output = ready;
    if (worldSize > 1) {
      output = reductions.enqueue(
        ready,
        async (input) => {
          const shard = block?.bytes ?? hostBuffers.take((numSums * input.byteLength) / worldSize);
          const whole = input.subarray(0, round?.isGiving === false ? 0 : shardBytes * worldSize);
          const sums = shard.subarray(0, numSums * shardBytes);
          // The device adds after the call, which a wrapper of the group may answer otherwise.
          let isOtherAlone = false;
          const addOwn = () => {
            isOtherAlone = true;
          };
          const isOfTwo = worldSize === 2 && reduceGroup.worldSize === 2 && !replicas;
          const own = sent && block && isOfTwo && dtype === 'f32' ? { addOwn } : undefined;
          await reduceGroup.reduceScatter(whole, sums, { ...options, ...own });
          if (isOtherAlone) {
            block!.queueAdd(sent!, reduceGroup.rank * shardBytes);
          }
          if (sent === undefined) {
            hostBuffers.give(input);
          }
          return shard;
        },
        { failed: (error) => tellFailure(reduceGroup, 'a reduction', error) },
      );
    }
    if (sent !== undefined) {
      const release = () => sent.release();
      output.then(release, release);
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
    const isInBuffer = block === undefined;
    this.#started.push({ entries, links, output, block, isInBuffer, numSums, shardBytes });
  }

  #reduceWhole(
    {
      entries,
      links,
      shardBytes,
      ready,
    }: Pick<Reduction, 'entries' | 'links' | 'shardBytes'> & {
      readonly ready: Promise<Uint8Array>;
    },
    options: WholeReduction['options'],
  ): void {
    const { wholeRounds } = this.#options;
    const reduction = { ready, byteLength: shardBytes, links, options };
    const output = wholeRounds?.reduce(reduction) ?? reduceWhole(reduction);
    output.catch(() => undefined); // seen by finish, which a reset may keep from coming
    const isInBuffer = wholeRounds === undefined;
    const sums = { numSums: 1, shardBytes, block: undefined, isInBuffer };
    this.#started.push({ ...sums, entries, links, output });
  }
}
