// What sharding costs in the trainer's command: the processor time of a step over two ranks, beside
// that of one process. All runs are started and warmed up, and then take turns of some seconds,
// while the others are stopped by a signal: so each has its share of a noisy machine's hours, and
// none is measured while V8 still compiles it. It needs the built packages, and Linux.
// Usage: node bench/trainer-turns.mjs [--shape micro] [--kinds single,memory,shm,ws]
//   [--products wasm] [--warm 400] [--rounds 20] [--seconds 3] [--report FILE]

import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { COMMAND } from './figures/command-time.mjs';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

/** A GPT-2 of 26M parameters. */
const CONFIG = {
  model_type: 'gpt2',
  ...{ n_layer: 8, n_embd: 512, n_head: 8, n_positions: 256, vocab_size: 1024 },
  ...{ activation_function: 'gelu_new', tie_word_embeddings: true },
};
/** How often it looks for the line of the step that ends a turn. */
const POLL_MS = 2;

const flags = flagsOf({
  shape: 'micro',
  kinds: 'single,memory,shm,ws',
  products: 'wasm',
  warm: '400',
  rounds: '20',
  seconds: '3',
  report: undefined,
});
const folder = mkdtempSync(join(tmpdir(), 'trainer-turns-'));
writeFileSync(join(folder, 'config.json'), JSON.stringify(CONFIG));
const SHAPES = {
  micro: ['--model', 'micro', '--batch', '16', '--seq', '64'],
  '26m': ['--model', folder, '--tokenizer', 'byte', '--batch', '4', '--seq', '256'],
};
const record = await startRecord('bench/trainer-turns.mjs');
const runs = [];
// A run that is stopped would stay for good where this bench is ended from outside.
process.on('exit', endAll);
for (const [name, code] of Object.entries({ SIGINT: 130, SIGTERM: 143, SIGHUP: 129 })) {
  process.once(name, () => process.exit(code));
}
try {
  for (const kind of flags.kinds.split(',')) {
    const run = begin(kind);
    runs.push(run);
    while (stepsOf(run) < Number(flags.warm)) {
      await sleep(100);
    }
    signal(run, 'SIGSTOP');
  }
  for (let round = 0; round < Number(flags.rounds); round++) {
    for (const run of round % 2 === 0 ? runs : runs.toReversed()) {
      run.turns.push(await turn(run));
    }
  }
} finally {
  endAll();
}
await endRecord(record);
const [first] = runs;
const rows = runs.map(({ kind, turns }) => {
  const ratios = turns.map(({ ms }, i) => ms / first.turns[i].ms);
  const steps = turns.reduce((sum, own) => sum + own.steps, 0);
  const { median: ms } = timesOf(turns.map((own) => own.ms));
  const { median: mainMs } = timesOf(turns.map((own) => own.mainMs));
  return { kind, steps, ms, ratio: timesOf(ratios).median, mainMs };
});
Object.assign(record, { flags, rows });
publish(flags.report, report(), record);

function endAll() {
  for (const run of runs) {
    signal(run, 'SIGKILL');
  }
  rmSync(folder, { recursive: true, force: true });
}

function begin(kind) {
  const out = join(folder, kind);
  const ranks =
    kind === 'single'
      ? ['--strategy', 'single']
      : ['--strategy', 'fsdp', '--ranks', '2', '--transport', kind];
  const how = ['--device', 'cpu', '--threads', '1', '--products', flags.products, '--quiet'];
  const args = [COMMAND, 'train', ...SHAPES[flags.shape], ...how, '--steps', '1000000'];
  const child = spawn(process.execPath, [...args, ...ranks, '--out', out], {
    detached: true, // a group of its own, which is stopped as a whole
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  return { kind, child, metrics: join(out, 'metrics.jsonl'), turns: [] };
}

/** Lets a run go on for some seconds, until a step ends. It is stopped before and after. */
async function turn(run) {
  const [before, from] = [processorMs(run), stepsOf(run)];
  const endMs = performance.now() + Number(flags.seconds) * 1000;
  signal(run, 'SIGCONT');
  await sleep(endMs - performance.now());
  const { size } = statSync(run.metrics);
  while (
    statSync(run.metrics).size === size &&
    run.child.exitCode === null &&
    run.child.signalCode === null
  ) {
    await sleep(POLL_MS);
  }
  signal(run, 'SIGSTOP');
  const [after, steps] = [processorMs(run), stepsOf(run) - from];
  const [ms, mainMs] = ['all', 'main'].map((key) => (after[key] - before[key]) / steps);
  return { steps, ms, mainMs };
}

function stepsOf({ kind, child, metrics }) {
  const ended = child.exitCode ?? child.signalCode;
  if (ended !== null) {
    throw new Error(`${kind} ended with ${ended}`);
  }
  return read(metrics).split('\n').length - 1;
}

function signal({ child }, name) {
  try {
    process.kill(-child.pid, name);
  } catch {
    // It has ended.
  }
}

/** The processor time of all threads of a run's processes, and of their main threads. */
function processorMs({ child }) {
  const sums = { all: 0, main: 0 };
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    const [, , group] = read(`/proc/${pid}/stat`).split(') ').at(-1).split(' ');
    if (Number(group) !== child.pid) {
      continue;
    }
    for (const thread of readdirSync(`/proc/${pid}/task`)) {
      const ms = Number(read(`/proc/${pid}/task/${thread}/schedstat`).split(' ')[0]) / 1e6;
      sums.all += ms;
      sums.main += thread === pid ? ms : 0;
    }
  }
  return sums;
}

function read(file) {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return ''; // it is not there yet, or its process has ended
  }
}

function report() {
  const body = rows.map(({ kind, steps, ms, ratio, mainMs }) => [
    ...[kind, steps, ms.toFixed(1), ratio.toFixed(3), mainMs.toFixed(1)],
  ]);
  return [
    headOf(`The trainer's step, single and sharded, ${flags.shape}`, record),
    `Processor time of all threads, of one compute thread a rank and ${flags.products} products, after ${flags.warm} steps. ${flags.rounds} turns of ${flags.seconds} s of each; medians. In shm ranks are threads, which main threads don't show.`,
    table(['', 'steps', 'ms a step', 'beside the first, of turns', 'of main threads'], body),
  ].join('\n\n');
}
