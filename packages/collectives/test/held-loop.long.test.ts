// Sixty-four ranks in four processes, whose event loops are held now and then, join beside four
// busy loops, ten times out of ten.

import { type ChildProcess, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bundleProgram } from './support/bundle-program.js';
import { freePort } from './support/free-port.js';
import type { ManyRanks } from './support/many-ranks.js';

const NUM_ROUNDS = 10;
const WORLD_SIZE = 64;
const NUM_PROCESSES = 4;
const NUM_BUSY = 4;

const folder = newFolder();
const script = join(folder, 'many-ranks.mjs');
const children: ChildProcess[] = [];

afterAll(() => {
  for (const child of children) {
    child.kill('SIGKILL');
  }
});

interface Report {
  readonly sums?: readonly number[];
  readonly error?: string;
}

/** Joins all ranks, and resolves with what each process reports at its end. */
async function round(number: number): Promise<Report[]> {
  const count = WORLD_SIZE / NUM_PROCESSES;
  const port = await freePort();
  const processes = Array.from({ length: NUM_PROCESSES }, (_, index) => {
    const place: ManyRanks = {
      first: index * count,
      count,
      worldSize: WORLD_SIZE,
      port,
      secret: `of this very test, round ${number}`,
    };
    const child = fork(script, [JSON.stringify(place)]);
    children.push(child);
    return child;
  });
  return Promise.all(
    processes.map(async (child) => ((await once(child, 'message')) as [Report])[0]),
  );
}

it('64 ranks in 4 processes form beside 4 busy loops', { timeout: 7_200_000 }, async () => {
  await bundleProgram(new URL('support/many-ranks.ts', import.meta.url), script);
  for (let i = 0; i < NUM_BUSY; i++) {
    children.push(spawn(process.execPath, ['-e', 'for (;;);'], { stdio: 'ignore' }));
  }
  const sums = Array.from({ length: WORLD_SIZE / NUM_PROCESSES }, () => 2016);
  for (let number = 0; number < NUM_ROUNDS; number++) {
    const startMs = performance.now();
    expect(await round(number)).toEqual(Array.from({ length: NUM_PROCESSES }, () => ({ sums })));
    const seconds = ((performance.now() - startMs) / 1000).toFixed(1);
    process.stdout.write(
      `round ${number}: ${WORLD_SIZE} ranks joined, summed, closed: ${seconds} s\n`,
    );
  }
});
