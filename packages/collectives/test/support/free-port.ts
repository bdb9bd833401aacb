// Ports for ranks that are told one beforehand, as launchers tell it.

import { once } from 'node:events';
import { createServer, type Server } from 'node:net';

/**
 * A free port whose neighbor is free, too (a group's and its store's), below those that the system
 * gives to clients, so that no connection takes it meanwhile.
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
