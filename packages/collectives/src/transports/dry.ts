// One rank of a job whose other ranks do not exist. Every call ends at once and is counted as over
// any other transport, so that a program shows what it would move. Values are those of a job in
// which all ranks give the same; buffers above COPIED_BYTES are not moved, and outputs stay as they
// are.

import { byteSize, type ReduceOptions } from '@shardweave/dtypes';
import { GATHER_ALL_MAX_BYTES, smallAllReduceBytes } from '../algorithms/all-reduce.js';
import { balancedParts, type PartLayout, partBytes, partOf } from '../algorithms/part-layout.js';
import { type TreeCall, treeParts } from '../algorithms/tree-sums.js';
import type { Call } from '../endpoint/call.js';
import { Endpoint } from '../endpoint/endpoint.js';
import { CollectiveUsageError } from '../errors.js';
import { createWorldGroup } from '../group/group-options.js';
import type { NativeCollectives } from '../group/native-collectives.js';
import type { ProcessGroup } from '../group/process-group.js';
import type { Transport } from '../transport.js';

/** The options of `createDryGroup`. */
export interface DryGroupOptions {
  /** The rank whose end it is. Default 0. */
  readonly rank?: number;
}

/** Messages of up to this size are taken for words of a protocol, on which programs act. */
const COPIED_BYTES = 64 * 1024;

/**
 * The end of one rank in a group of `worldSize` that has no other ranks. It does not support
 * `send`, `recv` and compressed calls.
 * @example
 * ```ts
 * import { createDryGroup } from '@shardweave/collectives/dry';
 *
 * const group = createDryGroup(8);
 * await group.allGather(new Uint8Array(1024), new Uint8Array(8 * 1024));
 * console.log(group.stats().bytesSent); // logs 7168
 * await group.close();
 * ```
 */
export function createDryGroup(worldSize: number, options: DryGroupOptions = {}): ProcessGroup {
  const { rank = 0 } = options;
  const isPlace = Number.isInteger(worldSize) && Number.isInteger(rank);
  if (!isPlace || worldSize < 1 || rank < 0 || rank >= worldSize) {
    throw new CollectiveUsageError(
      { rank, worldSize, call: 'createDryGroup' },
      `expected a positive world size and a rank below it, got ${worldSize} and ${rank}.`,
    );
  }
  const endpoint = new Endpoint(rank, worldSize);
  endpoint.attach(new DryTransport(rank, worldSize));
  return createWorldGroup(endpoint, { native: new DryCollectives() });
}

class DryTransport implements Transport {
  readonly #rank: number;
  readonly #worldSize: number;

  constructor(rank: number, worldSize: number) {
    this.#rank = rank;
    this.#worldSize = worldSize;
  }

  send(): never {
    throw new CollectiveUsageError(
      { rank: this.#rank, worldSize: this.#worldSize, call: 'send' },
      'expected a collective without compression, got a message to a rank that is not there.',
    );
  }

  sendControl(): void {}

  async close(): Promise<void> {}

  terminate(): void {}
}

class DryCollectives implements NativeCollectives {
  serves(): boolean {
    return true;
  }

  async allGather(
    call: Call,
    own: Uint8Array,
    output: Uint8Array,
    layout: PartLayout,
  ): Promise<void> {
    countAllToAll(call, layout);
    if (output.byteLength > COPIED_BYTES) {
      return;
    }
    for (let rank = 0; rank < call.worldSize; rank++) {
      const part = partOf(output, layout, rank);
      part.set(own.subarray(0, part.byteLength));
    }
  }

  async reduceScatter(
    call: Call,
    input: Uint8Array,
    output: Uint8Array,
    layout: PartLayout,
  ): Promise<void> {
    countScatter(call, layout);
    if (input.byteLength <= COPIED_BYTES) {
      output.set(partOf(input, layout, call.rank));
    }
  }

  async allReduce(
    call: Call,
    input: Uint8Array,
    output: Uint8Array,
    { dtype }: ReduceOptions,
  ): Promise<void> {
    const { byteLength } = input;
    if (byteLength <= GATHER_ALL_MAX_BYTES) {
      const bytes = smallAllReduceBytes(call, byteLength);
      call.bytesSent += bytes;
      call.bytesReceived += bytes;
    } else {
      const layout = balancedParts(call.worldSize, byteLength, byteSize(dtype));
      countScatter(call, layout);
      countAllToAll(call, layout);
    }
    if (byteLength <= COPIED_BYTES) {
      output.set(input);
    }
  }

  async sumTree(
    call: Call,
    input: Uint8Array,
    output: Uint8Array,
    layout: PartLayout | undefined,
    tree: TreeCall,
  ): Promise<void> {
    const parts = layout ?? treeParts(call, output.byteLength);
    countScatter(call, parts, tree);
    if (layout === undefined) {
      countAllToAll(call, parts);
    }
    if (output.byteLength <= COPIED_BYTES) {
      output.set(input.subarray(0, output.byteLength));
    }
  }

  async broadcast(call: Call, buffer: Uint8Array, root: number): Promise<void> {
    const { byteLength } = buffer;
    if (call.rank === root) {
      call.bytesSent += byteLength * (call.worldSize - 1);
    } else {
      call.bytesReceived += byteLength;
    }
  }

  async gather(
    call: Call,
    input: Uint8Array,
    _output: Uint8Array | null,
    root: number,
  ): Promise<void> {
    const { byteLength } = input;
    if (call.rank === root) {
      call.bytesReceived += byteLength * (call.worldSize - 1);
    } else {
      call.bytesSent += byteLength;
    }
  }

  async openGroup(): Promise<void> {}
}

/** Counts a call in which each rank's part goes to all others. */
function countAllToAll(call: Call, layout: PartLayout): void {
  const own = partBytes(layout, call.rank);
  call.bytesSent += own * (call.worldSize - 1);
  call.bytesReceived += layout.offsets.at(-1)! - own;
}

/** Counts a call in which each rank gets its own part of all others, with a tree of each node. */
function countScatter(call: Call, layout: PartLayout, tree?: TreeCall): void {
  const own = partBytes(layout, call.rank);
  const numNodes = (rank: number) => tree?.nodes[rank]?.length ?? 1;
  call.bytesSent += (layout.offsets.at(-1)! - own) * numNodes(call.rank);
  for (const peer of call.peers) {
    call.bytesReceived += own * numNodes(peer);
  }
}
