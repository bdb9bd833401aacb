// What an elastic job costs, and how soon it goes on. Ranks are processes over ws, one of which at
// a time is killed, or stopped, or threads over shm, one of which is ended by the thread that has
// started it; the time is taken from then to the end of the next step. While nothing
// changes a step is set beside one of the same job that is not elastic: whole commands in turns
// with few and with more steps, in processor time of all ranks, and the bytes that rank 0 sent. It
// needs the built packages.
// Usage: node bench/elastic.mjs [--model nano] [--ranks 4] [--kills 10] [--stops 5]
//   [--few 10] [--many 60] [--rounds 5] [--report FILE]

import { spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { COMMAND, secondsOf } from './figures/command-time.mjs';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const flags = flagsOf({
  model: 'nano',
  ranks: '4',
  kills: '10',
  stops: '5',
  few: '10',
  many: '60',
  rounds: '5',
  report: undefined,
});
const record = await startRecord('bench/elastic.mjs');
const scratch = join(import.meta.dirname, '.shardweave');
mkdirSync(scratch, { recursive: true });
const folder = mkdtempSync(join(scratch, 'elastic-'));
const COMMON = `train --model ${flags.model} --strategy ddp --device cpu --threads 1 --ranks ${flags.ranks} --gradient-groups 8`;
/** The signals that ranks or, for threads, the command get, and how often. */
const LOSSES = {
  ws: { SIGKILL: Number(flags.kills), SIGSTOP: Number(flags.stops) },
  shm: { SIGURG: Number(flags.kills) },
};
/** The milliseconds to the end of the next step, by how a rank was lost. */
const recoveries = { SIGKILL: [], SIGSTOP: [], SIGURG: [] };
const WORDS = {
  SIGKILL: 'over ws gets SIGKILL',
  SIGSTOP: 'over ws gets SIGSTOP',
  SIGURG: 'over shm is ended by terminate()',
};
const undisturbed = { elastic: [], fixed: [] };
const bytes = {};
/** Those of a step, by the transport. */
const stepMs = {};
try {
  for (const transport of Object.keys(LOSSES)) {
    await recover(transport);
  }
  for (let round = 0; round < Number(flags.rounds); round++) {
    for (const [name, samples] of Object.entries(undisturbed)) {
      const few = await milliseconds(name, flags.few);
      const many = await milliseconds(name, flags.many);
      samples.push((many - few) / (Number(flags.many) - Number(flags.few)));
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
await endRecord(record);
Object.assign(record, { flags, recoveries, undisturbed, bytes, stepMs });
publish(flags.report, report(), record);

/** Kills and stops ranks of a job, which gets another one each time. */
async function recover(transport) {
  const out = join(folder, `run-${transport}`);
  const losses = Object.entries(LOSSES[transport]);
  const numLosses = losses.reduce((sum, [, count]) => sum + count, 0);
  const line = `${COMMON} --elastic --transport ${transport} --steps 1000000 --schedule constant --out ${out} --max-restarts ${numLosses}`;
  const before = ['--import', new URL('elastic/end-thread.mjs', import.meta.url).href];
  const args = [...(transport === 'shm' ? before : []), COMMAND, ...line.split(' ')];
  const job = spawn(process.execPath, args, { stdio: 'ignore' });
  try {
    await until(() => (steps(out).at(-1)?.step ?? 0) >= 20);
    stepMs[transport] = timesOf(
      steps(out)
        .slice(10)
        .map((step) => step.stepMs),
    ).median;
    for (const [signal, count] of losses) {
      for (let i = 0; i < count; i++) {
        const ranks = transport === 'shm' ? [job.pid] : childrenOf(job.pid);
        const startMs = Date.now();
        process.kill(ranks[i % ranks.length], signal);
        const change = await found(() =>
          changes(out).find(({ atMs, lost }) => atMs >= startMs && lost),
        );
        const next = await found(() => steps(out).find(({ step }) => step > change.step));
        recoveries[signal].push(next.atMs - startMs);
        await found(() => changes(out).find((other) => other.epoch > change.epoch && other.came));
        await delay(500);
      }
    }
  } finally {
    job.kill('SIGTERM');
    await new Promise((resolve) => job.once('close', resolve));
  }
}

/** The milliseconds of processor time that a command takes, all ranks and threads in it. */
async function milliseconds(name, count) {
  const out = join(folder, `${name}-${count}`);
  rmSync(out, { recursive: true, force: true });
  const how = name === 'elastic' ? '--elastic --save-every 1000000' : '--transport ws';
  const line = `${COMMON} ${how} --products wasm --steps ${count} --out ${out}`;
  const ms = 1000 * (await secondsOf(line.split(' '), folder));
  bytes[name] = steps(out).at(-1).wireBytes;
  return ms;
}

function report() {
  const rows = Object.entries(recoveries).map(([signal, samples]) => {
    const { median } = timesOf(samples);
    const worst = Math.max(...samples);
    return [
      WORDS[signal],
      samples.length,
      ...[median, worst].map((ms) => `${(ms / 1000).toFixed(2)} s`),
    ];
  });
  const [elastic, fixed] = [undisturbed.elastic, undisturbed.fixed].map(
    (samples) => timesOf(samples).median,
  );
  const ratios = undisturbed.elastic.map((ms, i) => ms / undisturbed.fixed[i]);
  return [
    headOf('An elastic job', record),
    `Preset ${flags.model} with its own batch in 8 groups, ddp on ${flags.ranks} ranks, each a process of one thread, over ws, or a thread, over shm. A step of the job took ${stepMs.ws.toFixed(0)} ms over ws and ${stepMs.shm.toFixed(0)} ms over shm (medians).`,
    'From then to the end of the next step, by the time in its line:',
    table(['a rank', 'times', 'median', 'worst'], rows),
    `While nothing changes, processor time of all ranks a step, medians of ${flags.rounds} differences between commands of ${flags.many} and ${flags.few} steps, in turns: ${elastic.toFixed(1)} ms beside ${fixed.toFixed(1)} ms of the same job without --elastic; of pairs ${timesOf(ratios).median.toFixed(3)}. The first rank sent ${bytes.elastic} bytes in a step, beside ${bytes.fixed}.`,
  ].join('\n\n');
}

function steps(out) {
  return linesOf(join(out, 'metrics.jsonl'));
}

function changes(out) {
  return linesOf(join(out, 'events.jsonl')).filter(({ type }) => type === 'members');
}

function linesOf(path) {
  const lines = existsSync(path) ? readFileSync(path, 'utf8').split('\n') : [];
  return lines.slice(0, -1).map((line) => JSON.parse(line));
}

/** Linux alone tells them in this way. */
function childrenOf(pid) {
  return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ').map(Number);
}

async function until(isThere) {
  await found(() => isThere() || undefined);
}

async function found(find) {
  for (;;) {
    const value = find();
    if (value !== undefined) {
      return value;
    }
    await delay(20);
  }
}
