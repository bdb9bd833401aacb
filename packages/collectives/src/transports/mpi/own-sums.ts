// MPI's own all-reduce, for users who prefer speed to equal bits.

import { byteSize, type ReduceOptions } from '@shardweave/dtypes';
import type { Call } from '../../endpoint/call.js';
import type { MpiHandle } from './mpi-abi.js';
import type { MpiEngine } from './mpi-engine.js';
import type { MpiLibrary } from './mpi-library.js';
import { numPieces, pieceOf } from './pieces.js';

const NOTHING = new Uint8Array(0);

export interface OwnSum {
  readonly type: MpiHandle;
  readonly op: MpiHandle;
  readonly elementBytes: number;
}

/** The operation that MPI has for this reduction; undefined where it has none. */
export function ownSumOf({ abi }: MpiLibrary, { dtype, op }: ReduceOptions): OwnSum | undefined {
  const types: Partial<Record<string, MpiHandle>> = { f32: abi.f32, i32: abi.i32, u32: abi.u32 };
  const operations: Partial<Record<string, MpiHandle>> = {
    sum: abi.sum,
    max: abi.max,
    min: abi.min,
  };
  const type = types[dtype];
  const operation = operations[op];
  const isThere = type !== undefined && operation !== undefined;
  return isThere ? { type, op: operation, elementBytes: byteSize(dtype) } : undefined;
}

/** Makes an all-reduce in MPI's order of adding. */
export function reduceByMpi(
  engine: MpiEngine,
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  { elementBytes, ...sum }: OwnSum,
): Promise<void> {
  call.bytesSent += input.byteLength;
  call.bytesReceived += input.byteLength;
  return engine.run(call, NOTHING, async (agreed, group) => {
    const ready = Promise.all([agreed, call.copy(output, input)]);
    await engine.inOrder(group.dataOrder, call, ready, {
      numPieces: numPieces(output.byteLength),
      begin: (piece, request) => {
        const bytes = pieceOf(output, piece);
        const count = bytes.byteLength / elementBytes;
        engine.mpi.iallreduce(bytes, { ...sum, count }, group.data, request);
        return bytes;
      },
    });
  });
}
