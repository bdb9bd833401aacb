// This runs the ws transport in the conformance suite: all ranks are in this process, over real
// sockets.

import type { TransportHarness } from '@shardweave/collectives/testing';
import { ProxiedLinks } from '@shardweave/collectives/testing-node';
import { type ConnectWsOptions, connectWsEndpoint } from '@shardweave/collectives/ws';

export const SECRET = 'made by the launcher';

export const wsHarness: TransportHarness = {
  name: 'ws',
  worldSizes: [1, 2, 3, 4, 8],
  create: async (worldSize, { isStoppable, ...options } = {}) => {
    // A stopped rank shows to its peers as stalled connections, which the proxies make.
    const links = isStoppable ? new ProxiedLinks() : undefined;
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
        heartbeat: 'link', // Workers for each rank would take most of the suite's time.
        onListen: tellPort,
        ...(links && stoppable(links, rank)),
      });
    const first = connect(0, 0);
    const port = worldSize === 1 ? 1 : await listening;
    const others = Array.from({ length: worldSize - 1 }, (_, i) => connect(i + 1, port));
    const joined = await Promise.all([first, ...others]);
    const allOver = Promise.all(joined.map(({ endpoint }) => endpoint.failed));
    void allOver.then(() => links?.close());
    return joined.map(({ group, endpoint }, rank) => ({
      group,
      kill: () => endpoint.terminate(),
      stop: async () => {
        for (const proxy of (await links?.of(rank)) ?? []) {
          proxy.stall();
        }
      },
    }));
  },
};

function stoppable(links: ProxiedLinks, rank: number): Partial<ConnectWsOptions> {
  const route: ConnectWsOptions['route'] = (target, address) => links.route(rank, target, address);
  return { route, heartbeatMs: 100, silenceMs: 500, linkSilenceMs: 500 };
}
