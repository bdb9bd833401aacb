// Options that every way of making a group takes, and what they become: an Endpoint and its world.

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
  /** For tests. Default: the system's. */
  readonly clock?: Clock;
}

/** The group of all ranks, over an endpoint that has its transport. */
export function createWorldGroup(endpoint: Endpoint, options: GroupOptions): ProcessGroup {
  return new TransportGroup({
    endpoint,
    id: 'world',
    members: Array.from({ length: endpoint.worldSize }, (_, rank) => rank),
    timeoutMs: options.timeoutMs ?? DEFAULT_TIMEOUT_MS,
    onTrace: options.onTrace,
  });
}
