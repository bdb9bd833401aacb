// These tests check what goes over the connections of ws: lent payload, bytes in pieces of any
// size, no compression, and masks.

import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import type { ProcessGroup } from '@shardweave/collectives';
import { connectWs } from '@shardweave/collectives/ws';
import { describe, expect, it } from 'vitest';
import { WebSocket } from 'ws';
import { beginFirst } from './support/first-rank.js';
import { joinRaw } from './support/raw-rank.js';
import { SECRET } from './support/ws-harness.js';

const MIB = 2 ** 20;

/**
 * Returns the payload bytes that come over a raw link, without the headers, whose lengths are
 * known.
 */
function payloadOf(link: WebSocket, byteLength: number): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let length = 0;
  return new Promise((resolve) => {
    link.on('message', (data: Buffer, isBinary) => {
      if (isBinary && data.length > 100) {
        pieces.push(data);
        length += data.length;
      }
      if (length === byteLength) {
        resolve(Buffer.concat(pieces));
      }
    });
  });
}

const hashOf = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

describe('payload', () => {
  it('is lent until it has left, and not copied', async () => {
    const { port, joined } = await beginFirst();
    const link = await joinRaw({ port, secret: SECRET, rank: 1, worldSize: 2 });
    const group = await joined;
    const data = new Uint8Array(64 * MIB);
    for (let i = 0; i < data.length; i += 4096) {
      data[i] = i / 4096;
    }
    link.pause();
    const before = process.memoryUsage().arrayBuffers;
    let hasLeft = false;
    const sent = group.send(data, { to: 1 }).then(() => {
      hasLeft = true;
    });
    await new Promise((resolve) => setTimeout(resolve, 300));
    // The part beyond the system's buffers still lies in the caller's memory: nothing holds a
    // second copy.
    expect(hasLeft).toBe(false);
    expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(8 * MIB);
    // So the peer gets what is written there now, which no caller may do.
    data.fill(7, 60 * MIB);
    const expected = hashOf(data);
    const received = payloadOf(link, data.length);
    link.resume();
    await sent;
    data.fill(9); // From here on the memory is the caller's.
    expect(hashOf(await received)).toBe(expected);
    link.terminate();
  });

  it("is its sender's again when the receiver leaves without having read it", async () => {
    const { port, joined } = await beginFirst({ timeoutMs: 20_000 });
    const link = await joinRaw({ port, secret: SECRET, rank: 1, worldSize: 2 });
    const group = await joined;
    link.pause();
    const sent = Promise.all([
      group.send(new Uint8Array(64 * MIB), { to: 1 }),
      group.send(new Uint8Array(64 * MIB), { to: 1 }), // None of this has been sent.
    ]);
    link.close(4000);
    await sent;
    await expect(group.send(new Uint8Array(1), { to: 1 })).resolves.toBeUndefined();
    await group.close();
    link.terminate();
  });

  it('arrives whatever the pieces are in which TCP delivers it', async () => {
    const { port, joined } = await beginFirst();
    const sockets: Socket[] = [];
    const proxy = createServer({ noDelay: true }, (socket) => {
      const onward = connect({ port, host: '127.0.0.1', noDelay: true });
      sockets.push(socket, onward);
      inPieces(socket, onward);
      inPieces(onward, socket);
    }).listen(0, '127.0.0.1');
    await once(proxy, 'listening');
    const via = { host: '127.0.0.1', port: (proxy.address() as AddressInfo).port };
    const second = await connectWs({
      rank: 1,
      worldSize: 2,
      port,
      secret: SECRET,
      route: () => via,
    });
    const groups = [await joined, second];
    await Promise.all(groups.map(exchange));
    await Promise.all(groups.map((group) => group.close()));
    for (const socket of sockets) {
      socket.destroy();
    }
    proxy.close();
  });
});

/** Exchanges sizes on both sides of each limit of the protocol, such as 125 and 126 bytes. */
async function exchange(group: ProcessGroup): Promise<void> {
  for (const length of [0, 1, 125, 126, 16_384, 16_385, 65_536, 65_537, 600_000]) {
    const own = Uint8Array.from({ length }, (_, i) => (i * 31 + group.rank) & 255);
    const all = new Uint8Array(2 * length);
    await group.allGather(own, all);
    for (let rank = 0; rank < 2; rank++) {
      const expected = Uint8Array.from({ length }, (_, i) => (i * 31 + rank) & 255);
      expect(hashOf(all.subarray(rank * length, (rank + 1) * length))).toBe(hashOf(expected));
    }
  }
}

/** Passes on the first bytes one by one, and then pieces of odd sizes. */
function inPieces(from: Socket, to: Socket): void {
  let count = 0;
  from.on('error', () => to.destroy());
  from.on('close', () => to.destroy());
  from.on('data', (data: Buffer) => {
    for (let at = 0; at < data.length; ) {
      const length = count < 1500 ? 1 : 1 + ((count * 7919) % 60_001);
      to.write(data.subarray(at, at + length));
      at += length;
      count += 1;
    }
  });
}

describe('connections', () => {
  it('are never compressed, whatever a client offers', async () => {
    const { port, joined } = await beginFirst({ joinTimeoutMs: 1000 });
    const client = new WebSocket(`ws://127.0.0.1:${port}`, { perMessageDeflate: true });
    await once(client, 'open');
    expect(client.extensions).toBe('');
    client.terminate();
    await expect(joined).rejects.toMatchObject({ code: 'JOIN' });
  });

  it('connections between our own processes have masks of zeros, and ask for no extension', async () => {
    const { port, joined } = await beginFirst();
    const said: Buffer[][] = [];
    const proxy = createServer((socket) => {
      const onward = connect(port, '127.0.0.1');
      const heard: Buffer[] = [];
      said.push(heard);
      socket.on('data', (data: Buffer) => heard.push(data));
      socket.on('error', () => {});
      onward.on('error', () => {});
      socket.pipe(onward).pipe(socket);
    }).listen(0, '127.0.0.1');
    await once(proxy, 'listening');
    const via = { host: '127.0.0.1', port: (proxy.address() as AddressInfo).port };
    const second = connectWs({ rank: 1, worldSize: 2, port, secret: SECRET, route: () => via });
    const groups = [await joined, await second];
    await Promise.all(groups.map((group) => group.barrier()));
    await Promise.all(groups.map((group) => group.close()));
    proxy.close();
    expect(said).toHaveLength(3); // These are rendezvous, link and heartbeat.
    for (const heard of said) {
      const bytes = Buffer.concat(heard);
      const end = bytes.indexOf('\r\n\r\n') + 4;
      expect(bytes.subarray(0, end).toString()).not.toMatch(/extensions/i);
      // The hello has 104 bytes, is binary and is masked with zeros, so that its magic can be read.
      expect([...bytes.subarray(end, end + 6)]).toEqual([0x82, 0x80 | 104, 0, 0, 0, 0]);
      expect(bytes.subarray(end + 6, end + 10).toString()).toBe('SWC5');
    }
  });

  it.each([
    ['of a process', undefined],
    ['of a page', 'https://ours.example'],
  ])('connections with real masks are understood: %s', async (_, origin) => {
    const { port, joined } = await beginFirst({ allowedOrigins: ['https://ours.example'] });
    const raw = { port, secret: SECRET, rank: 1, worldSize: 2, ...(origin && { origin }) };
    const link = await joinRaw(raw);
    const group = await joined;
    // This is a send of 200,000 bytes in two messages, as docs/wire-format.md has it.
    const payload = Buffer.from(Uint8Array.from({ length: 200_000 }, (_, i) => (i * 17) & 255));
    const header = Buffer.alloc(41);
    header.set([2, 5, 255, 5]);
    header.writeDoubleLE(payload.length, 8);
    header.writeDoubleLE(payload.length, 16);
    header.writeInt32LE(-1, 24);
    header[34] = 5;
    header.write('world', 36);
    link.send(header);
    link.send(payload.subarray(0, 130_001));
    link.send(payload.subarray(130_001));
    const received = new Uint8Array(payload.length);
    await group.recv(received, { from: 1 });
    expect(hashOf(received)).toBe(hashOf(payload));
    await group.close();
    link.terminate();
  });
});
