// A job whose ranks are far from each other forms while another host opens 300 connections a second
// to rank 0. Each packet takes 50 or 100 ms here, so that a proof takes some hundred.

import type { ChildProcess } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { join } from 'node:path';
import { beforeAll, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bundleProgram } from './support/bundle-program.js';
import { createSlowLan, lanProblem } from './support/netns.js';

const NUM_RANKS = 3;
const folder = newFolder();
const script = join(folder, 'slow-rank.mjs');

beforeAll(() => bundleProgram(new URL('support/slow-rank.ts', import.meta.url), script));

/** Resolves with the next word of a process. */
async function hears<Word>(child: ChildProcess): Promise<Word> {
  const [word] = await once(child, 'message');
  return word as Word;
}

const problem = lanProblem();

it.skipIf(problem !== undefined).each([
  [50, false],
  [50, true],
  [100, false],
  [100, true],
])(
  `a job forms over %i ms a way, with an attacker: %j${problem ?? ''}`,
  { timeout: 90_000 },
  async (delayMs, isAttacked) => {
    using lan = await createSlowLan(NUM_RANKS + 1, delayMs);
    const [first, ...others] = lan.hosts;
    const attackers = others.splice(NUM_RANKS - 1);
    const children: ChildProcess[] = [];
    try {
      const secret = randomBytes(16).toString('hex');
      const common = {
        worldSize: NUM_RANKS,
        secret,
        address: first!.address,
        joinTimeoutMs: 40_000,
      };
      const start = async (host: typeof first, args: readonly string[] = []) => {
        const child = host!.fork(script, args);
        children.push(child);
        await hears(child);
        return child;
      };
      const ranks = await Promise.all([first, ...others].map((host) => start(host)));
      ranks[0]!.send({ ...common, rank: 0, port: 0 });
      const { port } = await hears<{ port: number }>(ranks[0]!);
      if (isAttacked) {
        const attacker = await start(attackers[0], [first!.address, String(port)]);
        attacker.send('attack');
        await hears(attacker);
      }
      const startMs = performance.now();
      const formed = ranks.map((rank) => hears(rank));
      for (const [rank, child] of ranks.entries()) {
        if (rank > 0) {
          child.send({ ...common, rank, port });
        }
      }
      // The ranks that listen say so first.
      expect(await Promise.all(formed)).toEqual(Array(NUM_RANKS).fill({ type: 'formed' }));
      process.stdout.write(
        `${delayMs} ms, attacked: ${isAttacked}: formed in ${(performance.now() - startMs).toFixed(0)} ms\n`,
      );
    } finally {
      for (const child of children) {
        child.kill('SIGKILL');
      }
    }
  },
);
