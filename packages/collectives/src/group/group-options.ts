// The options that every way of making a group takes, and the making of the group of all ranks.

import { WireCodec, type WireFormat } from '@shardweave/dtypes';
import type { Clock } from '../clock.js';
import { DEFAULT_TIMEOUT_MS, type Endpoint } from '../endpoint/endpoint.js';
import type { ReduceHook } from '../endpoint/reduce-hook.js';
import { CollectiveUsageError, type ErrorPlace } from '../errors.js';
import type { NativeCollectives } from './native-collectives.js';
import type { ProcessGroup, TraceHandler } from './process-group.js';
import { TransportGroup } from './transport-group.js';
import { complaintOfTimeLimit, complaintOfWire, kindOf, shown } from './value-checks.js';

/** The options of a world group that all transports take. Its subgroups inherit them. */
export interface GroupOptions {
  /**
   * The milliseconds without a byte's progress after which a call fails on every rank; Infinity: no
   * limit. Default: ten minutes.
   */
  readonly timeoutMs?: number;
  readonly onTrace?: TraceHandler;
  /** Combines parts in place of the package's wasm, for instance in a worker or on a GPU. */
  readonly reduce?: ReduceHook;
  /**
   * How f32 travels in all-gathers, sums and means whose call doesn't set it (CompressionOptions).
   * Default: exact.
   */
  readonly wire?: WireFormat | 'exact';
  /**
   * The number of the host of each rank of the world; it must be the same on all ranks. Sums are
   * then combined within hosts first, and each part crosses between two hosts once. That sends
   * fewer bytes, and adds in an order of its own (README) which is equal in all runs. Default:
   * plain rank order.
   */
  readonly hosts?: readonly number[];
  /**
   * The most bytes of one peer's messages that may wait here until a call asks for them; a peer
   * that sends more is lost. Default: 512 MiB.
   */
  readonly maxUnclaimedBytes?: number;
  /** A clock for tests. Default: the system's. */
  readonly clock?: Clock;
}

/**
 * Refuses wrong options with CollectiveUsageError. Every way to connect calls this before it opens
 * anything: an error later would leave links open, and the other ranks in a job without this one.
 */
export function checkGroupOptions(
  options: GroupOptions & { readonly joinTimeoutMs?: number },
  place: ErrorPlace,
): void {
  const { hosts, wire, maxUnclaimedBytes } = options;
  const refuse = (complaint: string | undefined) => {
    if (complaint !== undefined) {
      throw new CollectiveUsageError(place, complaint);
    }
  };
  for (const name of ['timeoutMs', 'joinTimeoutMs'] as const) {
    const limitMs = options[name];
    refuse(limitMs === undefined ? undefined : complaintOfTimeLimit(name, limitMs));
  }
  refuse(wire === undefined ? undefined : complaintOfWire(wire));
  if (hosts !== undefined) {
    refuse(complaintOfHosts(hosts, place.worldSize));
  }
  if (maxUnclaimedBytes !== undefined && !isByteLimit(maxUnclaimedBytes)) {
    const got = shown(maxUnclaimedBytes);
    refuse(`expected maxUnclaimedBytes to be a number of bytes, got ${got}.`);
  }
}

function isByteLimit(bytes: unknown): boolean {
  return typeof bytes === 'number' && bytes >= 0;
}

function complaintOfHosts(hosts: readonly number[], worldSize: number): string | undefined {
  if (!Array.isArray(hosts) || hosts.length !== worldSize) {
    const got = Array.isArray(hosts) ? hosts.length : kindOf(hosts);
    return `expected a host for each of ${worldSize} ranks, got ${got}.`;
  }
  const wrong = hosts.findIndex((host) => !Number.isFinite(host));
  return wrong < 0 ? undefined : `expected hosts to be numbers, got ${shown(hosts[wrong])}.`;
}

/**
 * The group of all ranks over an endpoint that has its transport. Where `native` is given, that
 * engine runs the collectives of the groups that it serves. Where `epoch` is given, every message
 * names it.
 */
export function createWorldGroup(
  endpoint: Endpoint,
  options: GroupOptions & { readonly native?: NativeCollectives; readonly epoch?: number },
): ProcessGroup {
  const { rank, worldSize } = endpoint;
  checkGroupOptions(options, { rank, worldSize, call: 'createWorldGroup' });
  let codec: Promise<WireCodec> | undefined;
  const members = Array.from({ length: worldSize }, (_, member) => member);
  const id = options.epoch === undefined ? 'world' : `world@${options.epoch}`;
  return new TransportGroup(id, members, {
    endpoint,
    timeoutMs: options.timeoutMs ?? DEFAULT_TIMEOUT_MS,
    onTrace: options.onTrace,
    hosts: options.hosts,
    wire: options.wire ?? 'exact',
    native: options.native,
    codec: () => {
      codec ??= WireCodec.create();
      return codec;
    },
  });
}
