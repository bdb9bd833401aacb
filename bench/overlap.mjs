// How much of a delay in every collective a training step hides. It runs the built trainer with and
// without the delay in turn. The hidden share is 1 - (T_delay - T_0) / sum of delays, once over all
// collectives and once over those that computation can cover.
// Usage: node bench/overlap.mjs [--delay 100] [--rounds 3] [--steps 8] [--report FILE]
//   [-- trainer flags]

import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import os from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const TRAINER = fileURLToPath(new URL('../apps/trainer/dist/main.js', import.meta.url));
// The first steps learn the order of units, fill pools and compile.
const WARM_UP_STEPS = 3;
// Four collectives of a step cannot be hidden. Before the first gather there is only the
// optimizer's step. After the last unit's reduction nothing of backward is left. The sum of the
// norm waits for that reduction, and the optimizer waits for the sum. The sum of the loss comes at
// the end. The schedule is in overlap.test.ts of fsdp.
const NUM_BARE = 4;

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    delay: { type: 'string', default: '100' },
    rounds: { type: 'string', default: '3' },
    steps: { type: 'string', default: '8' },
    report: { type: 'string' },
  },
});
const delayMs = Number(flags.delay);
const steps = Number(flags.steps);
const trainerFlags =
  positionals.length > 0
    ? positionals
    : ['--model', 'mini', '--ranks', '2', '--device', 'cpu', '--transport', 'memory'];

const record = await startRecord('bench/overlap.mjs');
const plain = [];
const delayed = [];
let calls = 0;
for (let round = 0; round < Number(flags.rounds); round++) {
  plain.push(...run(0).stepMs);
  const slow = run(delayMs);
  delayed.push(...slow.stepMs);
  calls = slow.callsPerStep;
}
await endRecord(record);
Object.assign(record, {
  trainerFlags,
  rounds: Number(flags.rounds),
  calls,
  delayMs,
  bareCalls: Math.min(calls, NUM_BARE),
  plain: timesOf(plain),
  delayed: timesOf(delayed),
});
publish(flags.report, reportText(), record);

function reportText() {
  const totalMs = calls * delayMs;
  const bareMs = record.bareCalls * delayMs;
  const percent = (share) => `${(100 * share).toFixed(0)} %`;
  const rows = ['best', 'median'].map((which) => {
    const [t0, t1] = [record.plain[which], record.delayed[which]];
    const exposedMs = t1 - t0;
    return [
      which,
      ...[t0, t1, exposedMs].map((ms) => `${ms.toFixed(0)} ms`),
      percent(1 - exposedMs / totalMs),
      percent(1 - (exposedMs - bareMs) / (totalMs - bareMs)),
    ];
  });
  return [
    headOf('Overlap', record),
    `Trainer: \`${trainerFlags.join(' ')}\`. ${flags.rounds} rounds, in each a run without delays and one with them; ${record.plain.rounds} steps of each, after ${WARM_UP_STEPS} of a run's warm-up. ${calls} collectives a step, each delayed by ${delayMs} ms: ${totalMs} ms. Nothing covers ${record.bareCalls} of them: the first gather, the last reduction, the sums of norm and loss.`,
    table(
      ['', 'step without', 'step with', 'exposed', 'hidden of all', 'hidden of what can be'],
      rows,
    ),
  ].join('\n\n');
}

function run(delay) {
  const folder = mkdtempSync(join(os.tmpdir(), 'shardweave-overlap-'));
  const out = join(folder, 'run');
  const args = [
    TRAINER,
    'train',
    ...trainerFlags,
    '--steps',
    steps,
    '--inject-delay-ms',
    delay,
    '--out',
    out,
    '--quiet',
  ];
  const { status, stderr } = spawnSync(process.execPath, args.map(String), { encoding: 'utf8' });
  if (status !== 0) {
    throw new Error(`the trainer ended with ${status}: ${stderr.slice(-500)}`);
  }
  const metrics = readFileSync(join(out, 'metrics.jsonl'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  const [rank] = JSON.parse(readFileSync(join(out, 'summary.json'), 'utf8')).ranks;
  rmSync(folder, { recursive: true });
  return {
    stepMs: metrics.slice(WARM_UP_STEPS).map(({ stepMs }) => stepMs),
    callsPerStep: (rank.allGathers + rank.reduceScatters + rank.allReduces) / steps,
  };
}
