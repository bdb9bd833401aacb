// These tests check the simulated network: what its proxies do to connections, and that ranks
// behind them get the same bits, only later.

import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { createMemoryGroup, type ProcessGroup } from '@shardweave/collectives';
import { transcriptHash } from '@shardweave/collectives/testing';
import { type LinkShape, ProxiedLinks, TcpProxy } from '@shardweave/collectives/testing-node';
import { type ConnectWsOptions, connectWs } from '@shardweave/collectives/ws';
import { afterEach, describe, expect, it } from 'vitest';
import { beginFirst } from './support/first-rank.js';
import { SECRET } from './support/ws-harness.js';

const servers: Server[] = [];

afterEach(() => {
  for (const server of servers.splice(0)) {
    server.close();
  }
});

/** Starts a server that sends everything back. */
async function echo(): Promise<{ host: string; port: number; sockets: Socket[] }> {
  const sockets: Socket[] = [];
  const server = createServer((socket) => {
    sockets.push(socket);
    socket.on('error', () => {});
    socket.pipe(socket);
  });
  servers.push(server);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { host: '127.0.0.1', port: (server.address() as AddressInfo).port, sockets };
}

async function dial({ host, port }: { host: string; port: number }): Promise<Socket> {
  const socket = connect({ host, port });
  socket.setNoDelay(true);
  await once(socket, 'connect');
  return socket;
}

/** Sends bytes and waits until as many have come back. Resolves with milliseconds. */
async function roundTrip(socket: Socket, bytes: Buffer): Promise<number> {
  const start = performance.now();
  const received: Buffer[] = [];
  let length = 0;
  const done = new Promise<void>((resolve) => {
    socket.on('data', (chunk) => {
      received.push(chunk);
      length += chunk.length;
      if (length >= bytes.length) {
        resolve();
      }
    });
  });
  socket.write(bytes);
  await done;
  expect(Buffer.concat(received).equals(bytes)).toBe(true);
  socket.removeAllListeners('data');
  return performance.now() - start;
}

describe('TcpProxy', () => {
  it('delays each direction, keeps order under jitter, and passes an end on', async () => {
    const target = await echo();
    await using proxy = await TcpProxy.listen({ target, delayMs: 40, jitterMs: 30 });
    const socket = await dial(proxy.address);
    const pattern = Buffer.from(Array.from({ length: 300_000 }, (_, i) => (i * 31) % 251));
    expect(await roundTrip(socket, pattern)).toBeGreaterThanOrEqual(79);
    expect(proxy.bytesPassed).toBe(600_000);
    socket.end();
    await once(socket, 'close'); // The echo's end has arrived, so both directions closed in order.
    expect(socket.errored).toBeNull();
  });

  it('limits the rate', async () => {
    const target = await echo();
    await using proxy = await TcpProxy.listen({ target, bytesPerSecond: 4_000_000 });
    const socket = await dial(proxy.address);
    expect(await roundTrip(socket, Buffer.alloc(400_000, 7))).toBeGreaterThanOrEqual(99);
    proxy.reshape({ bytesPerSecond: 1_000_000 });
    expect(await roundTrip(socket, Buffer.alloc(400_000, 8))).toBeGreaterThanOrEqual(399);
    socket.destroy();
  });

  it('stalls without a word, goes on, and cuts with a reset', async () => {
    const target = await echo();
    await using proxy = await TcpProxy.listen({ target });
    const socket = await dial(proxy.address);
    await roundTrip(socket, Buffer.from('before'));
    proxy.stall();
    let isBack = false;
    const trip = roundTrip(socket, Buffer.from('held up')).then(() => {
      isBack = true;
    });
    await sleep(150);
    expect([isBack, socket.destroyed, target.sockets[0]!.destroyed]).toEqual([false, false, false]);
    proxy.resume();
    await trip;
    const reset = once(socket, 'error');
    proxy.cut();
    expect(String(await reset)).toMatch(/ECONNRESET/);
    expect(proxy.numConnections).toBe(0);
  });
});

/** Runs `body` on ranks of this process whose links all go through proxies. */
async function overProxies<T>(
  worldSize: number,
  shape: LinkShape,
  body: (group: ProcessGroup) => Promise<T>,
): Promise<T[]> {
  await using links = new ProxiedLinks(shape);
  const routeOf =
    (rank: number): NonNullable<ConnectWsOptions['route']> =>
    (target, address) =>
      links.route(rank, target, address);
  const { port, joined } = await beginFirst({ worldSize, route: routeOf(0) });
  const others = Array.from({ length: worldSize - 1 }, (_, i) =>
    connectWs({ rank: i + 1, worldSize, port, secret: SECRET, route: routeOf(i + 1) }),
  );
  const groups = await Promise.all([joined, ...others]);
  const results = await Promise.all(groups.map(body));
  await Promise.all(groups.map((group) => group.close()));
  const passed = (await links.all()).map((proxy) => proxy.bytesPassed);
  expect(passed.length).toBeGreaterThanOrEqual((worldSize * (worldSize - 1)) / 2);
  expect(Math.min(...passed)).toBeGreaterThan(0);
  return results;
}

describe('ranks behind proxies', () => {
  const worldSize = 3;

  it('get the bits of any other transport, late', async () => {
    const expected = await Promise.all(createMemoryGroup(worldSize).map(transcriptHash));
    const shapes: readonly LinkShape[] = [
      { delayMs: 3, jitterMs: 5 },
      { bytesPerSecond: 20_000_000, jitterMs: 1 },
      ...(process.env.SHARDWEAVE_LONG === '1' ? [{}] : []), // as the transports' own tests have it
    ];
    const times: number[] = [];
    for (const shape of shapes) {
      const start = performance.now();
      expect(await overProxies(worldSize, shape, transcriptHash)).toEqual(expected);
      times.push(Math.round(performance.now() - start));
    }
    process.stdout.write(
      `27 all-reduces of 3 ranks, joining included, with 3 to 8 ms delay ${times[0]} ms, ` +
        `at 20 MB/s ${times[1]} ms; equal hashes\n`,
    );
    // The program is a chain of 27 calls, and each takes at least one way through a proxy.
    expect(times[0]).toBeGreaterThan(27 * 3);
  });

  it('wait for each other as long as the links are', async () => {
    const trips = await overProxies(worldSize, { delayMs: 25 }, async (group) => {
      const start = performance.now();
      for (let i = 0; i < 4; i++) {
        await group.barrier();
      }
      return performance.now() - start;
    });
    // Ranks that are out of step may find the first barrier half done.
    expect(Math.min(...trips)).toBeGreaterThanOrEqual(3 * 25 - 1);
  });
});
