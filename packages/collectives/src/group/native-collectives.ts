// The interface of an engine that runs a group's collectives in place of the algorithms over a
// transport's messages: one that moves whole collectives by its own means, such as MPI. The
// transport knows nothing of it.

import type { ReduceOptions } from '@shardweave/dtypes';
import type { PartLayout } from '../algorithms/part-layout.js';
import type { TreeCall } from '../algorithms/tree-sums.js';
import type { Call } from '../endpoint/call.js';

/**
 * The same operations as in algorithms/. Each is entered within the caller's call, so in program
 * order, and several may be running. The engine itself finds out whether ranks agree
 * (`call.spec.signature`; `Endpoint.fail` tells all), counts bytes on `call`, and reports its
 * progress with `call.progressed`. Buffers are lent until the promise settles; a rejection ends the
 * job.
 */
export interface NativeCollectives {
  /** Whether this group's collectives go through the engine; equal on all its ranks. */
  serves(group: string): boolean;
  /**
   * Also used for barrier (0 bytes) and for the exchange of split. `own` may lie at its place in
   * `output`.
   */
  allGather(call: Call, own: Uint8Array, output: Uint8Array, layout: PartLayout): Promise<void>;
  reduceScatter(
    call: Call,
    input: Uint8Array,
    output: Uint8Array,
    layout: PartLayout,
    options: ReduceOptions,
  ): Promise<void>;
  allReduce(
    call: Call,
    input: Uint8Array,
    output: Uint8Array,
    options: ReduceOptions,
  ): Promise<void>;
  /**
   * A reduceScatter, or an allReduce where `layout` is undefined, in the order of a tree. Absent:
   * such sums go by messages.
   */
  sumTree?(
    call: Call,
    input: Uint8Array,
    output: Uint8Array,
    layout: PartLayout | undefined,
    tree: TreeCall,
  ): Promise<void>;
  broadcast(call: Call, buffer: Uint8Array, root: number): Promise<void>;
  gather(call: Call, input: Uint8Array, output: Uint8Array | null, root: number): Promise<void>;
  /**
   * Opens a new group with its world ranks; called within the call of `split`, after its exchange.
   */
  openGroup(call: Call, id: string, members: readonly number[]): Promise<void>;
  /** Called when the group was closed on this rank. */
  closeGroup?(id: string): void;
}
