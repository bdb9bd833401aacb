// Ranks that can't listen (here they are told not to) exchange through the process of the
// rendezvous.

import type { ProcessGroup } from '@shardweave/collectives';
import { connectWsEndpoint, serveRendezvous } from '@shardweave/collectives/ws';
import { afterEach, describe, expect, it, vi } from 'vitest';
import type { WireHandler, WireSocket } from '../src/sockets/wire-socket.js';
import { Relay } from '../src/transports/ws/join/relay.js';

const SECRET = 'of the relay tests';

/** Joins three ranks of which none listens, so that every link is relayed. */
async function relayedJob() {
  const worldSize = 3;
  const rendezvous = await serveRendezvous({ worldSize, secret: SECRET });
  const { port } = rendezvous;
  const ranks = await Promise.all(
    [0, 1, 2].map((rank) =>
      connectWsEndpoint({
        rank,
        worldSize,
        port,
        secret: SECRET,
        rendezvous: 'elsewhere',
        listen: false,
      }),
    ),
  );
  rendezvous.close(); // The links stay.
  return ranks;
}

const closeAll = (groups: readonly ProcessGroup[]) =>
  Promise.all(groups.map((group) => group.close()));

describe('a relay', () => {
  it('passes on every byte, more than it holds at a time', async () => {
    const groups = (await relayedJob()).map(({ group }) => group);
    const byteLength = 12 * 2 ** 20 + 5; // This is three times what is held for a slow reader.
    const inputs = groups.map((_, rank) => Buffer.alloc(byteLength, `bytes of rank ${rank}, `));
    await Promise.all(
      groups.map(async (group, rank) => {
        const output = Buffer.alloc(3 * byteLength);
        await group.allGather(inputs[rank]!, output);
        expect(output.equals(Buffer.concat(inputs))).toBe(true);
      }),
    );
    await closeAll(groups);
  });

  it('lets a rank leave in peace, and says so of one that is gone', async () => {
    const [first, second, third] = await relayedJob();
    await third!.group.close();
    const buffer = new Uint8Array(4);
    const received = second!.group.recv(buffer, { from: 0 });
    await first!.group.send(Uint8Array.of(1, 2, 3, 4), { to: 1 });
    await received;
    expect([...buffer]).toEqual([1, 2, 3, 4]);
    const waiting = second!.group.recv(buffer, { from: 0 });
    first!.endpoint.terminate();
    await expect(waiting).rejects.toMatchObject({ code: 'PEER_LOST', originRank: 0 });
  });
});

describe('a slow reader', () => {
  it('holds up its sender at 4 MiB, and lets it go on at half of that', () => {
    const relay = new Relay();
    const [sender, reader] = [new FakeSocket(), new FakeSocket()];
    const run = new Uint8Array(16);
    const common = { role: 'relay', worldSize: 2, attempt: 0, run } as const;
    relay.onPeer({ ...common, rank: 0, target: 1 }, sender);
    relay.onPeer({ ...common, rank: 1, target: 0 }, reader);
    // No reader was there at first.
    expect(sender.reads.splice(0)).toEqual([false, true]);
    const mebibyte = new Uint8Array(2 ** 20);
    for (let i = 0; i < 4; i++) {
      sender.handler!.onBinary(mebibyte);
    }
    expect(sender.reads).toEqual([]);
    sender.handler!.onBinary(mebibyte);
    expect(sender.reads).toEqual([false]);
    for (const written of reader.unwritten.splice(0, 3)) {
      written();
    }
    expect(sender.reads.at(-1)).toBe(true);
    expect(relay.refusalOf({ ...common, rank: 0, target: 1 })).toMatch(/linked .* already/);
  });
});

describe('text without end', () => {
  it('ends both connections at 8 MiB that the reader has not taken', () => {
    const relay = new Relay();
    const [sender, reader] = [new FakeSocket(), new FakeSocket()];
    const common = { role: 'relay', worldSize: 2, attempt: 0, run: new Uint8Array(16) } as const;
    relay.onPeer({ ...common, rank: 0, target: 1 }, sender);
    relay.onPeer({ ...common, rank: 1, target: 0 }, reader);
    const mebibyte = ' '.repeat(2 ** 20);
    for (let i = 0; i < 8; i++) {
      sender.handler!.onText(mebibyte);
    }
    expect([sender.hasEnded, reader.hasEnded]).toEqual([false, false]);
    sender.handler!.onText(mebibyte);
    expect([sender.hasEnded, reader.hasEnded]).toEqual([true, true]);
  });
});

describe('what is passed on', () => {
  it('is a copy: bytes are lent for the call alone', () => {
    const relay = new Relay();
    const [sender, reader] = [new FakeSocket(), new FakeSocket()];
    const common = { role: 'relay', worldSize: 2, attempt: 0, run: new Uint8Array(16) } as const;
    relay.onPeer({ ...common, rank: 0, target: 1 }, sender);
    relay.onPeer({ ...common, rank: 1, target: 0 }, reader);
    const lent = Uint8Array.of(1, 2, 3);
    sender.handler!.onBinary(lent);
    lent.fill(9); // The next read goes there before the reader has taken the first.
    expect(reader.sent).toEqual([Uint8Array.of(1, 2, 3)]);
  });
});

describe('a relay of heartbeats', () => {
  afterEach(() => {
    vi.useRealTimers();
  });

  it('says that it lives to both ends until one has gone, and not where data passes', () => {
    vi.useFakeTimers();
    const relay = new Relay();
    const common = { worldSize: 2, attempt: 0, run: new Uint8Array(16) } as const;
    const sockets = (['heartbeat relay', 'relay'] as const).map((role) =>
      [0, 1].map((rank) => {
        const socket = new FakeSocket();
        relay.onPeer({ ...common, role, rank, target: 1 - rank }, socket);
        return socket;
      }),
    );
    const numSent = () => sockets.map((pair) => pair.map(({ sent }) => sent.length));
    const before = numSent();
    vi.advanceTimersByTime(1000);
    expect([before, numSent()]).toEqual([
      [
        [1, 1],
        [0, 0],
      ],
      [
        [5, 5],
        [0, 0],
      ],
    ]);
    expect(sockets[0]![0]!.sent[0]).toEqual(Uint8Array.of(1)); // Beats are empty.
    sockets[0]![0]!.handler!.onClose(1006, '');
    vi.advanceTimersByTime(1000);
    expect(numSent()[0]).toEqual([5, 5]);
    expect(vi.getTimerCount()).toBe(0);
  });
});

/** This socket writes when the test says so. */
class FakeSocket implements WireSocket {
  handler: WireHandler | undefined;
  readonly reads: boolean[] = [];
  readonly sent: Uint8Array[] = [];
  readonly unwritten: (() => void)[] = [];
  unsentBytes = 0;
  hasEnded = false;

  setHandler(handler: WireHandler | undefined): void {
    this.handler = handler;
  }

  setReads(reads: boolean): void {
    this.reads.push(reads);
  }

  send(bytes: Uint8Array, written: () => void): void {
    this.sent.push(bytes);
    this.unwritten.push(written);
  }

  trust(): void {}
  sendText(text: string): void {
    this.unsentBytes += text.length;
  }
  batch(body: () => void): void {
    body();
  }
  close(): void {
    this.hasEnded = true;
  }
  terminate(): void {
    this.hasEnded = true;
  }
}
