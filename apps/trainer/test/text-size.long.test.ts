// A text of 3 GB, by the built command: what it costs to make tokens of it, what is seen meanwhile,
// and what a kill in the middle leaves.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { dataParts } from '../src/data/data-parts.js';
import { tokenize } from '../src/data/tokenize.js';
import { buildCommand } from './support/build-command.js';
import { writeLargeText } from './support/large-text.js';

const GIGABYTE = 1e9;
const BYTES = 3 * GIGABYTE;
/** A piece of it is enough to tell the rate of a tokenizer that takes minutes for the whole. */
const GPT2_BYTES = 32e6;
/** The units of a process' times in /proc, on every Linux. */
const TICKS_PER_SECOND = 100;
const MINUTES = 60_000;

const scratch = mkdtempSync(join(tmpdir(), 'text-size-'));
const data = join(scratch, 'large.txt');
const cache = join(scratch, 'cache');
let entry = '';
beforeAll(async () => {
  entry = await buildCommand();
  writeLargeText(data, BYTES);
}, 10 * MINUTES);
afterAll(() => rmSync(scratch, { recursive: true }));

const tell = (text: string) => process.stdout.write(`${text}\n`);

interface Seen {
  readonly line: string;
  /** The processor time of all threads, and the most resident memory, up to this line. */
  readonly cpuSeconds: number;
  readonly residentBytes: number;
}

/** Trains one step on the text; `onLine` sees each line about its tokens. */
async function train(onLine: (seen: Seen, kill: () => void) => void) {
  const flags = `--data ${data} --cache ${cache} --model nano --tokenizer byte --batch 2 --steps 1 --strategy single --device cpu --threads 1`;
  const child = spawn(process.execPath, [entry, 'train', ...flags.split(' ')], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const closed = once(child, 'close') as Promise<[number | null, string | null]>;
  let out = '';
  child.stdout.on('data', (text) => (out += text));
  const seen: Seen[] = [];
  for await (const line of createInterface(child.stderr)) {
    if (/ of .* \| tokens of /.test(line)) {
      const status = readFileSync(`/proc/${child.pid}/status`, 'utf8');
      const stat = readFileSync(`/proc/${child.pid}/stat`, 'utf8').split(') ')[1]!.split(' ');
      const cpuSeconds = (Number(stat[11]) + Number(stat[12])) / TICKS_PER_SECOND;
      const residentBytes = Number(/VmHWM:\s*(\d+)/.exec(status)![1]) * 1024;
      seen.push({ line, cpuSeconds, residentBytes });
      onLine(seen.at(-1)!, () => child.kill('SIGKILL'));
    }
  }
  const [code, signal] = await closed;
  return { code, signal, out, seen };
}

const held = (name: string) => readdirSync(join(cache, name));

it(
  'becomes tokens in a minute of processor time a gigabyte and 700 MB, also after a kill',
  async () => {
    const killed = await train(({ line }, kill) => {
      if (line.startsWith('1.')) {
        kill();
      }
    });
    expect(killed.signal).toBe('SIGKILL');
    expect(held('tokens')).toEqual([]);
    expect(held('sessions')).toHaveLength(1);

    const whole = await train(() => {});
    expect(whole.code).toBe(0);
    expect(whole.out).toMatch(/step +1\/1 /);
    const [first, last] = [whole.seen[0]!, whole.seen.at(-1)!];
    // The first line comes before a byte is read, and when the command has done little else.
    expect(first.line).toBe(`0 B of 2.8 GiB | tokens of ${data}`);
    expect(first.cpuSeconds).toBeLessThan(2);
    expect(last.line).toBe(`2.8 GiB of 2.8 GiB | tokens of ${data}`);
    expect(whole.seen.length).toBeGreaterThan(9);
    const perGigabyte = (last.cpuSeconds - first.cpuSeconds) / (BYTES / GIGABYTE);
    expect(perGigabyte).toBeLessThan(60);
    expect(last.residentBytes).toBeLessThan(700e6);
    expect(held('tokens')).toHaveLength(1);
    expect(held('sessions')).toEqual([]);

    const again = await train(() => {});
    expect(again.code).toBe(0);
    expect(again.seen).toEqual([]);
    tell(
      `byte tokenizer: ${perGigabyte.toFixed(1)} s of processor time a GB, ${Math.round(last.residentBytes / 1e6)} MB resident, first line after ${first.cpuSeconds.toFixed(2)} s of it`,
    );
  },
  20 * MINUTES,
);

it(
  "has a rate with GPT-2's tokenizer, which is told",
  async () => {
    const file = join(scratch, 'part.txt');
    writeLargeText(file, GPT2_BYTES);
    const part = join(scratch, 'part');
    const before = process.cpuUsage();
    const data = dataParts(file)[0]!;
    const job = { flag: '--data', data, tokenizer: 'gpt2', tokenizerDirectory: undefined } as const;
    await tokenize({ ...job, part }, () => {});
    const { user, system } = process.cpuUsage(before);
    const rate = GPT2_BYTES / (user + system);
    tell(`GPT-2's tokenizer: ${rate.toFixed(2)} MB a second of processor time`);
    expect(rate).toBeGreaterThan(0.5);
  },
  10 * MINUTES,
);
