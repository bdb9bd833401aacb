// These are faults between real processes over ws. Whatever happens to one rank, every pending and
// later call of all others rejects in time and says why. Nothing is left behind, and a new job can
// be built.

import { setTimeout as sleep } from 'node:timers/promises';
import { ProxiedLinks } from '@shardweave/collectives/testing-node';
import { serveRendezvous } from '@shardweave/collectives/ws';
import { afterAll, describe, expect, it } from 'vitest';
import { type RankProcess, RankProcesses } from './support/fault-job.js';
import type { Ended } from './support/fault-messages.js';
import { Lateness } from './support/lateness.js';
import { createLan, lanProblem } from './support/netns.js';

/**
 * The limit from the fault to the last rejection of the last rank. A test allows this limit plus
 * three times the lateness of its own process's timers, which is 0 on an idle machine, and prints
 * both figures.
 */
const LIMIT_MS = 5000;
/** Where no rank can listen, one fault runs in the short run. */
const isLong = process.env.SHARDWEAVE_LONG === '1';
const lateness = new Lateness();

/** Returns options of a rank that can't listen, as in a page. */
const deaf = () => ({ listen: false }) as const;

/** Starts a rendezvous in this process, for jobs in which no rank hosts one. */
async function standalone(worldSize: number) {
  const { port, close } = await serveRendezvous({ worldSize, secret: 'of this very test' });
  return { port, [Symbol.dispose]: close };
}

/** How long reports may take on a busy machine after the fault was noticed. */
const REPORT_MS = 60_000;

interface Expected {
  readonly code: string;
  /** Ranks that an error may name as the origin. */
  readonly origins: readonly number[];
  readonly message: RegExp;
  readonly sinceMs: number;
}

afterAll(() => lateness[Symbol.dispose]());

/**
 * Expects that every pending and later call names this cause, and prints how long the slowest one
 * took.
 */
function expectAll(what: string, ended: readonly Ended[], expected: Expected): void {
  let slowestMs = 0;
  for (const { calls, later } of ended) {
    // Each of the three chains was in a call, and recv had been pending from the start.
    expect(calls.map(({ call }) => call)).toEqual(['allGather', 'allReduce', 'recv']);
    expect(later.length).toBe(4);
    for (const { code, originRank, message, atMs } of [...calls, ...later]) {
      expect({ code, message }).toEqual({
        code: expected.code,
        message: expect.stringMatching(expected.message),
      });
      expect(expected.origins, message).toContain(originRank);
      slowestMs = Math.max(slowestMs, atMs - expected.sinceMs);
    }
  }
  const lateMs = lateness.sinceMs(expected.sinceMs);
  process.stdout.write(
    `${what}: all ${ended.length} ranks knew after ${slowestMs} ms, held to ${LIMIT_MS} + ${lateMs} ms\n`,
  );
  expect(slowestMs).toBeLessThan(LIMIT_MS + lateMs);
}

/** Expects that no process listens and no connection is open. */
async function expectNoSockets(processes: readonly RankProcess[]): Promise<void> {
  for (const rank of processes) {
    // A socket may stay until its other end has closed it too.
    for (let i = 0; i < 100 && rank.sockets().length > 0; i++) {
      await sleep(20);
    }
    expect(rank.sockets()).toEqual([]);
  }
}

async function expectToExit(processes: readonly RankProcess[]): Promise<void> {
  for (const { child } of processes) {
    const exited = new Promise((resolve) => child.once('exit', (code) => resolve(code)));
    child.send({ type: 'exit' });
    expect(await Promise.race([exited, sleep(REPORT_MS, 'still running')])).toBe(0);
  }
}

/** Expects that all processes work on for a while and then end as they should. */
async function expectToWork(jobs: RankProcesses, processes: readonly RankProcess[]): Promise<void> {
  processes[0]!.say({ type: 'stop' });
  for (const { calls, numRounds } of await jobs.ended(processes, REPORT_MS)) {
    expect(calls).toEqual([]);
    expect(numRounds).toBeGreaterThan(0);
  }
}

describe.concurrent('over ws, between processes', { timeout: 240_000 }, () => {
  it('a rank that disagrees, aborts, leaves or is killed ends the job; the rest builds the next', async () => {
    await using jobs = new RankProcesses();
    let ranks = await jobs.start(4);
    for (const about of ['operation', 'dtype', 'size'] as const) {
      await jobs.join(ranks);
      for (const rank of ranks) {
        // The mesh is complete, so no process listens any more.
        expect(rank.sockets()).not.toContain('0A');
      }
      const sinceMs = Date.now();
      ranks[2]!.say({ type: 'disagree', about });
      expectAll(`another ${about}`, await jobs.ended(ranks, REPORT_MS), {
        code: 'MISMATCH',
        origins: [0, 1, 2, 3],
        message: /rank 2 called (barrier|allGather bf16|allGather f32 90000)/,
        sinceMs,
      });
      await expectNoSockets(ranks);
    }
    await jobs.join(ranks);
    let sinceMs = Date.now();
    ranks[1]!.say({ type: 'abort', reason: 'loss is NaN' });
    expectAll('abort', await jobs.ended(ranks, REPORT_MS), {
      code: 'ABORTED',
      origins: [1],
      message: /aborted by rank 1: loss is NaN/,
      sinceMs,
    });

    await jobs.join(ranks);
    sinceMs = Date.now();
    ranks[3]!.say({ type: 'leave' });
    const [own] = await jobs.ended(ranks.slice(3), REPORT_MS);
    expect(own!.calls.map(({ code }) => code)).toEqual(['CLOSED', 'CLOSED', 'CLOSED']);
    expectAll('left early', await jobs.ended(ranks.slice(0, 3), REPORT_MS), {
      code: 'PEER_LOST',
      origins: [3],
      message: /peer 3 lost \(it closed the group( \(told by rank \d\))?\)/,
      sinceMs,
    });
    await expectNoSockets(ranks);

    for (const victim of [2, 0]) {
      await jobs.join(ranks);
      sinceMs = Date.now();
      ranks[victim]!.child.kill('SIGKILL');
      ranks = ranks.filter((_, rank) => rank !== victim);
      expectAll(`rank ${victim} killed`, await jobs.ended(ranks, REPORT_MS), {
        code: 'PEER_LOST',
        origins: [victim],
        message: new RegExp(`peer ${victim} lost`),
        sinceMs,
      });
      await expectNoSockets(ranks);
    }
    await jobs.join(ranks);
    await expectToWork(jobs, ranks);
    await expectNoSockets(ranks);
    await expectToExit(ranks);
  });

  it('a stopped rank is missed, and ends its calls when it goes on', async () => {
    await using jobs = new RankProcesses();
    const ranks = await jobs.start(3);
    await jobs.join(ranks);
    const stopped = ranks[1]!;
    const others = [ranks[0]!, ranks[2]!];
    let sinceMs = Date.now();
    stopped.child.kill('SIGSTOP');
    expectAll('SIGSTOP', await jobs.ended(others, REPORT_MS), {
      code: 'PEER_LOST',
      origins: [1],
      message: /peer 1 lost \(silent for/,
      sinceMs,
    });
    sinceMs = Date.now();
    stopped.child.kill('SIGCONT');
    expectAll('SIGCONT of it', await jobs.ended([stopped], REPORT_MS), {
      code: 'PEER_LOST',
      origins: [1],
      message: /peer 1 lost \(silent for 4000 ms \(told by rank [02]\)\)/,
      sinceMs,
    });
    await expectNoSockets(ranks);
    await jobs.join(ranks);
    await expectToWork(jobs, ranks);
    await expectToExit(ranks);
  });

  it('a link that stalls without a FIN is missed by both ends', async () => {
    await using jobs = new RankProcesses();
    await using links = new ProxiedLinks();
    const ranks = await jobs.start(3);
    await jobs.join(ranks, { links });
    const sinceMs = Date.now();
    for (const proxy of await links.of(2)) {
      proxy.stall();
    }
    expectAll('stalled, the others', await jobs.ended(ranks.slice(0, 2), REPORT_MS), {
      code: 'PEER_LOST',
      origins: [2],
      message: /peer 2 lost \(silent for/,
      sinceMs,
    });
    expectAll('stalled, the rank itself', await jobs.ended(ranks.slice(2), REPORT_MS), {
      code: 'PEER_LOST',
      origins: [0, 1],
      message: /peer [01] lost \(silent for/,
      sinceMs,
    });
    await expectToExit(ranks);
  });

  const noLan = lanProblem();
  it.skipIf(noLan !== undefined)(
    `a host whose cable is out is missed by the others${noLan === undefined ? '' : ` (${noLan})`}`,
    async () => {
      using lan = createLan(3);
      await using jobs = new RankProcesses();
      const ranks = await jobs.start(3, lan.hosts);
      await jobs.join(ranks);
      const sinceMs = Date.now();
      lan.hosts[2]!.setCable('out');
      expectAll('cable out, the others', await jobs.ended(ranks.slice(0, 2), REPORT_MS), {
        code: 'PEER_LOST',
        origins: [2],
        message: /peer 2 lost/,
        sinceMs,
      });
      expectAll('cable out, the host itself', await jobs.ended(ranks.slice(2), REPORT_MS), {
        code: 'PEER_LOST',
        origins: [0, 1],
        message: /peer [01] lost/,
        sinceMs,
      });
      lan.hosts[2]!.setCable('in');
      await jobs.join(ranks);
      await expectToWork(jobs, ranks);
      await expectToExit(ranks);
    },
  );

  it('a rank that computes for longer than silence may last is waited for', async () => {
    await using jobs = new RankProcesses();
    const ranks = await jobs.start(3);
    await jobs.join(ranks);
    ranks[1]!.say({ type: 'compute', ms: 6000 });
    const { numRounds } = await ranks[1]!.hears('computed', REPORT_MS);
    ranks[2]!.say({ type: 'stop' });
    for (const ended of await jobs.ended(ranks, REPORT_MS)) {
      expect(ended.calls).toEqual([]);
      expect(ended.numRounds).toBeGreaterThan(numRounds);
    }
    await expectToExit(ranks);
  });

  const kinds = [
    ['one that can', 0],
    ['one of their own, where none can', 1],
  ] as const;
  it.each(isLong ? kinds : [])(
    "ranks that can't listen miss %s when it is stopped",
    async (_, victim) => {
      await using jobs = new RankProcesses();
      const ranks = await jobs.start(3);
      using rendezvous = victim === 0 ? undefined : await standalone(3);
      await jobs.join(ranks, {
        ...(rendezvous && { rendezvousPort: rendezvous.port }),
        optionsOf: (rank) => (rank === 0 && victim === 0 ? {} : deaf()),
      });
      const sinceMs = Date.now();
      ranks[victim]!.child.kill('SIGSTOP');
      const others = ranks.filter((_, rank) => rank !== victim);
      expectAll("SIGSTOP, the others can't listen", await jobs.ended(others, REPORT_MS), {
        code: 'PEER_LOST',
        origins: [victim],
        message: new RegExp(`peer ${victim} lost \\(silent for 4000 ms`),
        sinceMs,
      });
    },
  );

  const signals = [
    ['SIGSTOP', /the relay is lost \(silent for 4000 ms, on the way to rank \d/],
    ['SIGKILL', /the relay is lost \(.* on the way to rank \d/],
  ] as const;
  it.each(isLong ? signals : signals.slice(0, 1))(
    "ranks that can't listen name a relay that got %s, and not each other",
    async (signal, message) => {
      await using jobs = new RankProcesses();
      const ranks = await jobs.start(3);
      const relay = await jobs.startRelay(3);
      await jobs.join(ranks, { rendezvousPort: relay.port, optionsOf: deaf });
      const sinceMs = Date.now();
      relay.child.kill(signal);
      const ended = await jobs.ended(ranks, REPORT_MS);
      for (const [rank, one] of ended.entries()) {
        expectAll(`relay ${signal}, rank ${rank}`, [one], {
          code: 'RELAY_LOST',
          origins: [rank],
          message,
          sinceMs,
        });
      }
    },
  );

  it.each(isLong ? kinds : [])(
    "ranks that can't listen wait for %s while it computes",
    async (_, busy) => {
      await using jobs = new RankProcesses();
      const ranks = await jobs.start(3);
      using rendezvous = busy === 0 ? undefined : await standalone(3);
      await jobs.join(ranks, {
        ...(rendezvous && { rendezvousPort: rendezvous.port }),
        optionsOf: (rank) => ({ silenceMs: 3000, ...(rank === 0 && busy === 0 ? {} : deaf()) }),
      });
      ranks[busy]!.say({ type: 'compute', ms: 6000 });
      const { numRounds } = await ranks[busy]!.hears('computed', REPORT_MS);
      ranks[2]!.say({ type: 'stop' });
      for (const ended of await jobs.ended(ranks, REPORT_MS)) {
        expect(ended.calls).toEqual([]);
        expect(ended.numRounds).toBeGreaterThan(numRounds);
      }
    },
  );
});
