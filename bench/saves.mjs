// What saves cost. A run of GPT-2 124M that is saved every ten steps is compared with the same run
// without saves, in turn, over a span of steps that contains two saves. It also measures the rate
// of the disk. It fails where saves make a run more than five percent longer. It needs the built
// packages.
// Usage: node bench/saves.mjs [--model gpt2] [--batch 4] [--seq 128] [--rounds 2]
//   [--strategy single] [--ranks 1] [--report FILE]

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const EVERY = 10;
/**
 * The steps that are timed: from the fifth on, when pools are full, until two saves are written.
 */
const [FIRST, LAST] = [5, 25];
const MOST_PERCENT = 5;
const MIB = 2 ** 20;
const DISK_MIB = 1024;
const ROOT = join(import.meta.dirname, '..');

const flags = flagsOf({
  model: 'gpt2',
  batch: '4',
  seq: '128',
  rounds: '2',
  strategy: 'single',
  ranks: '1',
  report: undefined,
});
const record = await startRecord('bench/saves.mjs');
// The system's folder for temporary files may be in memory, so this one is used.
const scratch = join(import.meta.dirname, '.shardweave');
mkdirSync(scratch, { recursive: true });
const folder = mkdtempSync(join(scratch, 'saves-'));
const plain = [];
const saved = [];
const disk = [];
try {
  for (let round = 0; round < Number(flags.rounds); round++) {
    disk.push(await diskMibPerSecond());
    plain.push(await train(`plain-${round}`, []));
    saved.push(await train(`saved-${round}`, ['--save-every', String(EVERY), '--keep', '1']));
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
await endRecord(record);
const seconds = (runs) => timesOf(runs.map((run) => run.seconds));
const [without, withSaves] = [seconds(plain), seconds(saved)];
const percent = (withSaves.best / without.best - 1) * 100;
const saves = saved.flatMap((run) => run.saves);
Object.assign(record, { flags, plain, saved, disk, percent });
publish(flags.report, report(), record);
if (percent > MOST_PERCENT) {
  console.error(`A save every ${EVERY} steps makes a run more than ${MOST_PERCENT} % longer.`);
  process.exitCode = 1;
}

/**
 * Runs the command. Returns the seconds between two steps, and what it reported about its saves
 * between them.
 */
async function train(name, more) {
  const out = join(folder, name);
  const { model, batch, seq, strategy, ranks } = flags;
  const args = ['--model', model, '--tokenizer', 'byte', '--batch', batch, '--seq', seq];
  const where = ['--strategy', strategy, '--ranks', ranks, '--device', 'cpu', '--quiet'];
  const steps = ['--steps', String(LAST + 1), '--out', out];
  const child = spawn('npm', ['run', '-s', 'train', '--', ...args, ...where, ...steps, ...more], {
    cwd: ROOT,
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const [code] = await once(child, 'exit');
  if (code !== 0) {
    throw new Error(`the run ended with ${code}`);
  }
  const lines = (file) =>
    readFileSync(join(out, file), 'utf8')
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line));
  const metrics = lines('metrics.jsonl');
  const at = (step) => metrics.find((line) => line.step === step).atMs;
  const own = lines('events.jsonl')
    .filter(({ type, step }) => type === 'save' && step < LAST)
    .map(({ directory, ...figures }) => figures);
  rmSync(out, { recursive: true });
  return { seconds: (at(LAST) - at(FIRST)) / 1000, saves: own };
}

/** The rate of plain writes of one mebibyte each, with one sync after all of them. */
async function diskMibPerSecond() {
  const path = join(folder, 'rate');
  const bytes = new Uint8Array(MIB).fill(7);
  const start = performance.now();
  const file = await open(path, 'w');
  for (let i = 0; i < DISK_MIB; i++) {
    await file.write(bytes);
  }
  await file.sync();
  await file.close();
  const rate = (DISK_MIB * 1000) / (performance.now() - start);
  rmSync(path);
  return rate;
}

function report() {
  const steps = LAST - FIRST;
  const s = (value) => `${value.toFixed(1)} s`;
  const ms = (values) => timesOf(values).median.toFixed(0);
  const rows = [
    ['without saves', s(without.best), s(without.median), ''],
    [
      `a save every ${EVERY} steps`,
      s(withSaves.best),
      s(withSaves.median),
      `${percent.toFixed(1)} %`,
    ],
  ];
  const { model, strategy, ranks, batch, seq } = flags;
  return [
    headOf('Saves beside steps', record),
    `${model}, ${strategy} on ${ranks} rank${ranks === '1' ? '' : 's'} in f32, ${batch} rows of ${seq} tokens; ${steps} steps, ${flags.rounds} rounds in turn. The bound is ${MOST_PERCENT} % of the best.`,
    table([`${steps} steps`, 'best', 'median', 'more'], rows),
    `A save is ${(saves[0].bytes / MIB).toFixed(0)} MiB; steps waited ${ms(saves.map(({ waitMs }) => waitMs))} ms for it (median), at its start and before the update behind it, and it was whole after ${ms(saves.map((save) => save.ms))} ms. The disk takes ${timesOf(disk).median.toFixed(0)} MiB/s in writes of 1 MiB with one sync behind ${DISK_MIB} of them.`,
  ].join('\n\n');
}
