// Ranks that are told their port beforehand, as launchers do, get a free one here.

import { once } from 'node:events';
import { createServer, type Server } from 'node:net';

/**
 * Returns a free port below the range from which the system gives ports to clients, so that no
 * connection takes it meanwhile.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = 10_000 + Math.floor(Math.random() * 20_000);
    const server = await listen(port);
    if (server !== undefined) {
      await once(server.close(), 'close');
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
