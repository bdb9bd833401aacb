// What the built command takes to open a folder of 200 runs, to show a live one among them, and to
// make a page of a run of a million steps: processor time and memory of its own process.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { PAGE_HTML } from '../src/page/index.html';
import { buildCommand } from './support/build-command.js';
import { addLines, madeLine, makeRun } from './support/made-runs.js';

/** The units of a process' times in /proc, on every Linux. */
const TICKS_PER_SECOND = 100;
const LIMIT_MS = 600_000;
const NUM_RUNS = 200;
const STEPS = 5000;
const MANY_STEPS = 1_000_000;
const MB = 1e6;
let entry = '';
beforeAll(async () => {
  entry = await buildCommand();
}, LIMIT_MS);

const started = new Set<() => void>();
afterAll(() => {
  for (const kill of started) {
    kill();
  }
});

const tell = (text: string) => process.stdout.write(`${text}\n`);

function start(args: readonly string[]) {
  const child = spawn(process.execPath, [entry, ...args], { stdio: ['ignore', 'pipe', 'inherit'] });
  started.add(() => child.kill('SIGKILL'));
  const taken = () => {
    const status = readFileSync(`/proc/${child.pid}/status`, 'utf8');
    const stat = readFileSync(`/proc/${child.pid}/stat`, 'utf8').split(') ')[1]!.split(' ');
    return {
      cpuSeconds: (Number(stat[11]) + Number(stat[12])) / TICKS_PER_SECOND,
      mostBytes: Number(/VmHWM:\s*(\d+)/.exec(status)![1]) * 1024,
    };
  };
  return { child, taken };
}

const noisy = (step: number) =>
  madeLine(step, {
    loss: 4 / Math.sqrt(step) + Math.sin(step * step) / 10,
    gradNorm: step === 654_321 ? 170.5 : 1 + Math.cos(step * step),
    tokensPerSecond: 900 + 50 * Math.sin(step ** 1.5),
    ...(step % 100 === 0 && { validLoss: 4 / Math.sqrt(step) }),
  });

it('opens 200 runs in two seconds of processor time and 200 MB, and tells of a live one', {
  timeout: LIMIT_MS,
}, async () => {
  const folder = newFolder();
  const first = makeRun(join(folder, 'run-0'), { steps: STEPS, lineOf: noisy });
  for (let i = 1; i < NUM_RUNS; i++) {
    const name = join(folder, `sweep-${i % 7}/run-${i}`);
    const config = { lr: i / 1000, seed: i % 5 };
    // Half of them have no end: of these all evaluations are read.
    makeRun(name, { steps: 0, config, ...(i % 2 === 0 && { end: 'done' }) });
    cpSync(join(first, 'metrics.jsonl'), join(name, 'metrics.jsonl'));
  }
  const { child, taken } = start(['dashboard', folder, '--port', '0']);
  const [said] = (await once(child.stdout, 'data')) as [Buffer];
  const [, origin, token] = /(http:\S+)\/#token=(\S+)/.exec(String(said))!;
  const answer = await fetch(`${origin}/events`, { headers: { Authorization: `Bearer ${token}` } });
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  const until = async (found: RegExp) => {
    for (text = ''; !found.test(text); ) {
      text += (await reader.read()).value ?? '';
    }
  };
  await until(/event: runs\n.*\n\n/);
  expect(text.match(/"state":/g)).toHaveLength(NUM_RUNS);
  const opened = taken();
  tell(
    `200 runs of ${STEPS} steps: ${opened.cpuSeconds} s of processor time, ${Math.round(opened.mostBytes / MB)} MB`,
  );
  expect(opened.cpuSeconds).toBeLessThan(2);
  expect(opened.mostBytes).toBeLessThan(200 * MB);
  addLines(first, 'metrics.jsonl', [madeLine(STEPS + 1, { loss: 0.015625 })]);
  const atMs = performance.now();
  await until(/"loss":0\.015625/);
  const later = taken();
  tell(
    `a new line is told after ${Math.round(performance.now() - atMs)} ms, ${(later.cpuSeconds - opened.cpuSeconds).toFixed(2)} s of processor time`,
  );
  const closed = once(child, 'close');
  child.kill('SIGINT');
  expect(await closed).toEqual([130, null]);
});

it('makes a page below 5 MB of a million steps, with the spike, in bounded memory', {
  timeout: LIMIT_MS,
}, async () => {
  const run = makeRun(join(newFolder(), 'run'), { steps: MANY_STEPS, lineOf: noisy });
  const out = join(run, 'page.html');
  const { child, taken } = start(['report', run, '--out', out]);
  let last = taken();
  const timer = setInterval(() => {
    try {
      last = taken();
    } catch {
      // It has ended; what it took is what was seen last.
    }
  }, 100);
  expect(await once(child, 'close')).toEqual([0, null]);
  clearInterval(timer);
  const html = readFileSync(out, 'utf8');
  const [, drawn] = /"of":(\d+)/.exec(html)!;
  tell(
    `${MANY_STEPS} steps, ${Math.round(statSync(join(run, 'metrics.jsonl')).size / MB)} MB of lines: a page of ${(html.length / MB).toFixed(2)} MB, of which the script is ${(PAGE_HTML.length / MB).toFixed(2)}, ${last.cpuSeconds} s of processor time, ${Math.round(last.mostBytes / MB)} MB`,
  );
  expect(html.length).toBeLessThan(5 * MB);
  expect(Number(drawn)).toBe(MANY_STEPS);
  expect(html).toContain('170.5');
  expect(last.mostBytes).toBeLessThan(600 * MB);
});
