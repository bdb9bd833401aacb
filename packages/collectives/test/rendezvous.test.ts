// The rendezvous is tested without sockets: who keeps a place while a job forms, and when the
// others are told.

import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { type Member, Rendezvous } from '../src/transports/ws/join/rendezvous.js';

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
});

/**
 * Returns a member that keeps what it is told. `answers` says whether it still answers over its
 * connection.
 */
function member(answers?: () => Promise<boolean>) {
  const told: unknown[] = [];
  const dismissed: string[] = [];
  const one: Member = {
    send: (message) => told.push(message),
    ...(answers && { answers, dismiss: (reason: string) => dismissed.push(reason) }),
  };
  return { one, told, dismissed };
}

function rendezvous() {
  const created = new Rendezvous({ worldSize: 3, joinTimeoutMs: 300_000 });
  const host = member();
  created.join(0, host.one);
  return { created, host };
}

describe('a rank that left while joining', () => {
  it('is told to the others after 30 s, unless another process has come', async () => {
    const { created, host } = rendezvous();
    for (const rank of [1, 2]) {
      expect(await created.claim(rank, member(async () => true).one)).toBeUndefined();
    }
    created.onLeft(1, 'gone');
    created.onLeft(2, 'gone');
    expect(await created.claim(1, member(async () => true).one)).toBeUndefined();
    await vi.advanceTimersByTimeAsync(29_999);
    expect(host.told).toEqual([]);
    await vi.advanceTimersByTimeAsync(2); // One more is for the turn of the event loop.
    expect(host.told).toEqual([
      {
        type: 'failed',
        origin: 2,
        reason: 'rank 2 left (gone), and no other came within 30000 ms',
      },
    ]);
    await expect(created.formed).rejects.toThrow(/rank 2 left/);
  });
});

describe('a place', () => {
  it('is for one of two that claim it in the same turn', async () => {
    const { created } = rendezvous();
    const claims = [1, 2].map(() => created.claim(1, member(async () => true).one));
    expect(await Promise.all(claims)).toEqual([undefined, 'rank 1 is here already']);
    created.close();
  });

  it('is for one of two that claim it of a member that does not answer', async () => {
    const { created } = rendezvous();
    const silent = member(async () => false);
    await created.claim(1, silent.one);
    const claims = [1, 2].map(() => created.claim(1, member(async () => true).one));
    expect(await Promise.all(claims)).toEqual([undefined, 'rank 1 is here already']);
    expect(silent.dismissed).toHaveLength(1);
    created.close();
  });
});

describe('what ranks tell', () => {
  const at = (port: number) => ({ host: null, port, beats: false });

  async function allCame() {
    const { created, host } = rendezvous();
    for (const rank of [1, 2]) {
      await created.claim(rank, member(async () => true).one);
    }
    return { created, host };
  }

  it("a rank's report of its address counts once", async () => {
    const { created, host } = await allCame();
    created.onHere(1, at(11));
    created.onHere(1, at(66));
    created.onHere(0, at(10));
    created.onHere(2, at(12));
    created.onHere(2, at(66));
    expect(host.told).toEqual([{ type: 'table', addresses: [at(10), at(11), at(12)] }]);
    created.close();
  });

  it("a rank's report of its links counts when the table is out", async () => {
    const { created, host } = await allCame();
    created.onLinked(2);
    for (const rank of [0, 1, 2]) {
      created.onHere(rank, at(10 + rank));
    }
    created.onLinked(0);
    created.onLinked(1);
    expect(host.told).toHaveLength(1); // It is the table.
    created.onLinked(2);
    expect(host.told.at(-1)).toEqual({ type: 'formed' });
    await created.formed;
  });
});
