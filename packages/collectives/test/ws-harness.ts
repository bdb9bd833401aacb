// The ws transport for the conformance suite: all ranks in this process, over real sockets.

import type { TransportHarness } from '@shardweave/collectives/testing';
import { connectWsEndpoint } from '@shardweave/collectives/ws';

export const SECRET = 'made by the launcher';

export const wsHarness: TransportHarness = {
  name: 'ws',
  worldSizes: [1, 2, 3, 4, 8],
  create: async (worldSize, options = {}) => {
    let tellPort: (port: number) => void = () => {};
    const listening = new Promise<number>((resolve) => {
      tellPort = resolve;
    });
    const connect = (rank: number, port: number) =>
      connectWsEndpoint({
        ...options,
        rank,
        worldSize,
        port,
        secret: SECRET,
        heartbeat: 'link', // a worker a rank would take most of the suite's time
        onListen: tellPort,
      });
    const first = connect(0, 0);
    const port = worldSize === 1 ? 1 : await listening;
    const others = Array.from({ length: worldSize - 1 }, (_, i) => connect(i + 1, port));
    const joined = await Promise.all([first, ...others]);
    return joined.map(({ group, endpoint }) => ({ group, kill: () => endpoint.terminate() }));
  },
};
