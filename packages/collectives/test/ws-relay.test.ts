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

/** Stands for a job that goes on forming. */
const FORMING = new Promise<void>(() => {});

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
    const relay = new Relay(FORMING);
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
  });
});

describe('while the job forms', () => {
  const common = { role: 'relay', worldSize: 3, attempt: 0, run: new Uint8Array(16) } as const;
  const hello = (rank: number, target: number) => ({ ...common, rank, target });
  const heard = ({ sent }: FakeSocket) => sent.map(([byte]) => byte);

  it('a rank comes anew, and the other end of its link notices nothing', () => {
    const relay = new Relay(FORMING);
    const [given, replaced, last, other] = Array.from({ length: 4 }, () => new FakeSocket());
    relay.onPeer(hello(1, 2), other!);
    relay.onPeer(hello(2, 1), given!);
    given!.handler!.onClose(1006, '');
    expect(other!.reads.at(-1)).toBe(false); // It waits again.
    relay.onPeer(hello(2, 1), replaced!);
    relay.onPeer(hello(2, 1), last!);
    other!.handler!.onBinary(Uint8Array.of(1));
    last!.handler!.onBinary(Uint8Array.of(2));
    expect([given, replaced, last, other].map((socket) => heard(socket!))).toEqual([
      [],
      [],
      [1],
      [2],
    ]);
    expect([replaced, last, other].map((socket) => socket!.hasEnded)).toEqual([true, false, false]);
  });

  it('nobody is taken for a rank outside the world, or for the rank itself', () => {
    const relay = new Relay(FORMING);
    expect([3, 1, 2].map((target) => relay.refusalOf(hello(1, target)))).toEqual([
      'no relay to rank 3',
      'no relay to rank 1',
      undefined,
    ]);
  });

  it('ends that wait are dropped when it has formed, and nobody else is let in', async () => {
    const relay = new Relay(Promise.resolve());
    const [lonely, first, second] = Array.from({ length: 3 }, () => new FakeSocket());
    relay.onPeer(hello(1, 2), lonely!);
    relay.onPeer(hello(0, 2), first!);
    relay.onPeer(hello(2, 0), second!);
    await Promise.resolve();
    expect([lonely, first, second].map((socket) => socket!.hasEnded)).toEqual([true, false, false]);
    expect(relay.refusalOf(hello(2, 1))).toBe('the job has formed');
    first!.handler!.onClose(4000, 'bye');
    expect(second!.hasEnded).toBe(true);
  });
});

describe('text without end', () => {
  it('ends both connections at 8 MiB that the reader has not taken', () => {
    const relay = new Relay(FORMING);
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
    const relay = new Relay(FORMING);
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
    const relay = new Relay(FORMING);
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
