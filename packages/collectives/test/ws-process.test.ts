// Ranks as processes: one killed, one stopped, one that computes; and that processes end by themselves.

import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';

const folder = mkdtempSync(join(tmpdir(), 'collectives-'));
const script = join(folder, 'rank.cjs');
const running: ChildProcess[] = [];

/** What a rank said last, and when. */
interface Ending {
  readonly code?: string;
  readonly message?: string;
  readonly originRank?: number;
  readonly done?: boolean;
}

beforeAll(async () => {
  await build({
    entryPoints: [fileURLToPath(new URL('ws-child.ts', import.meta.url))],
    bundle: true,
    platform: 'node',
    format: 'cjs',
    conditions: ['@shardweave/source'],
    external: ['bufferutil', 'utf-8-validate'],
    outfile: script,
    logLevel: 'error',
  });
});

afterEach(() => {
  for (const child of running.splice(0)) {
    child.kill('SIGKILL');
  }
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

function start(rank: number, env: Record<string, string>): ChildProcess {
  const child = fork(script, { env: { ...process.env, ...env, RANK: String(rank) } });
  running.push(child);
  return child;
}

/** Starts all ranks and waits until each is linked to all others. */
async function startAll(
  worldSize: number,
  env: Record<string, string>,
): Promise<{ children: ChildProcess[]; endings: Promise<Ending>[] }> {
  const common = { WORLD_SIZE: String(worldSize), SECRET: 'of this very job', ...env };
  const first = start(0, { ...common, PORT: '0' });
  const [{ port }] = (await once(first, 'message')) as [{ port: number }];
  const others = Array.from({ length: worldSize - 1 }, (_, i) =>
    start(i + 1, { ...common, PORT: String(port) }),
  );
  const children = [first, ...others];
  await Promise.all(children.map((child) => once(child, 'message')));
  const endings = children.map(async (child) => {
    const [ending] = (await once(child, 'message')) as [Ending];
    await once(child, 'exit'); // nothing is left that keeps the process
    return ending;
  });
  return { children, endings };
}

describe('processes over ws', () => {
  it('end by themselves when all is done', async () => {
    const { endings } = await startAll(3, { NUM_CALLS: '5' });
    for (const ending of await Promise.all(endings)) {
      expect(ending).toEqual({ done: true });
    }
  });

  it.each([0, 2])('name rank %i within seconds of its SIGKILL', async (victim) => {
    const { children, endings } = await startAll(4, {});
    await new Promise((resolve) => setTimeout(resolve, 200));
    const killed = performance.now();
    children[victim]!.kill('SIGKILL');
    const survivors = await Promise.all(endings.filter((_, rank) => rank !== victim));
    expect(performance.now() - killed).toBeLessThan(5000);
    for (const ending of survivors) {
      expect(ending).toMatchObject({ code: 'PEER_LOST', originRank: victim });
      expect(ending.message).toMatch(new RegExp(`allGather #\\d+: peer ${victim} lost`));
    }
  });

  it('notice a stopped rank by its silence, within seconds by default', async () => {
    const { children, endings } = await startAll(3, {});
    const stopped = performance.now();
    children[1]!.kill('SIGSTOP');
    const survivors = await Promise.all([endings[0], endings[2]]);
    // 5 s is what is promised; a second more for a machine that does other things, too.
    expect(performance.now() - stopped).toBeLessThan(6000);
    for (const ending of survivors) {
      expect(ending).toMatchObject({ code: 'PEER_LOST', originRank: 1 });
      expect(ending?.message).toMatch(/silent for 4000 ms/);
    }
  });

  it('wait for a rank that computes for longer than the limit of silence', async () => {
    const env = { SILENCE_MS: '1500', BUSY_RANK: '1', BUSY_MS: '5000', NUM_CALLS: '5' };
    const { endings } = await startAll(3, env);
    const done = { done: true };
    expect(await Promise.all(endings)).toEqual([done, done, done]);
  });
});
