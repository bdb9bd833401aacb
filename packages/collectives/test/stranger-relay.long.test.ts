// Another user of the machine listens where a rank dials before rank 0 is there, in order to read
// and to change what the ranks say. Nothing is encrypted on loopback.

import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeAll, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bundleProgram } from './support/bundle-program.js';
import { createLan, lanProblem } from './support/netns.js';

const folder = newFolder();
const relayScript = join(folder, 'stranger-relay.mjs');
const rankScript = join(folder, 'slow-rank.mjs');
const PORT = 20_123;
const children: ChildProcess[] = [];

beforeAll(async () => {
  chmodSync(folder, 0o755); // The stranger reads its program, too.
  await bundleProgram(new URL('support/stranger-relay.ts', import.meta.url), relayScript);
  await bundleProgram(new URL('support/slow-rank.ts', import.meta.url), rankScript);
});

afterEach(() => {
  for (const child of children.splice(0)) {
    child.kill('SIGKILL');
  }
});

interface Word {
  readonly type: string;
  readonly message?: string;
}

/** Returns the number of connections that nobody took, of all processes on that host. */
function numRefused(pid: number): number {
  const [names, values] = readFileSync(`/proc/${pid}/net/snmp`, 'latin1')
    .split('\n')
    .filter((line) => line.startsWith('Tcp:'))
    .map((line) => line.split(' '));
  return Number(values![names!.indexOf('AttemptFails')]);
}

/** Starts the relay at `host`, and rank 1, and rank 0 when rank 1 has found nobody to join. */
async function joinBeside(host: string, isRank1Refused: boolean) {
  const lan = createLan(1, { hostLines: ['::1 localhost'] });
  const start = async (script: string, args: readonly string[] = []) => {
    const child = lan.hosts[0]!.fork(script, args);
    children.push(child);
    const words: Word[] = [];
    child.on('message', (word: Word) => words.push(word));
    await once(child, 'message');
    return { child, words };
  };
  const relay = await start(relayScript, [host, String(PORT)]);
  const ranks = [await start(rankScript), await start(rankScript)];
  const job = {
    worldSize: 2,
    secret: 'only the ranks know this',
    address: 'localhost',
    port: PORT,
    joinTimeoutMs: 8000,
  };
  ranks[1]!.child.send({ ...job, rank: 1 });
  while (isRank1Refused && numRefused(ranks[1]!.child.pid!) === 0) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  ranks[0]!.child.send({ ...job, rank: 0 });
  const isOver = ({ type }: Word) => type === 'formed' || type === 'unjoined';
  for (const { child, words } of ranks) {
    while (!words.some(isOver)) {
      await once(child, 'message');
    }
  }
  lan[Symbol.dispose]();
  const ends = ranks.map(({ words }) => words.find(isOver)!);
  return { ends, numRelayed: relay.words.filter(({ type }) => type === 'relayed').length };
}

const problem = lanProblem();

it.skipIf(problem !== undefined)(
  `a stranger on the other address of localhost: nobody comes to it${problem ?? ''}`,
  { timeout: 60_000 },
  async () => {
    const { ends, numRelayed } = await joinBeside('::1', true);
    expect(ends).toEqual([{ type: 'formed' }, { type: 'formed' }]);
    expect(numRelayed).toBe(0);
  },
);

it.skipIf(problem !== undefined)(
  `a stranger on the port of rank 0: no job forms, and rank 0 says why${problem ?? ''}`,
  { timeout: 60_000 },
  async () => {
    const { ends } = await joinBeside('127.0.0.1', false);
    expect(ends.map(({ type }) => type)).toEqual(['unjoined', 'unjoined']);
    expect(ends[0]!.message).toMatch(/can't listen on .*:20123: another process listens there/);
  },
);
