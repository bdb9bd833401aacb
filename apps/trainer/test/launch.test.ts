// Processes are real here; only the work inside a rank is faked.

import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { build } from 'esbuild';
import { afterEach, beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { DivergedError, RankFailedError, SignalError } from '../src/errors.js';
import { runProcesses } from '../src/launch/run-processes.js';
import type { RankEvent } from '../src/rank/events.js';
import type { PreparedRun } from '../src/run-config.js';

const directory = newFolder();
const rankScript = join(directory, 'fake-rank.mjs');
const launcherScript = join(directory, 'fake-launcher.mjs');

beforeAll(async () => {
  await build({
    entryPoints: ['fake-rank', 'fake-launcher'].map(
      (name) => new URL(`support/${name}.ts`, import.meta.url).pathname,
    ),
    outdir: directory,
    outExtension: { '.js': '.mjs' },
    bundle: true,
    platform: 'node',
    format: 'esm',
  });
});
afterEach(() => {
  delete process.env.FAKE_RANKS;
  delete process.env.FAKE_GATE;
});

/** Returns whether a process lives. A zombie that nobody reaps counts as dead. */
function isAlive(pid: number): boolean {
  try {
    return !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'));
  } catch {
    return false;
  }
}

/** Runs ranks that behave as told. `onStep` may end them. */
async function run(
  behaviors: readonly string[],
  steps: number,
  onStep: (step: number, pids: readonly number[], stop: AbortController) => void = () => {},
) {
  process.env.FAKE_RANKS = behaviors.join(',');
  const stop = new AbortController();
  const events: RankEvent[] = [];
  const pids: number[] = [];
  const error: unknown = await runProcesses({ ranks: behaviors.length, steps } as PreparedRun, {
    entry: rankScript,
    signal: stop.signal,
    onEvent: (event) => {
      events.push(event);
      if (event.type === 'ready') {
        pids[event.ready.rank] = Number(event.ready.description);
      }
      if (event.type === 'step') {
        onStep(event.metrics.step, pids, stop);
      }
    },
  }).catch((thrown: unknown) => thrown);
  return { error, events, pids };
}

describe('runProcesses', () => {
  it('starts a process a rank and passes on what they tell, not-a-number too', async () => {
    const { error, events, pids } = await run(['', '', ''], 4);
    expect(error).toBeUndefined();
    expect(new Set(pids).size).toBe(3);
    const losses = events.flatMap((event) => (event.type === 'step' ? event.metrics.loss : []));
    expect(losses).toEqual([Number.NaN, Number.NaN, Number.NaN, Number.NaN]);
    expect(pids.map(isAlive)).toEqual([false, false, false]);
  });

  it('starts no rank where it is asked to end as it looks for a port', async () => {
    const stop = new AbortController();
    const events: RankEvent[] = [];
    const running = runProcesses({ ranks: 2, steps: 4 } as PreparedRun, {
      entry: rankScript,
      signal: stop.signal,
      onEvent: (event) => events.push(event),
    });
    stop.abort(new SignalError('SIGINT'));
    await expect(running).rejects.toBe(stop.signal.reason);
    expect(events).toEqual([]);
  });

  it('blames the rank that was killed, not those that lost it', async () => {
    let killed = false;
    const gate = join(mkdtempSync(join(directory, 'gate-')), 'open');
    process.env.FAKE_GATE = gate;
    const { error, pids } = await run(['', '', 'lose-peer'], 1000, (step, running) => {
      if (step < 2 || killed || running[1] === undefined) {
        return;
      }
      killed = true;
      writeFileSync(gate, ''); // The other rank's report may come first or second.
      process.kill(running[1], 'SIGKILL');
    });
    expect(error).toBeInstanceOf(RankFailedError);
    expect((error as RankFailedError).rank).toBe(1);
    expect((error as Error).message).toMatch(/^rank 1 of 3 was killed by SIGKILL after step \d+/);
    expect(pids.map(isAlive)).toEqual([false, false, false]);
  });

  it('blames a rank whose end comes long after the others told that they lost it', async () => {
    const gate = join(mkdtempSync(join(directory, 'gate-')), 'open');
    process.env.FAKE_GATE = gate;
    let isOpen = false;
    const { error } = await run(['', '', 'lose-peer'], 1000, (step, running) => {
      if (step < 2 || isOpen || running[1] === undefined) {
        return;
      }
      isOpen = true;
      writeFileSync(gate, '');
      // This is later than the time for which reports are gathered. This timer and the command's
      // belong to one event loop.
      setTimeout(() => process.kill(running[1]!, 'SIGKILL'), 1500);
    });
    expect((error as Error).message).toMatch(/^rank 1 of 3 was killed by SIGKILL after step \d+/);
  });

  it.each([
    [
      'throw',
      /^rank 1 of 2 failed (after step \d+|before the first step): the gradient is made of cheese$/,
    ],
    [
      'exit',
      /^rank 1 of 2 ended with exit code 3 (after step \d+|before the first step); .*\nout of biscuits$/s,
    ],
  ])('a rank that does "%s" ends the job with its reason', async (behavior, message) => {
    const { error, pids } = await run(['', behavior], 1000);
    expect((error as Error).message).toMatch(message);
    expect(pids.map(isAlive)).toEqual([false, false]);
  });

  it('a divergence is known as one, and blames no rank', async () => {
    const { error, pids } = await run(['diverge', 'diverge'], 1000);
    expect(error).toBeInstanceOf(DivergedError);
    expect((error as Error).message).toBe('the loss is not a number');
    expect(pids.map(isAlive)).toEqual([false, false]);
  });

  it('an aborted job rejects with the reason and leaves nothing, not even a rank that is stuck', async () => {
    const gate = join(mkdtempSync(join(directory, 'gate-')), 'open');
    process.env.FAKE_GATE = gate;
    const { error, pids } = await run(['', 'hang'], 100_000, (_, running, stop) => {
      // By now the rank is stuck, however long the other one takes to start.
      if (running[1] !== undefined && existsSync(gate)) {
        stop.abort(new SignalError('SIGINT'));
      }
    });
    expect(error).toBeInstanceOf(SignalError);
    expect(pids.map(isAlive)).toEqual([false, false]);
  });

  it('ranks leave when the command is killed', async () => {
    const command = spawn(process.execPath, [launcherScript, rankScript], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    const pids: number[] = [];
    for await (const chunk of command.stdout as AsyncIterable<Buffer>) {
      pids.push(...chunk.toString().trim().split('\n').map(Number));
      if (pids.length === 2) {
        break;
      }
    }
    expect(pids.map(isAlive)).toEqual([true, true]);
    command.kill('SIGKILL');
    await expect.poll(() => pids.some(isAlive), { timeout: 60_000 }).toBe(false);
  });
});
