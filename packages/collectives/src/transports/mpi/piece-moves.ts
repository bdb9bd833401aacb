// Moves the data of large collectives a piece at a time: pieces are gathered, or combined as they
// arrive.

import type { ReduceOptions } from '@shardweave/dtypes';
import { type PartLayout, partOf } from '../../algorithms/part-layout.js';
import type { Call } from '../../endpoint/call.js';
import type { MpiEngine } from './mpi-engine.js';
import type { MpiGroup } from './mpi-group.js';
import { longestPart, numPieces, pieceBytes, pieceOf, pieceOfAll } from './pieces.js';

/** The source of a reduction's parts, and the place of this rank's result. */
export interface Reduction {
  readonly input: Uint8Array;
  /** This rank's part of the result. */
  readonly output: Uint8Array;
  readonly layout: PartLayout;
  readonly options: ReduceOptions;
}

/** A collective that runs on a group's communicators. */
export interface Running {
  readonly engine: MpiEngine;
  readonly call: Call;
  readonly group: MpiGroup;
}

/** A reduction that has begun, and when each piece of it is done. */
export interface Reducing {
  readonly done: Promise<void>;
  readonly pieces: readonly Promise<void>[];
}

/** Makes `output` equal on all ranks, where each rank's own part already lies at its place. */
export function gatherPieces(
  { engine, call, group }: Running,
  output: Uint8Array,
  layout: PartLayout,
  { ready, pieces }: { readonly ready: Promise<unknown>; readonly pieces?: Reducing['pieces'] },
): Promise<void> {
  const order = pieces === undefined ? group.dataOrder : group.secondOrder;
  const comm = pieces === undefined ? group.data : group.second;
  return engine.inOrder(order, call, ready, {
    numPieces: numPieces(longestPart(layout)),
    isReady: (piece) => pieces?.[piece],
    begin: (piece, request) => {
      const { counts, offsets } = pieceOfAll(layout, piece, group.places);
      engine.mpi.iallgatherv(output, counts, offsets, comm, request);
      return [output, counts, offsets];
    },
  });
}

/** Combines this rank's part of all inputs, piece by piece. */
export function reducePieces(
  { engine, call, group }: Running,
  { input, output, layout, options }: Reduction,
  agreed: Promise<unknown>,
): Reducing {
  const { mpi } = engine;
  const own = partOf(input, layout, call.rank);
  const numParts = numPieces(longestPart(layout));
  const reduced: (() => void)[] = [];
  const pieces = Array.from(
    { length: numParts },
    () => new Promise<void>((resolve) => reduced.push(resolve)),
  );
  const arrived: Uint8Array[] = [];
  const done = engine.inOrder(group.dataOrder, call, agreed, {
    numPieces: numParts,
    begin: (piece, request) => {
      const from = pieceOfAll(layout, piece, group.places);
      from.counts[group.places[call.rank]!] = 0; // it is read where it lies
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

/**
 * The places where `count` bytes from each other rank arrive: in rank order, without a gap for this
 * rank's own.
 */
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
