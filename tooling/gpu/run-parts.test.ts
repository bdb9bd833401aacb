// Parts of a run on a lent GPU are lost alone: what a part has measured before it dies, hangs or is
// ended with the whole run is kept, and the parts after it run.

import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { readRows } from '../../bench/figures/rows.mjs';
import { COMMAND_SECONDS, PARTS } from './parts.mjs';
import { renderReport } from './report.mjs';
import { runParts } from './run-parts.mjs';

const ROWS = `printf '{"row":1}\\n{"row":2}\\n' >> "$1";`;
const HANG = 'sleep 600';

/** A part in the shell that appends two rows to $1, and then does as `then` says. */
function part(name: string, then: string, limit = 60) {
  const args = ({ rows, scratch }: { rows: string; scratch: string }) => {
    return ['-c', `${ROWS} ${then}`, name, rows, scratch];
  };
  return { name, limit, args };
}

const program = '/bin/sh';

function folder(): { rows: string; scratch: string } {
  const scratch = mkdtempSync(join(tmpdir(), 'parts-'));
  onTestFinished(() => rmSync(scratch, { recursive: true }));
  return { rows: join(scratch, 'rows.jsonl'), scratch };
}

const isAlive = (pid: number) => {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
};

it('a part that crashes or hangs loses nothing but itself', async () => {
  const { rows, scratch } = folder();
  const parts = [
    part('hangs', HANG, 0.05),
    part('crashes', `printf '{"tor' >> "$1"; echo device lost >&2; kill -KILL $$; ${HANG}`),
    part('ends', 'echo weights > "$2/model"'),
  ];
  expect(await runParts(parts, { rows, scratch, program })).toBe(false);
  const found = readRows(rows).parts;
  expect(found.map(({ part: name, ended }) => [name, ended])).toEqual([
    ['hangs', 'the limit of 0.05 s'],
    ['crashes', 'SIGKILL'],
    ['ends', 0],
  ]);
  for (const { rows: own } of found.slice(1)) {
    expect(own).toEqual([{ row: 1 }, { row: 2 }]);
  }
  expect(found[1]!.tail).toBe('device lost');
  expect(readdirSync(scratch)).not.toContain('ends'); // what it wrote besides rows
  expect(renderReport(readRows(rows))).toContain('| hangs | ended by the limit of 0.05 s |');
});

it('a part that crashes leaves no process beside the next one', async () => {
  const { rows, scratch } = folder();
  const parts = [
    part('crashes', `${HANG} & echo '{"pid":'$!'}' >> "$1"; kill -KILL $$`),
    part('ends', `echo '{"pid":'$$'}' >> "$1"`),
  ];
  expect(await runParts(parts, { rows, scratch, program })).toBe(false);
  const [crashed, ended] = readRows(rows).parts;
  expect([crashed!.ended, ended!.ended]).toEqual(['SIGKILL', 0]);
  const pid = Number(crashed!.rows.at(-1)!.pid);
  onTestFinished(() => {
    if (isAlive(pid)) {
      process.kill(pid, 'SIGKILL');
    }
  });
  await expect.poll(() => isAlive(pid), { timeout: 20_000, interval: 5 }).toBe(false);
});

it('what a run has measured before it is ended stays, its processes do not, and a later run adds to it', async () => {
  const { rows, scratch } = folder();
  const ending = new AbortController();
  const child = `${HANG} & echo '{"pid":'$!'}' >> "$1"; wait`;
  const running = runParts([part('first', child), part('second', '')], {
    ...{ rows, scratch, program, signal: ending.signal },
  });
  const rowsOf = (name: string) => readRows(rows).parts.find((one) => one.part === name)?.rows;
  await expect
    .poll(() => rowsOf('first'), { timeout: 20_000, interval: 5 })
    .toEqual([{ row: 1 }, { row: 2 }, { pid: expect.any(Number) }]);
  ending.abort();
  expect(await running).toBe(false);
  expect(rowsOf('second')).toBeUndefined();
  const pid = Number(rowsOf('first')?.[2]?.pid);
  await expect.poll(() => isAlive(pid), { timeout: 20_000, interval: 5 }).toBe(false);
  expect(await runParts([part('second', '')], { rows, scratch, program })).toBe(true);
  expect([rowsOf('first')?.length, rowsOf('second')?.length]).toEqual([3, 2]);
  expect(renderReport(readRows(rows))).toContain('| first | ended by a signal |');
});

it('the limits of the parts fit three commands, those worth most first', () => {
  expect(PARTS.map(({ command }) => command)).toEqual(PARTS.map(({ command }) => command).sort());
  for (const command of [1, 2, 3]) {
    const own = PARTS.filter((one) => one.command === command);
    expect(own.every(({ seconds, limit }) => seconds < limit)).toBe(true);
    expect(own.reduce((sum, { limit }) => sum + limit, 0)).toBeLessThanOrEqual(COMMAND_SECONDS);
  }
});
