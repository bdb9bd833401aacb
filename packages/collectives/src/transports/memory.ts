// Ranks in one process or page: messages are copied straight into the receiver's buffer, within the
// sender's call. Any world size; all ranks share one reducer.

import { Reducer } from '@shardweave/dtypes';
import { DEFAULT_TIMEOUT_MS, Endpoint } from '../endpoint.js';
import type { ProcessGroup, TraceHandler } from '../process-group.js';
import type { ControlMessage, MessageHeader, Transport } from '../transport.js';
import { TransportGroup } from '../transport-group.js';

export interface MemoryGroupOptions {
  /** Milliseconds until a call fails on every rank. Default: ten minutes. */
  readonly timeoutMs?: number;
  /** `onTrace` of every rank's group; the trace says whose it is. */
  readonly onTrace?: TraceHandler;
}

/** One group a rank, connected to each other in this process. */
export function createMemoryGroup(
  worldSize: number,
  options: MemoryGroupOptions = {},
): ProcessGroup[] {
  return createMemoryEndpoints(worldSize, options).map(({ group }) => group);
}

/** The same with the endpoints, for tests that kill a rank. */
export function createMemoryEndpoints(worldSize: number, options: MemoryGroupOptions = {}) {
  if (!Number.isInteger(worldSize) || worldSize < 1) {
    throw new RangeError(`createMemoryGroup: expected a positive world size, got ${worldSize}.`);
  }
  let shared: Promise<Reducer> | undefined;
  const reducer = () => {
    shared ??= Reducer.create();
    return shared;
  };
  const members = Array.from({ length: worldSize }, (_, rank) => rank);
  const endpoints = members.map((rank) => new Endpoint({ rank, worldSize, reducer }));
  return endpoints.map((endpoint) => {
    endpoint.attach(new MemoryTransport(endpoint.rank, endpoints));
    const group = new TransportGroup({
      endpoint,
      id: 'world',
      members,
      timeoutMs: options.timeoutMs ?? DEFAULT_TIMEOUT_MS,
      onTrace: options.onTrace,
    });
    return { endpoint, group };
  });
}

class MemoryTransport implements Transport {
  readonly #rank: number;
  readonly #endpoints: readonly Endpoint[];
  #isClosed = false;

  constructor(rank: number, endpoints: readonly Endpoint[]) {
    this.#rank = rank;
    this.#endpoints = endpoints;
  }

  async send(to: number, header: MessageHeader, payload: Uint8Array): Promise<void> {
    if (!this.#isClosed) {
      const sink = this.#endpoints[to]!.onMessage(this.#rank, header);
      if (payload.byteLength > 0) {
        sink.write(payload);
      }
    }
  }

  sendControl(to: number, message: ControlMessage): void {
    this.#endpoints[to]!.onControl(this.#rank, message);
  }

  async close(how: 'drain' | 'drop'): Promise<void> {
    if (!this.#isClosed) {
      this.#isClosed = true;
      if (how === 'drain') {
        this.#eachPeer((endpoint) => endpoint.onPeerLeft(this.#rank));
      }
    }
  }

  terminate(): void {
    if (!this.#isClosed) {
      this.#isClosed = true;
      this.#eachPeer((endpoint) => endpoint.onPeerLost(this.#rank, 'terminated'));
    }
  }

  #eachPeer(visit: (endpoint: Endpoint) => void): void {
    for (const endpoint of this.#endpoints) {
      if (endpoint.rank !== this.#rank) {
        visit(endpoint);
      }
    }
  }
}
