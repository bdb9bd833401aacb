// Ranks that are told their port beforehand, as launchers do, get a free one here.

import { once } from 'node:events';
import { createServer, type Server } from 'node:net';

/**
 * Returns a free port whose next one is free too (a group and its store take both). Both lie below
 * the range from which the system gives ports to clients, so that no connection takes one
 * meanwhile.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = 10_000 + 2 * Math.floor(Math.random() * 10_000);
    const servers = await Promise.all([port, port + 1].map(listen));
    await Promise.all(servers.map((server) => server && once(server.close(), 'close')));
    if (servers.every((server) => server !== undefined)) {
      return port;
    }
  }
}

function listen(port: number): Promise<Server | undefined> {
  return new Promise((resolve) => {
    const server = createServer();
    server.once('error', () => resolve(undefined));
    server.listen(port, '127.0.0.1', () => resolve(server));
  });
}
