// The messages of these ranks in one process travel like those of sockets: they are copied at once
// and arrive in chunks, in later turns of the event loop, whether or not their receiver has called.

import {
  createWorldGroup,
  Endpoint,
  type GroupOptions,
  type ProcessGroup,
  type Transport,
} from '@shardweave/collectives';

const CHUNK_BYTES = 256 * 1024;

export interface EagerRank {
  readonly endpoint: Endpoint;
  readonly group: ProcessGroup;
}

export function createEagerRanks(worldSize: number, options: GroupOptions = {}): EagerRank[] {
  const endpoints = Array.from(
    { length: worldSize },
    (_, rank) => new Endpoint(rank, worldSize, options),
  );
  return endpoints.map((endpoint) => {
    endpoint.attach(eagerTransport(endpoint.rank, endpoints));
    return { endpoint, group: createWorldGroup(endpoint, options) };
  });
}

function eagerTransport(rank: number, endpoints: readonly Endpoint[]): Transport {
  const lines = endpoints.map(() => Promise.resolve());
  let isClosed = false;
  return {
    send(to, header, payload) {
      const sent = lines[to]!.then(async () => {
        await turn();
        const sink = isClosed ? undefined : endpoints[to]!.onMessage(rank, header);
        for (let at = 0; at < payload.byteLength && !isClosed; at += CHUNK_BYTES) {
          await turn();
          sink?.write(payload.subarray(at, at + CHUNK_BYTES));
        }
      });
      lines[to] = sent;
      return sent;
    },
    sendControl: (to, message) => endpoints[to]!.onControl(rank, message),
    close: async () => {
      isClosed = true;
    },
    terminate: () => {
      isClosed = true;
    },
  };
}

function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
