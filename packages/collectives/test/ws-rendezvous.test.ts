// These tests cover where ranks meet: a rendezvous in rank 0 or in a process of its own, ranks that
// can't listen, and restarted jobs.

import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import type { ProcessGroup } from '@shardweave/collectives';
import { type ConnectWsOptions, connectWs, serveRendezvous } from '@shardweave/collectives/ws';
import { describe, expect, it } from 'vitest';
import { beginFirst } from './support/first-rank.js';
import { failureOf, untilInTime } from './support/in-time.js';
import { rawConnection } from './support/raw-rank.js';
import { SECRET } from './support/ws-harness.js';

/**
 * Sums over all groups, so that each pair of ranks has exchanged something, and then closes them.
 */
async function expectWorking(groups: readonly ProcessGroup[]): Promise<void> {
  const sums = await Promise.all(
    groups.map(async (group) => {
      const all = new Uint8Array(group.worldSize);
      await group.allGather(Uint8Array.of(group.rank + 1), all);
      return [...all];
    }),
  );
  const expected = groups.map((_, rank) => rank + 1);
  expect(sums).toEqual(groups.map(() => expected));
  await Promise.all(groups.map((group) => group.close()));
}

/** Joins all ranks of a job whose rendezvous is at `port`. */
function joinAll(
  worldSize: number,
  port: number,
  optionsOf: (rank: number) => Partial<ConnectWsOptions> = () => ({}),
): Promise<ProcessGroup[]> {
  return Promise.all(
    Array.from({ length: worldSize }, (_, rank) =>
      connectWs({
        rank,
        worldSize,
        port,
        secret: SECRET,
        rendezvous: 'elsewhere',
        ...optionsOf(rank),
      }),
    ),
  );
}

describe('a rendezvous of its own', () => {
  it('joins ranks of which none hosts it, and listens until it is closed', async () => {
    const server = await serveRendezvous({ worldSize: 3, secret: SECRET });
    const groups = await joinAll(3, server.port);
    await server.formed;
    await expect(joinAll(3, server.port)).rejects.toThrow(/the job has met already/);
    server.close();
    await expectWorking(groups);
  });

  it('frees the place of a rank whose connection ends before all have come', async () => {
    const server = await serveRendezvous({ worldSize: 2, secret: SECRET });
    const sockets: Socket[] = [];
    const proxy = createServer((socket) => {
      const onward = connect(server.port, '127.0.0.1');
      sockets.push(socket, onward);
      socket.pipe(onward).pipe(socket);
      // The join text comes after the proof. It can be found, since our ranks mask with zeros.
      socket.on('data', (bytes) => {
        if (bytes.includes('"here"')) {
          sockets.map((each) => each.destroy());
        }
      });
    }).listen(0, '127.0.0.1');
    await once(proxy, 'listening');
    const join = (rank: number, port: number) =>
      connectWs({ rank, worldSize: 2, port, secret: SECRET, rendezvous: 'elsewhere' });
    const dying = join(1, (proxy.address() as AddressInfo).port);
    await expect(dying).rejects.toThrow(/the rendezvous is gone/);
    await expectWorking(await Promise.all([join(0, server.port), join(1, server.port)]));
    server.close();
    proxy.close();
  });

  it('gives the place of a rank that no longer answers to its replacement, and no other place', async () => {
    const server = await serveRendezvous({ worldSize: 2, secret: SECRET });
    let isStalled = false;
    let isHere: () => void = () => {};
    const here = new Promise<void>((resolve) => {
      isHere = resolve;
    });
    const sockets: Socket[] = [];
    const proxy = createServer((socket) => {
      const onward = connect(server.port, '127.0.0.1');
      sockets.push(socket, onward);
      socket.on('data', (bytes) => {
        if (!isStalled) {
          onward.write(bytes);
        }
        if (bytes.includes('"here"')) {
          isHere();
        }
      });
      onward.on('data', (bytes) => isStalled || socket.write(bytes));
    }).listen(0, '127.0.0.1');
    await once(proxy, 'listening');
    const join = (rank: number, port: number) =>
      connectWs({ rank, worldSize: 2, port, secret: SECRET, rendezvous: 'elsewhere' });
    const stopped = join(1, (proxy.address() as AddressInfo).port);
    stopped.catch(() => {});
    await here;
    // The rank answers, so it keeps its place.
    await expect(join(1, server.port)).rejects.toThrow(/rank 1 is here already/);
    isStalled = true;
    const second = join(1, server.port);
    await once(sockets[1]!, 'close'); // It didn't answer, so it was sent away.
    const groups = await Promise.all([join(0, server.port), second]);
    await expectWorking(groups);
    server.close();
    for (const socket of sockets) {
      socket.destroy();
    }
    proxy.close();
    await expect(stopped).rejects.toThrow(/the rendezvous is gone/);
  });

  it('tells all at once of a rank that is lost when all have come, but are not linked', async () => {
    const { port, joined } = await beginFirst({ worldSize: 3, joinTimeoutMs: 10_000 });
    const other = connectWs({ rank: 1, worldSize: 3, port, secret: SECRET, joinTimeoutMs: 10_000 });
    other.catch(() => {});
    const dying = await rawConnection('rendezvous', {
      port,
      secret: SECRET,
      rank: 2,
      worldSize: 3,
    });
    dying.send(JSON.stringify({ type: 'here', address: { host: null, port: 0, beats: false } }));
    await once(dying, 'message');
    dying.terminate(); // A killed process's connection ends like this.
    const reason = /rank 2 left before all were linked \(code 1006\)/;
    await expect(joined).rejects.toThrow(reason);
    await expect(other).rejects.toThrow(reason);
  });

  it('tells all that came who is missing', async () => {
    await untilInTime(500, async (joinTimeoutMs) => {
      const server = await serveRendezvous({ worldSize: 3, secret: SECRET, joinTimeoutMs });
      const only = connectWs({
        rank: 1,
        worldSize: 3,
        port: server.port,
        secret: SECRET,
        rendezvous: 'elsewhere',
      });
      only.catch(() => {}); // The promise is awaited below.
      const { message } = await failureOf(server.formed);
      const hasCome = !message.includes('no sign of ranks 0, 1, 2');
      if (hasCome) {
        expect(message).toContain('no sign of ranks 0, 2');
        await expect(only).rejects.toThrow(`no sign of ranks 0, 2 within ${joinTimeoutMs} ms`);
      }
      server.close();
      await Promise.allSettled([only]);
      return hasCome;
    });
  });
});

describe('ranks that only open links', () => {
  it.each([0, 1, 2])('rank %i of three', async (mute) => {
    const server = await serveRendezvous({ worldSize: 3, secret: SECRET });
    const groups = await joinAll(3, server.port, (rank) =>
      rank === mute ? { listen: false } : {},
    );
    server.close();
    await expectWorking(groups);
  });
});

describe('a restarted job', () => {
  it('refuses ranks of the attempt before, and is unharmed', async () => {
    const server = await serveRendezvous({ worldSize: 2, secret: SECRET, attempt: 1 });
    const join = (attempt: number) => joinAll(2, server.port, () => ({ attempt }));
    await expect(join(0)).rejects.toThrow(/this is attempt 1, not 0/);
    await expectWorking(await join(1));
    server.close();
  });
});

describe('addresses', () => {
  it('are what a rank advertises, and where a route leads', async () => {
    const dialed: { readonly target: number | 'rendezvous'; readonly port: number }[] = [];
    const server = await serveRendezvous({ worldSize: 3, secret: SECRET });
    const groups = await joinAll(3, server.port, (rank) => ({
      // No process listens at port 1. Only a route leads from there to rank 0.
      ...(rank === 0
        ? { listen: { port: 40_123, advertise: { host: '127.0.0.1', port: 1 } } }
        : {}),
      route: (target, address) => {
        dialed.push({ target, port: address.port });
        return address.port === 1 ? { host: '127.0.0.1', port: 40_123 } : address;
      },
    }));
    server.close();
    const portsOf = (wanted: number | 'rendezvous') =>
      dialed.flatMap(({ target, port }) => (target === wanted ? [port] : []));
    expect(new Set(portsOf(0))).toEqual(new Set([1]));
    expect(portsOf(0).length).toBeGreaterThanOrEqual(2);
    expect(portsOf('rendezvous')).toEqual([server.port, server.port, server.port]);
    await expectWorking(groups);
  });
});
