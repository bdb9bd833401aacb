// The examples of one process, run as they stand, and the README's code, which is the first of
// them. That of a page is run by tooling/browser/shm-page.test.ts, and those of several processes
// by packages/collectives/test/launch-process.test.ts.
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { expect, it, vi } from 'vitest';
import { printedLosses } from '../../tooling/test-kit/printed-losses.ts';

const FOLDER = fileURLToPath(new URL('..', import.meta.url));
/** A uniform guess among 128 bytes costs ln 128. */
const GUESS = Math.log(128);

async function linesOf(example: string): Promise<readonly string[]> {
  const lines: string[] = [];
  const log = vi.spyOn(console, 'log').mockImplementation((line) => void lines.push(line));
  try {
    await import(/* @vite-ignore */ `${FOLDER}${example}`);
  } finally {
    log.mockRestore();
  }
  return lines;
}

function expectLearned(losses: readonly number[]): void {
  expect(losses).toHaveLength(20);
  expect(Math.abs(losses[0]! - GUESS)).toBeLessThan(0.3);
  expect(losses.at(-1)).toBeLessThan(GUESS / 2);
}

it('fsdp.mjs and ddp.mjs learn a sentence on each of two ranks, by the same losses', async () => {
  const sharded = await linesOf('fsdp.mjs');
  expect(sharded).toHaveLength(40);
  for (const rank of [0, 1]) {
    expectLearned(printedLosses(sharded, rank));
  }
  expect((await linesOf('ddp.mjs')).toSorted()).toEqual(sharded.toSorted());
});

it('offload.mjs learns a sentence with a model larger than its device', async () => {
  const lines = await linesOf('offload.mjs');
  expectLearned(printedLosses(lines));
  const [size, peak] = lines.at(-1)!.match(/\d+/g)!.map(Number);
  expect(peak).toBeLessThan(size!);
});

it('the README at the root shows fsdp.mjs as it is', () => {
  const [, code] = /```js\n(.*?)```/s.exec(readFileSync(`${FOLDER}../README.md`, 'utf8'))!;
  expect(code).toBe(readFileSync(`${FOLDER}fsdp.mjs`, 'utf8'));
});

it('the index names every example', () => {
  const index = readFileSync(`${FOLDER}README.md`, 'utf8');
  const examples = readdirSync(FOLDER, { withFileTypes: true })
    .filter((entry) =>
      entry.isDirectory() ? !/^(test|node_modules)$/.test(entry.name) : /\.mjs$/.test(entry.name),
    )
    .map(({ name }) => name);
  expect(examples).toContain('fsdp.mjs');
  expect(examples.filter((name) => !index.includes(`](${name})`))).toEqual([]);
});
