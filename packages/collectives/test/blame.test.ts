// These tests check which rank is blamed. Where ranks die, or abort and exit at once with much data
// under way, every other rank blames one that really did. A few cases of each run here, and two
// hundred with SHARDWEAVE_LONG=1.

import { connectWsEndpoint, serveRendezvous } from '@shardweave/collectives/ws';
import { describe, expect, it } from 'vitest';
import { RankProcesses } from './support/fault-job.js';

const NUM_RANKS = 4;
const NUM_ROUNDS = process.env.SHARDWEAVE_LONG === '1' ? 200 : 4;
const LIMIT_MS = 40_000;

describe('over ws', () => {
  it('an abort has been heard by all when the rank that aborted has closed', async () => {
    const worldSize = 3;
    const secret = 'of this very test';
    const server = await serveRendezvous({ worldSize, secret });
    const ranks = await Promise.all(
      [0, 1, 2].map((rank) =>
        connectWsEndpoint({ rank, worldSize, secret, port: server.port, rendezvous: 'elsewhere' }),
      ),
    );
    server.close();
    const [first, ...others] = ranks;
    const sends = Promise.allSettled(
      others.map((_, i) => first!.group.send(new Uint8Array(2 ** 23), { to: i + 1 })),
    );
    first!.group.abort('no more');
    await first!.group.close();
    expect(ranks.map(({ endpoint }) => endpoint.failure)).toEqual(
      // A rank may learn this from the origin itself or from a rank that the origin has told: the
      // network decides which message is first.
      ranks.map(() => ({
        kind: 'aborted',
        origin: 0,
        reason: expect.stringMatching(/^no more( \(told by rank \d\))?$/),
      })),
    );
    expect((await sends).map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    await Promise.all(others.map(({ group }) => group.close()));
  });
});

describe('over ws, between processes', { timeout: NUM_ROUNDS * 60_000 }, () => {
  it('a rank that is killed, or aborts and exits, is the one that all others name', async () => {
    await using jobs = new RankProcesses();
    const ranks = await jobs.start(NUM_RANKS);
    const heard = { killed: 0, aborted: 0, unexplained: 0 };
    for (let round = 0; round < NUM_ROUNDS; round++) {
      await jobs.join(ranks);
      const victim = (round * 5 + 1) % NUM_RANKS;
      const isKill = round % 2 === 0;
      if (isKill) {
        ranks[victim]!.child.kill('SIGKILL');
      } else {
        ranks[victim]!.say({ type: 'abort and exit', reason: 'no more' });
      }
      const others = ranks.filter((_, rank) => rank !== victim);
      for (const { calls, later } of await jobs.ended(others, LIMIT_MS)) {
        for (const { originRank, code, message } of [...calls, ...later]) {
          expect(originRank, `round ${round}: ${message}`).toBe(victim);
          if (isKill) {
            expect(code, message).toBe('PEER_LOST');
            heard.killed++;
          } else if (code === 'ABORTED') {
            expect(message).toContain(`aborted by rank ${victim}: no more`);
            heard.aborted++;
          } else {
            heard.unexplained++;
          }
        }
      }
      const [fresh] = await jobs.start(1);
      ranks[victim] = fresh!;
    }
    process.stdout.write(
      `blame: ${NUM_ROUNDS} rounds; calls that named the killed ${heard.killed}, the aborting with its reason ${heard.aborted}, without ${heard.unexplained}\n`,
    );
  });
});
