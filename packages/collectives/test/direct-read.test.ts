// Reads go straight into the receiver's memory, by way of private fields of Node. Without those
// fields 30 to 70 % of the speed is lost and nothing else changes, so only a test can show that
// they are there. It fails on any Node whose fields differ. CHECKED_NODE_VERSIONS lists the
// versions that work.

import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { expect, it } from 'vitest';
import { CHECKED_NODE_VERSIONS, DirectRead } from '../src/sockets/direct-read.js';

async function pair(): Promise<[Socket, Socket]> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const accepted = once(server, 'connection') as Promise<[Socket]>;
  const opened = connect((server.address() as AddressInfo).port, '127.0.0.1');
  const [socket] = await accepted;
  server.close();
  return [opened, socket];
}

it('is known to work on the line of Node that runs this', () => {
  const [line] = process.versions.node.split('.');
  expect(CHECKED_NODE_VERSIONS.map((version) => version.split('.')[0])).toContain(line);
});

/** The second is the memory of a CPU device with threads. */
const MEMORIES = ['ArrayBuffer', 'SharedArrayBuffer'] as const;

it.each(MEMORIES)("fills a room in a receiver's %s, of several side by side", async (memory) => {
  const byteLength = 300_000;
  const ownBuffers = new Set<ArrayBufferLike>();
  const jobs = [1, 2, 3].map(async (seed) => {
    const [from, to] = await pair();
    const target = new Uint8Array(new globalThis[memory](byteLength));
    let received = 0;
    let filled = 0;
    const done = new Promise<void>((resolve) => {
      const took = (numBytes: number) => {
        received += numBytes;
        if (received === byteLength) {
          resolve();
        }
      };
      const direct = DirectRead.start(to, {
        // The first bytes come through the shared buffer, as the bytes of a header do.
        room: () => (received === 0 ? undefined : target.subarray(received)),
        filled: (numBytes) => {
          filled += numBytes;
          took(numBytes);
        },
        onRead: (bytes) => {
          ownBuffers.add(bytes.buffer);
          target.set(bytes, received);
          took(bytes.length);
        },
      });
      expect(direct).toBeDefined();
    });
    const sent = Uint8Array.from({ length: byteLength }, (_, i) => (i * 7 + seed) & 255);
    from.write(sent);
    await done;
    expect(Buffer.from(target).equals(Buffer.from(sent))).toBe(true);
    expect(filled).toBeGreaterThanOrEqual(byteLength / 2);
    from.destroy();
    to.destroy();
  });
  await Promise.all(jobs);
  // The process has one buffer of 64 KiB, not one for each connection.
  expect(ownBuffers.size).toBe(1);
});
