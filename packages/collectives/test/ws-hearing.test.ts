// Ranks that can't listen, as pages: they miss a stopped peer as soon as any other rank does, and wait
// for one that computes.

import { once } from 'node:events';
import { connect } from 'node:net';
import { serveRendezvous } from '@shardweave/collectives/ws';
import { afterAll, describe, expect, it } from 'vitest';
import { RankProcesses } from './support/fault-job.js';
import type { Ended } from './support/fault-messages.js';
import { beginFirst } from './support/first-rank.js';
import { Lateness } from './support/lateness.js';
import { rawConnection } from './support/raw-rank.js';
import { SECRET } from './ws-harness.js';

/**
 * What is promised for the default silence of 4 s, from the fault to the last rejection. As in
 * faults.test.ts three times the lateness of this process' timers is allowed for; both are printed.
 */
const LIMIT_MS = 5000;
const lateness = new Lateness();
/** For what has been noticed to be reported, on a machine with more to do. */
const REPORT_MS = 20_000;

afterAll(() => lateness[Symbol.dispose]());

const deaf = () => ({ listen: false }) as const;

/** All calls name the stopped rank, because of its silence, within `LIMIT_MS` of it. */
function expectMissed(ended: readonly Ended[], origin: number, sinceMs: number): void {
  const calls = ended.flatMap((one) => [...one.calls, ...one.later]);
  expect(calls).toHaveLength(7 * ended.length);
  const slowestMs = Math.max(...calls.map(({ atMs }) => atMs - sinceMs));
  for (const { code, originRank, message } of calls) {
    expect({ code, originRank, message }).toEqual({
      code: 'PEER_LOST',
      originRank: origin,
      message: expect.stringMatching(/silent for 4000 ms/),
    });
  }
  const lateMs = lateness.sinceMs(sinceMs);
  process.stdout.write(
    `SIGSTOP of rank ${origin}, the others can't listen: all knew after ${slowestMs} ms, ` +
      `held to ${LIMIT_MS} + ${lateMs} ms\n`,
  );
  expect(slowestMs).toBeLessThan(LIMIT_MS + lateMs);
}

describe.concurrent("ranks that can't listen", { timeout: 120_000 }, () => {
  it('miss a stopped rank that can', async () => {
    await using jobs = new RankProcesses();
    const ranks = await jobs.start(3);
    await jobs.join(ranks, { optionsOf: (rank) => (rank === 0 ? {} : deaf()) });
    const sinceMs = Date.now();
    ranks[0]!.child.kill('SIGSTOP');
    expectMissed(await jobs.ended(ranks.slice(1), REPORT_MS), 0, sinceMs);
  });

  it('miss a stopped one of their own, where none can', async () => {
    await using jobs = new RankProcesses();
    const ranks = await jobs.start(3);
    const rendezvous = await serveRendezvous({ worldSize: 3, secret: 'of this very test' });
    await jobs.join(ranks, { rendezvousPort: rendezvous.port, optionsOf: deaf });
    rendezvous.close();
    const sinceMs = Date.now();
    ranks[1]!.child.kill('SIGSTOP');
    expectMissed(await jobs.ended([ranks[0]!, ranks[2]!], REPORT_MS), 1, sinceMs);
  });

  it.each([
    ['a rank that can', 0],
    ['one of their own', 1],
  ])('wait for %s while it computes', async (_, busy) => {
    await using jobs = new RankProcesses();
    const ranks = await jobs.start(3);
    const optionsOf = (rank: number) => ({ silenceMs: 1500, ...(rank === 0 ? {} : deaf()) });
    await jobs.join(ranks, { optionsOf });
    ranks[busy]!.say({ type: 'compute', ms: 4000 });
    const { numRounds } = await ranks[busy]!.hears('computed', REPORT_MS);
    ranks[2]!.say({ type: 'stop' });
    for (const ended of await jobs.ended(ranks, REPORT_MS)) {
      expect(ended.calls).toEqual([]);
      expect(ended.numRounds).toBeGreaterThan(numRounds);
    }
  });
});

describe('the worker that listens for them', () => {
  it('lets in who proves the secret and is expected, once, and nobody later', async () => {
    const refusals: string[] = [];
    const { port, joined } = await beginFirst({
      limits: { proofMs: 300, maxStrangers: 6 },
      onRefused: ({ reason }) => refusals.push(reason),
    });
    const place = { port, secret: SECRET, rank: 1, worldSize: 2 };
    const meeting = await rawConnection('rendezvous', place);
    meeting.send(JSON.stringify({ type: 'here', address: { host: null, port: 0, beats: false } }));
    await once(meeting, 'message'); // the table
    let tell: (text: string) => void = () => {};
    const said = new Promise<string>((resolve) => {
      tell = resolve;
    });
    const link = await rawConnection('link', { ...place, onText: tell });
    const heart = JSON.parse(await said) as { type: string; port: number };
    expect(heart).toEqual({ type: 'heart', port: expect.any(Number) });
    const there = { ...place, port: heart.port };

    // Strangers: another origin, no proof, nonsense in place of one, and too many of them.
    await expect(rawConnection('hearing', { ...there, origin: 'http://a.b' })).rejects.toThrow();
    await say(heart.port, 'GET / HTTP/1.1\r\nHost: here\r\n\r\n');
    await say(heart.port, 'nonsense\r\n\r\n');
    await say(heart.port, ''); // and no more
    await expect(rawConnection('hearing', { ...there, secret: 'a guess' })).rejects.toThrow('4401');
    await Promise.all(Array.from({ length: 8 }, () => say(heart.port, '')));
    // Who knows the secret, but says another role, or comes twice.
    await expect(rawConnection('link', there)).rejects.toThrow('4401');
    const hearing = await rawConnection('hearing', there);
    await expect(rawConnection('hearing', there)).rejects.toThrow('4401');
    expect(refusals).toEqual(
      expect.arrayContaining([
        'origin http://a.b is not allowed',
        'a request that is no WebSocket',
        expect.stringMatching(/^Parse Error/),
        'no proof within 300 ms',
        '6 others have proved nothing yet',
        'wrong secret',
        'no link here',
        'no hearing here',
      ]),
    );

    const [beat] = (await once(hearing, 'message')) as [Buffer];
    expect(beat).toHaveLength(0);
    meeting.send(JSON.stringify({ type: 'linked' }));
    await joined;
    await expect(rawConnection('hearing', there)).rejects.toThrow(/ECONNREFUSED/);
    await once(hearing, 'message'); // the one that is in goes on
    const pending = (await joined).barrier();
    hearing.terminate(); // its own loss
    link.terminate();
    await expect(pending).rejects.toMatchObject({ code: 'PEER_LOST', originRank: 1 });
  });
});

/** Says something to a port; resolves when the other end has closed. */
async function say(port: number, text: string): Promise<void> {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  socket.write(text);
  socket.resume();
  await once(socket, 'close');
}
