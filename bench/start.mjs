// What a run takes until its first step ends, and what its processes hold. It measures the time to
// the header and to the line of the first step, the processor time of all processes, and the most
// resident bytes of each process (VmHWM, so on Linux only) until the run ends with its saves and
// its sample. It needs the built packages.
// Usage: node bench/start.mjs [--case single,fsdp,offload,medium] [--report FILE]

import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const ROOT = join(import.meta.dirname, '..');
const POLL_MS = 50;
/** Linux counts processor time in /proc in clock ticks, of which a second has this many. */
const TICKS_PER_SECOND = 100;
/** How many seconds a start may take besides its first step. */
const MOST_START_SECONDS = 5;
const MEDIUM_BUDGET = 1_200_000_000;
/**
 * The budget, 16 bytes per element of gpt2-medium's largest layer and of two blocks, and Node with
 * its code.
 */
const MEDIUM_RESIDENT = MEDIUM_BUDGET + 1_240_000_000 + 300_000_000;
const SMALL = ['--model', 'gpt2', '--batch', '2', '--seq', '64', '--steps', '2'];

const CASES = {
  single: [...SMALL, '--strategy', 'single'],
  fsdp: [...SMALL, '--strategy', 'fsdp', '--ranks', '2', '--transport', 'ws'],
  offload: [...SMALL, '--strategy', 'offload', '--device-budget', '800000000'],
  medium: [
    ...[
      '--model',
      'gpt2-medium',
      '--batch',
      '1',
      '--seq',
      '32',
      '--steps',
      '2',
      '--save-every',
      '1',
    ],
    ...['--strategy', 'offload', '--device-budget', String(MEDIUM_BUDGET), '--offload-dir', 'REST'],
  ],
};

const flags = flagsOf({
  case: Object.keys(CASES).join(','),
  report: undefined,
});
const record = await startRecord('bench/start.mjs');
// The system's folder for temporary files may be in memory, so this one is used.
const scratch = join(import.meta.dirname, '.shardweave');
mkdirSync(scratch, { recursive: true });
const folder = mkdtempSync(join(scratch, 'start-'));
const runs = [];
try {
  for (const name of flags.case.split(',')) {
    const isTwice = name !== 'medium';
    runs.push({ name, cache: 'cold', ...(await run(name, 'cold')) });
    if (isTwice) {
      runs.push({ name, cache: 'warm', ...(await run(name, 'warm')) });
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
await endRecord(record);
Object.assign(record, { flags, runs });
publish(flags.report, report(), record);
const late = runs.filter(
  ({ name, startSeconds }) => name !== 'medium' && startSeconds > MOST_START_SECONDS,
);
if (late.length > 0) {
  console.error(`A start took more than ${MOST_START_SECONDS} s beside its first step.`);
  process.exitCode = 1;
}
const large = runs.filter(
  ({ name, residentBytes }) => name === 'medium' && Math.max(...residentBytes) > MEDIUM_RESIDENT,
);
if (large.length > 0) {
  console.error(`\`medium\` holds more than ${MEDIUM_RESIDENT / 1e6} MB.`);
  process.exitCode = 1;
}

/** Runs the command once. With the cache 'cold', tokens of earlier runs are deleted first. */
async function run(name, cache) {
  if (cache === 'cold') {
    rmSync(join(folder, 'cache'), { recursive: true, force: true });
  }
  const out = join(folder, 'run');
  const args = CASES[name].map((arg) => (arg === 'REST' ? join(folder, 'rest') : arg));
  const where = ['--device', 'cpu', '--cache', join(folder, 'cache'), '--out', out];
  const start = performance.now();
  const child = spawn(process.execPath, ['apps/trainer/dist/main.js', 'train', ...args, ...where], {
    cwd: ROOT,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let code;
  child.on('exit', (value) => {
    code = value ?? 1;
  });
  const seen = {};
  const note = (phase) => {
    seen[phase] ??= {
      seconds: (performance.now() - start) / 1000,
      cpuSeconds: cpuSecondsOf(child.pid),
    };
  };
  child.stdout.on('data', (chunk) => {
    const text = String(chunk);
    if (text.includes('model')) {
      note('header');
    }
    if (text.includes('step 1/')) {
      note('step');
    }
  });
  const most = new Map();
  while (code === undefined) {
    for (const pid of [child.pid, ...childrenOf(child.pid)]) {
      const kilobytes = /VmHWM:\s+(\d+)/.exec(read(pid, 'status'))?.[1];
      if (kilobytes !== undefined) {
        most.set(pid, Number(kilobytes) * 1024);
      }
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
  if (code !== 0) {
    throw new Error(`${name} ended with ${code}.`);
  }
  const [first] = readFileSync(join(out, 'metrics.jsonl'), 'utf8').split('\n', 1);
  const stepSeconds = JSON.parse(first).stepMs / 1000;
  rmSync(out, { recursive: true });
  const { header, step } = seen;
  const residentBytes = [...most].sort(([a], [b]) => a - b).map(([, bytes]) => bytes);
  return { header, step, stepSeconds, startSeconds: step.seconds - stepSeconds, residentBytes };
}

function cpuSecondsOf(pid) {
  const ticks = [pid, ...childrenOf(pid)].map((one) => {
    const fields = read(one, 'stat').split(') ')[1]?.split(' ') ?? [];
    return Number(fields[11] ?? 0) + Number(fields[12] ?? 0);
  });
  return ticks.reduce((sum, each) => sum + each, 0) / TICKS_PER_SECOND;
}

function childrenOf(parent) {
  const isChild = (pid) => new RegExp(`^PPid:\\s+${parent}$`, 'm').test(read(pid, 'status'));
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && isChild(name))
    .map(Number);
}

function read(pid, file) {
  try {
    return readFileSync(`/proc/${pid}/${file}`, 'utf8');
  } catch {
    return ''; // the process has ended
  }
}

function report() {
  const s = (value) => `${value.toFixed(1)} s`;
  const body = runs.map(
    ({ name, cache, header, step, stepSeconds, startSeconds, residentBytes }) => [
      `${name}, ${cache}`,
      s(header.seconds),
      s(header.cpuSeconds),
      s(step.seconds),
      s(step.cpuSeconds),
      s(stepSeconds),
      s(startSeconds),
      residentBytes.map((bytes) => (bytes / 1e6).toFixed(0)).join(' + '),
    ],
  );
  const head = [
    ...[
      'run, tokens',
      'header',
      'processor time',
      'end of step 1',
      'processor time',
      'step 1 itself',
    ],
    ...['before it', 'VmHWM of processes, MB'],
  ];
  return [
    headOf('From command to first step, and what is resident', record),
    `GPT-2 124M with 2 x 64 tokens; \`medium\` is gpt2-medium at rest on disk with a budget of ${MEDIUM_BUDGET / 1e6} MB and a save each step. Seconds from the start of the command; the first process is the command's. At most ${MOST_START_SECONDS} s may lie before the first step. Resident bytes are the most to the end of the run, with its model directory and sample.`,
    table(head, body),
    `The bound of \`medium\` is ${MEDIUM_RESIDENT / 1e6} MB: its budget, host buffers of 16 bytes an element of the largest layer and of two blocks (1.24 GB), and 300 MB.`,
  ].join('\n\n');
}
