// A job may be unable to listen, or find another program's server. Its errors are typed, name the
// address, the reason and what to do, and never crash the process.

import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { connectWs, serveRendezvous } from '@shardweave/collectives/ws';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { WebSocket } from 'ws';
import { connectWs as connectWsPage } from '../src/ws-page.js';
import { beginFirst } from './support/first-rank.js';
import { failureOf, untilInTime } from './support/in-time.js';
import { SECRET } from './support/ws-harness.js';

const opened: Server[] = [];

/**
 * Starts another program's server, which accepts connections and says nothing. Returns its port.
 */
async function silentServer(onSocket = (_: Socket) => {}): Promise<number> {
  const server = createServer((socket) => onSocket(socket.on('error', () => {})));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  opened.push(server);
  return (server.address() as { port: number }).port;
}

afterEach(() => {
  vi.unstubAllGlobals();
  for (const server of opened.splice(0)) {
    server.close();
  }
});

const listeners: Record<string, (address: string, port: number) => Promise<unknown>> = {
  connectWs: (address, port) => connectWs({ rank: 0, worldSize: 2, address, port, secret: SECRET }),
  serveRendezvous: (address, port) =>
    serveRendezvous({ worldSize: 2, address, port, secret: SECRET }),
};

describe.each(Object.keys(listeners))('%s', (name) => {
  const listen = listeners[name]!;

  it('rejects at once where the port is taken', async () => {
    const port = await silentServer();
    await expect(listen('127.0.0.1', port)).rejects.toMatchObject({
      code: 'JOIN',
      message: expect.stringMatching(
        new RegExp(`can't listen on 127.0.0.1:${port}: .*listens there already.*0 for a free one`),
      ),
    });
  });

  it("rejects where the address is not this machine's", async () => {
    await expect(listen('203.0.113.7', 5005)).rejects.toMatchObject({
      code: 'JOIN',
      message: expect.stringMatching(/can't listen on 203.0.113.7:5005: no interface/),
    });
  });

  it('rejects where nobody knows the host', async () => {
    await expect(listen('no-such-host.invalid', 5005)).rejects.toMatchObject({
      code: 'JOIN',
      message: expect.stringMatching(/no-such-host.invalid/),
    });
  });
});

describe("another program's silent server", () => {
  it('is named by connectWs, with the hint', async () => {
    const port = await silentServer();
    const joined = connectWs({ rank: 1, worldSize: 2, port, secret: SECRET, joinTimeoutMs: 300 });
    await expect(joined).rejects.toThrow(
      new RegExp(`ws://127.0.0.1:${port}.*something else may listen there`),
    );
  });
});

describe('a page that finds no rendezvous', () => {
  it('knocks ever more slowly and says who can host one', async () => {
    let numDials = 0;
    const port = await silentServer((socket) => {
      numDials++;
      socket.destroy();
    });
    vi.stubGlobal('WebSocket', WebSocket);
    await untilInTime(1200, async (joinTimeoutMs) => {
      numDials = 0;
      const joined = connectWsPage({ rank: 1, worldSize: 2, port, secret: SECRET, joinTimeoutMs });
      await expect(joined).rejects.toThrow(/no rendezvous .*A page cannot host it: start rank 0/);
      // The dials come after 0, 50, 150, 350, 750 and 1200 ms.
      return numDials > 1;
    });
    expect(numDials).toBeLessThan(9);
  });
});

describe('a rank that is refused', () => {
  it('is reported by the rank that waited for it', async () => {
    await untilInTime(500, async (joinTimeoutMs) => {
      const { port, joined } = await beginFirst({ joinTimeoutMs });
      const place = { rank: 1, worldSize: 2, port, secret: 'a guess of some length' };
      const other = failureOf(connectWs({ ...place, joinTimeoutMs }));
      const { message } = await failureOf(joined);
      if (!message.includes('; refused')) {
        await other;
        return false;
      }
      expect((await other).message).toMatch(/wrong secret/);
      expect(message).toMatch(
        new RegExp(
          `no sign of ranks 1 within ${joinTimeoutMs} ms \\(it listened on 127.0.0.1:${port}; refused 127.0.0.1:\\d+: wrong secret`,
        ),
      );
      return true;
    });
  });
});

describe("options that can't be right", () => {
  const good = { rank: 0, worldSize: 2, port: 0, secret: SECRET, joinTimeoutMs: 100 };

  it.each([
    [{ silenceMs: 1 }, /silenceMs/],
    [{ heartbeat: 'no' as 'link' }, /heartbeat/],
    [{ rendezvous: 'rank 9' as 'rank 0' }, /rendezvous/],
  ])('are refused by connectWs: %o', async (options, words) => {
    await expect(connectWs({ ...good, ...options })).rejects.toMatchObject({
      code: 'JOIN',
      message: expect.stringMatching(new RegExp(`expected.*${words.source}`)),
    });
  });
});
