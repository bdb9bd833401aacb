// Collectives by MPI's own: Iallgather for the agreement about each call, then Iallgatherv,
// Ialltoallv, Ibcast and Igatherv for its data. Sums are ours, in rank order, unless MPI's were asked
// for. Groups of all ranks go this way, and their splits with one color; what has fewer ranks goes by
// messages, for MPI makes such communicators by blocking calls only.

import { byteSize, type ReduceOptions } from '@shardweave/dtypes';
import { allGather } from '../../algorithms/all-gather.js';
import { GATHER_ALL_MAX_BYTES } from '../../algorithms/all-reduce.js';
import {
  balancedParts,
  evenParts,
  type PartLayout,
  partBytes,
  partOf,
} from '../../algorithms/part-layout.js';
import { reduceScatter } from '../../algorithms/reduce-scatter.js';
import { gather } from '../../algorithms/rooted.js';
import type { Call } from '../../call.js';
import type { NativeCollectives } from '../../native-collectives.js';
import { MAX_RIDING_BYTES } from './agreement.js';
import type { MpiHandle } from './mpi-abi.js';
import type { MpiEngine, Pieces } from './mpi-engine.js';
import { COMMS_A_GROUP, type MpiGroup } from './mpi-group.js';
import {
  longestPart,
  MAX_BUFFER_BYTES,
  numPieces,
  pieceBytes,
  pieceOf,
  pieceOfAll,
} from './pieces.js';

export interface MpiCollectivesOptions {
  readonly engine: MpiEngine;
  /** All-reduce by MPI's own sums where it has them. */
  readonly isNativeAllReduce: boolean;
}

/** Where a reduction's parts come from, and where this rank's result goes. */
interface Reduction {
  readonly input: Uint8Array;
  /** This rank's part. */
  readonly output: Uint8Array;
  readonly layout: PartLayout;
  readonly options: ReduceOptions;
}

const EMPTY = new Uint8Array(0);

export class MpiCollectives implements NativeCollectives {
  readonly #engine: MpiEngine;
  readonly #isNativeAllReduce: boolean;
  /** Opens a split's place among the operations of its parent. */
  readonly #openings = new Map<
    Call,
    { readonly begin: (pieces: Pieces) => void; readonly done: Promise<void> }
  >();

  constructor(options: MpiCollectivesOptions) {
    this.#engine = options.engine;
    this.#isNativeAllReduce = options.isNativeAllReduce;
  }

  serves(group: string): boolean {
    return this.#engine.serves(group);
  }

  allGather(call: Call, own: Uint8Array, output: Uint8Array, layout: PartLayout): Promise<void> {
    countAllToAll(call, layout);
    if (call.spec.signature.operation === 'split') {
      this.#reserveOpening(call);
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
        await this.#gatherPieces(call, group, output, layout, Promise.all([agreed, copied]));
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
        await this.#reducePieces(call, group, { input, output, layout, options }, agreed).done;
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
      countAllToAll(call, evenParts(call.worldSize, byteLength));
      return this.#engine.run(call, input, async (agreed, group) => {
        const records = await agreed;
        const parts = group.places.map((place) => records.payload(place, byteLength));
        await call.reduce(parts, output, options);
      });
    }
    const native = this.#nativeSum(options);
    if (native !== undefined) {
      return this.#reduceByMpi(call, input, output, native);
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
      const { done, pieces } = this.#reducePieces(call, group, reduction, agreed);
      await Promise.all([done, this.#gatherPieces(call, group, output, layout, agreed, pieces)]);
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
      await this.#engine.inLane(group.dataLane, call, agreed, {
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
      await this.#engine.inLane(group.dataLane, call, Promise.all([agreed, copied]), {
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

  /**
   * A group of all the parent's ranks gets communicators of its own. They are made in the place that
   * the split took among the parent's operations: MPI wants that in the same order on all ranks, too.
   */
  async openGroup(call: Call, id: string, members: readonly number[]): Promise<void> {
    const { mpi } = this.#engine;
    const parent = this.#engine.groupOf(call);
    const isWhole = members.length === parent.members.length;
    const comms = mpi.handles(COMMS_A_GROUP);
    const opening = this.#openings.get(call)!;
    this.#openings.delete(call);
    opening.begin({
      numPieces: isWhole ? COMMS_A_GROUP : 0,
      begin: (piece, request) => {
        mpi.idup(parent.data, comms.subarray(piece, piece + 1), request);
        return comms;
      },
    });
    await opening.done;
    if (isWhole) {
      this.#engine.add(id, members, parent.order, comms);
    }
  }

  #reserveOpening(call: Call): void {
    let begin: (pieces: Pieces) => void = () => {};
    const pieces = new Promise<Pieces>((resolve) => {
      begin = resolve;
    });
    const { dataLane } = this.#engine.groupOf(call);
    const done = this.#engine.inLane(dataLane, call, Promise.resolve(), pieces);
    this.#openings.set(call, { begin, done });
  }

  // --------------------------------------------------------------------- pieces

  /** `output`, with each rank's own part in its place, becomes the same on all. */
  #gatherPieces(
    call: Call,
    group: MpiGroup,
    output: Uint8Array,
    layout: PartLayout,
    ready: Promise<unknown>,
    pieces?: readonly Promise<void>[],
  ): Promise<void> {
    const lane = pieces === undefined ? group.dataLane : group.secondLane;
    const comm = pieces === undefined ? group.data : group.second;
    return this.#engine.inLane(lane, call, ready, {
      numPieces: numPieces(longestPart(layout)),
      isReady: (piece) => pieces?.[piece],
      begin: (piece, request) => {
        const { counts, offsets } = pieceOfAll(layout, piece, group.places);
        this.#engine.mpi.iallgatherv(output, counts, offsets, comm, request);
        return [output, counts, offsets];
      },
    });
  }

  /** All inputs' parts of this rank, combined: at once, and piece by piece. */
  #reducePieces(
    call: Call,
    group: MpiGroup,
    { input, output, layout, options }: Reduction,
    agreed: Promise<unknown>,
  ): { readonly done: Promise<void>; readonly pieces: readonly Promise<void>[] } {
    const { mpi } = this.#engine;
    const own = partOf(input, layout, call.rank);
    const numParts = numPieces(longestPart(layout));
    const reduced: (() => void)[] = [];
    const pieces = Array.from(
      { length: numParts },
      () => new Promise<void>((resolve) => reduced.push(resolve)),
    );
    const arrived: Uint8Array[] = [];
    const done = this.#engine.inLane(group.dataLane, call, agreed, {
      numPieces: numParts,
      begin: (piece, request) => {
        const from = pieceOfAll(layout, piece, group.places);
        from.counts[group.places[call.rank]!] = 0; // read where it lies
        const count = pieceBytes(own.byteLength, piece);
        const scratch = call.scratch.take(count * (call.worldSize - 1));
        arrived[piece] = scratch;
        const into = othersOf(call, group, count);
        mpi.ialltoallv({ bytes: input, ...from }, { bytes: scratch, ...into }, group.data, request);
        return [input, from, scratch, into];
      },
      finish: async (piece) => {
        const count = pieceBytes(own.byteLength, piece);
        const scratch = arrived[piece]!;
        const parts = Array.from({ length: call.worldSize }, (_, rank) => {
          const start = (rank < call.rank ? rank : rank - 1) * count;
          return rank === call.rank ? pieceOf(own, piece) : scratch.subarray(start, start + count);
        });
        if (count > 0) {
          await call.reduce(parts, pieceOf(output, piece), options);
        }
        call.scratch.give(scratch);
        reduced[piece]!();
      },
    });
    return { done, pieces };
  }

  /** Up to a few KiB: all inputs to all ranks, and the same sum on each. */
  #reduceEverywhere(
    call: Call,
    input: Uint8Array,
    output: Uint8Array,
    options: ReduceOptions,
  ): Promise<void> {
    const { byteLength } = input;
    countAllToAll(call, evenParts(call.worldSize, byteLength));
    return this.#engine.run(call, EMPTY, async (agreed, group) => {
      const all = call.scratch.take(byteLength * call.worldSize);
      await this.#engine.inLane(group.dataLane, call, agreed, {
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

  // ------------------------------------------------------------------ MPI's sums

  #nativeSum({ dtype, op }: ReduceOptions): NativeSum | undefined {
    const { abi } = this.#engine.mpi;
    const types: Partial<Record<string, MpiHandle>> = { f32: abi.f32, i32: abi.i32, u32: abi.u32 };
    const operations: Partial<Record<string, MpiHandle>> = {
      sum: abi.sum,
      max: abi.max,
      min: abi.min,
    };
    const type = types[dtype];
    const operation = operations[op];
    const isAsked = this.#isNativeAllReduce && type !== undefined && operation !== undefined;
    return isAsked ? { type, op: operation, elementBytes: byteSize(dtype) } : undefined;
  }

  #reduceByMpi(
    call: Call,
    input: Uint8Array,
    output: Uint8Array,
    { elementBytes, ...sum }: NativeSum,
  ): Promise<void> {
    call.bytesSent += input.byteLength;
    call.bytesReceived += input.byteLength;
    return this.#engine.run(call, EMPTY, async (agreed, group) => {
      const ready = Promise.all([agreed, call.copy(output, input)]);
      await this.#engine.inLane(group.dataLane, call, ready, {
        numPieces: numPieces(output.byteLength),
        begin: (piece, request) => {
          const bytes = pieceOf(output, piece);
          const count = bytes.byteLength / elementBytes;
          this.#engine.mpi.iallreduce(bytes, { ...sum, count }, group.data, request);
          return bytes;
        },
      });
    });
  }
}

interface NativeSum {
  readonly type: MpiHandle;
  readonly op: MpiHandle;
  readonly elementBytes: number;
}

/** Where `count` bytes from each other rank arrive: in rank order, without a gap for one's own. */
function othersOf(call: Call, group: MpiGroup, count: number) {
  const counts = new Int32Array(call.worldSize);
  const offsets = new Int32Array(call.worldSize);
  group.places.forEach((place, rank) => {
    if (rank !== call.rank) {
      counts[place] = count;
      offsets[place] = (rank < call.rank ? rank : rank - 1) * count;
    }
  });
  return { counts, offsets };
}

/** Counts an operation in which each rank's part goes to all others. */
function countAllToAll(call: Call, layout: PartLayout): void {
  const own = partBytes(layout, call.rank);
  call.bytesSent += own * (call.worldSize - 1);
  call.bytesReceived += layout.offsets.at(-1)! - own;
}

/** Runs what MPI's counts are too small for; messages count their bytes themselves. */
function byMessages(call: Call, run: () => Promise<void>): Promise<void> {
  call.bytesSent = 0;
  call.bytesReceived = 0;
  call.late = undefined;
  return run();
}
