// Collectives by means of MPI's own: Iallgather for the agreement about each call, then
// Iallgatherv, Ialltoallv, Ibcast and Igatherv for its data. Sums are made here, in rank order,
// unless MPI's own were asked for. Groups of all ranks go this way, and so do their splits with one
// color. A group of fewer ranks goes by messages, because MPI makes such communicators by blocking
// calls only.

import { byteSize, type ReduceOptions } from '@shardweave/dtypes';
import { allGather } from '../../algorithms/all-gather.js';
import { GATHER_ALL_MAX_BYTES, smallAllReduceBytes } from '../../algorithms/all-reduce.js';
import {
  balancedParts,
  evenParts,
  type PartLayout,
  partBytes,
  partOf,
} from '../../algorithms/part-layout.js';
import { reduceScatter } from '../../algorithms/reduce-scatter.js';
import { gather } from '../../algorithms/rooted.js';
import type { Call } from '../../endpoint/call.js';
import type { NativeCollectives } from '../../group/native-collectives.js';
import { MAX_RIDING_BYTES } from './call-records.js';
import { GroupOpenings } from './group-openings.js';
import type { MpiEngine } from './mpi-engine.js';
import { ownSumOf, reduceByMpi } from './own-sums.js';
import { gatherPieces, reducePieces } from './piece-moves.js';
import { longestPart, MAX_BUFFER_BYTES, numPieces, pieceOf, pieceOfAll } from './pieces.js';

export interface MpiCollectivesOptions {
  readonly engine: MpiEngine;
  /** Whether all-reduces use MPI's own sums, where it has them. */
  readonly isNativeAllReduce: boolean;
}

const EMPTY = new Uint8Array(0);

export class MpiCollectives implements NativeCollectives {
  readonly #engine: MpiEngine;
  readonly #isNativeAllReduce: boolean;
  readonly #openings: GroupOpenings;

  constructor(options: MpiCollectivesOptions) {
    this.#engine = options.engine;
    this.#isNativeAllReduce = options.isNativeAllReduce;
    this.#openings = new GroupOpenings(options.engine);
  }

  serves(group: string): boolean {
    return this.#engine.serves(group);
  }

  allGather(call: Call, own: Uint8Array, output: Uint8Array, layout: PartLayout): Promise<void> {
    countAllToAll(call, layout);
    if (call.spec.signature.operation === 'split') {
      this.#openings.reserve(call);
    }
    const isRiding = longestPart(layout) <= MAX_RIDING_BYTES;
    return this.#engine.run(call, isRiding ? own : EMPTY, async (agreed, group) => {
      if (isRiding) {
        const records = await agreed;
        group.places.forEach((place, rank) => {
          const part = partOf(output, layout, rank);
          part.set(records.payload(place, part.byteLength));
        });
      } else if (output.byteLength > MAX_BUFFER_BYTES) {
        await agreed;
        await byMessages(call, () => allGather(call, own, output, layout));
      } else {
        const copied = call.copy(partOf(output, layout, call.rank), own);
        const ready = Promise.all([agreed, copied]);
        await gatherPieces({ engine: this.#engine, call, group }, output, layout, { ready });
      }
    });
  }

  reduceScatter(
    call: Call,
    input: Uint8Array,
    output: Uint8Array,
    layout: PartLayout,
    options: ReduceOptions,
  ): Promise<void> {
    call.bytesSent += input.byteLength - output.byteLength;
    call.bytesReceived += output.byteLength * (call.worldSize - 1);
    const isRiding = input.byteLength <= MAX_RIDING_BYTES;
    return this.#engine.run(call, isRiding ? input : EMPTY, async (agreed, group) => {
      if (isRiding) {
        const records = await agreed;
        const parts = group.places.map((place) =>
          partOf(records.payload(place, input.byteLength), layout, call.rank),
        );
        await call.reduce(parts, output, options);
      } else if (input.byteLength > MAX_BUFFER_BYTES) {
        await agreed;
        await byMessages(call, () => reduceScatter(call, input, output, layout, options));
      } else {
        const running = { engine: this.#engine, call, group };
        await reducePieces(running, { input, output, layout, options }, agreed).done;
      }
    });
  }

  allReduce(
    call: Call,
    input: Uint8Array,
    output: Uint8Array,
    options: ReduceOptions,
  ): Promise<void> {
    const { byteLength } = input;
    if (byteLength <= MAX_RIDING_BYTES) {
      countSmallAllReduce(call, byteLength);
      return this.#engine.run(call, input, async (agreed, group) => {
        const records = await agreed;
        const parts = group.places.map((place) => records.payload(place, byteLength));
        await call.reduce(parts, output, options);
      });
    }
    const native = this.#isNativeAllReduce ? ownSumOf(this.#engine.mpi, options) : undefined;
    if (native !== undefined) {
      return reduceByMpi(this.#engine, call, input, output, native);
    }
    if (byteLength <= GATHER_ALL_MAX_BYTES) {
      return this.#reduceEverywhere(call, input, output, options);
    }
    const layout = balancedParts(call.worldSize, byteLength, byteSize(options.dtype));
    const own = partOf(output, layout, call.rank);
    call.bytesSent += byteLength - own.byteLength;
    call.bytesReceived += own.byteLength * (call.worldSize - 1);
    countAllToAll(call, layout);
    return this.#engine.run(call, EMPTY, async (agreed, group) => {
      const reduction = { input, output: own, layout, options };
      const running = { engine: this.#engine, call, group };
      const { done, pieces } = reducePieces(running, reduction, agreed);
      const gathered = gatherPieces(running, output, layout, { ready: agreed, pieces });
      await Promise.all([done, gathered]);
    });
  }

  broadcast(call: Call, buffer: Uint8Array, root: number): Promise<void> {
    const { byteLength } = buffer;
    const isRoot = call.rank === root;
    call.bytesSent += isRoot ? byteLength * (call.worldSize - 1) : 0;
    call.bytesReceived += isRoot ? 0 : byteLength;
    const isRiding = byteLength <= MAX_RIDING_BYTES;
    return this.#engine.run(call, isRoot && isRiding ? buffer : EMPTY, async (agreed, group) => {
      const place = group.places[root]!;
      if (isRiding) {
        const records = await agreed;
        buffer.set(records.payload(place, byteLength));
        return;
      }
      await this.#engine.inOrder(group.dataOrder, call, agreed, {
        numPieces: numPieces(byteLength),
        begin: (piece, request) => {
          const bytes = pieceOf(buffer, piece);
          this.#engine.mpi.ibcast(bytes, place, group.data, request);
          return bytes;
        },
      });
    });
  }

  gather(call: Call, input: Uint8Array, output: Uint8Array | null, root: number): Promise<void> {
    const { byteLength } = input;
    const whole = call.rank === root ? output : null;
    call.bytesSent += whole === null ? byteLength : 0;
    call.bytesReceived += whole === null ? 0 : byteLength * (call.worldSize - 1);
    const layout = evenParts(call.worldSize, byteLength);
    const isRiding = byteLength <= MAX_RIDING_BYTES;
    return this.#engine.run(call, isRiding ? input : EMPTY, async (agreed, group) => {
      if (isRiding) {
        const records = await agreed;
        group.places.forEach((place, rank) => {
          whole?.set(records.payload(place, byteLength), layout.offsets[rank]);
        });
        return;
      }
      if (byteLength * call.worldSize > MAX_BUFFER_BYTES) {
        await agreed;
        await byMessages(call, () => gather(call, input, output, root));
        return;
      }
      const copied = whole === null ? undefined : call.copy(partOf(whole, layout, root), input);
      await this.#engine.inOrder(group.dataOrder, call, Promise.all([agreed, copied]), {
        numPieces: numPieces(byteLength),
        begin: (piece, request) => {
          const bytes = pieceOf(input, piece);
          const into = whole && { bytes: whole, ...pieceOfAll(layout, piece, group.places) };
          this.#engine.mpi.igatherv(bytes, into, group.places[root]!, group.data, request);
          return [bytes, into];
        },
      });
    });
  }

  openGroup(call: Call, id: string, members: readonly number[]): Promise<void> {
    return this.#openings.open(call, id, members);
  }

  /**
   * Combines inputs of up to a few KiB: all inputs go to all ranks, and each makes the same sum.
   */
  #reduceEverywhere(
    call: Call,
    input: Uint8Array,
    output: Uint8Array,
    options: ReduceOptions,
  ): Promise<void> {
    const { byteLength } = input;
    countSmallAllReduce(call, byteLength);
    return this.#engine.run(call, EMPTY, async (agreed, group) => {
      const all = call.scratch.take(byteLength * call.worldSize);
      await this.#engine.inOrder(group.dataOrder, call, agreed, {
        numPieces: 1,
        begin: (_, request) => {
          this.#engine.mpi.iallgather(input, all, group.data, request);
          return [input, all];
        },
      });
      const parts = group.places.map((place) =>
        all.subarray(place * byteLength, (place + 1) * byteLength),
      );
      await call.reduce(parts, output, options);
      call.scratch.give(all);
    });
  }
}

/** Counts the bytes that the call takes over every other transport, whatever way MPI moves it. */
function countSmallAllReduce(call: Call, byteLength: number): void {
  const bytes = smallAllReduceBytes(call, byteLength);
  call.bytesSent += bytes;
  call.bytesReceived += bytes;
}

/** Counts an operation in which each rank's part goes to all others. */
function countAllToAll(call: Call, layout: PartLayout): void {
  const own = partBytes(layout, call.rank);
  call.bytesSent += own * (call.worldSize - 1);
  call.bytesReceived += layout.offsets.at(-1)! - own;
}

/** Runs by messages what MPI's counts are too small for; messages count their bytes themselves. */
function byMessages(call: Call, run: () => Promise<void>): Promise<void> {
  call.bytesSent = 0;
  call.bytesReceived = 0;
  call.late = undefined;
  return run();
}
