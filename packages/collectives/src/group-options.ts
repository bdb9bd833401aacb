// Options that every way of making a group takes, and what they become: an Endpoint and its world.

import { WireCodec, type WireFormat } from '@shardweave/dtypes';
import type { Clock } from './clock.js';
import { DEFAULT_TIMEOUT_MS, type Endpoint } from './endpoint.js';
import type { ProcessGroup, TraceHandler } from './process-group.js';
import type { ReduceHook } from './reduce-hook.js';
import { TransportGroup } from './transport-group.js';

export interface GroupOptions {
  /** Milliseconds without a byte's progress until a call fails on every rank. Default: ten minutes. */
  readonly timeoutMs?: number;
  readonly onTrace?: TraceHandler;
  /** Combines parts in place of our wasm: in a worker, or on a GPU. */
  readonly reduce?: ReduceHook;
  /**
   * How f32 travels where a call doesn't say (CompressionOptions): in all-gathers, sums and means.
   * Default: exact.
   */
  readonly wire?: WireFormat | 'exact';
  /**
   * For each rank of the world the number of its host. Sums are then combined within hosts first, and
   * each part crosses between two hosts once: fewer bytes there, in an order of its own (README),
   * equal in all runs. The same on all ranks. Default: plain rank order.
   */
  readonly hosts?: readonly number[];
  /**
   * Bytes of one peer's messages that may wait here for a call that asks for them; a peer that sends
   * more is lost. Default: 4 GiB.
   */
  readonly maxUnclaimedBytes?: number;
  /** For tests. Default: the system's. */
  readonly clock?: Clock;
}

/** The group of all ranks, over an endpoint that has its transport. */
export function createWorldGroup(endpoint: Endpoint, options: GroupOptions): ProcessGroup {
  const { hosts } = options;
  if (hosts !== undefined && hosts.length !== endpoint.worldSize) {
    const message = `expected a host for each of ${endpoint.worldSize} ranks, got ${hosts.length}.`;
    throw endpoint.usageError('createWorldGroup', message);
  }
  let codec: Promise<WireCodec> | undefined;
  return new TransportGroup({
    endpoint,
    id: 'world',
    members: Array.from({ length: endpoint.worldSize }, (_, rank) => rank),
    timeoutMs: options.timeoutMs ?? DEFAULT_TIMEOUT_MS,
    onTrace: options.onTrace,
    hosts,
    wire: options.wire ?? 'exact',
    codec: () => {
      codec ??= WireCodec.create();
      return codec;
    },
  });
}
