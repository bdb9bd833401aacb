// How much of a delay injected into every collective a training step hides. Runs the built trainer
// with and without it in turn; hidden = 1 - (T_delay - T_0) / sum of delays, of all collectives and of
// those that computation can cover.
// Usage: node bench/overlap.mjs [--delay 100] [--rounds 3] [--report FILE] [-- trainer flags]

import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const TRAINER = fileURLToPath(new URL('../apps/trainer/dist/main.js', import.meta.url));
// The first steps learn the order of units, fill pools and compile.
const WARM_UP_STEPS = 3;
const STEPS = 8;
// Of one step: the first gather, before which there is only the optimizer's step; the last unit's
// reduction, after which there is nothing of backward; the sum of loss and norm, which waits for
// that, and for which the optimizer waits. overlap.test.ts of fsdp has the schedule.
const NUM_BARE = 3;

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    delay: { type: 'string', default: '100' },
    rounds: { type: 'string', default: '3' },
    report: { type: 'string' },
  },
});
const delayMs = Number(flags.delay);
const trainerFlags =
  positionals.length > 0
    ? positionals
    : ['--model', 'mini', '--ranks', '2', '--device', 'cpu', '--transport', 'memory'];

const plain = [];
const delayed = [];
let calls = 0;
for (let round = 0; round < Number(flags.rounds); round++) {
  plain.push(...run(0).stepMs);
  const slow = run(delayMs);
  delayed.push(...slow.stepMs);
  calls = slow.callsPerStep;
}
const [t0, t1] = [median(plain), median(delayed)];
const exposed = t1 - t0;
const total = calls * delayMs;
const bare = Math.min(calls, NUM_BARE) * delayMs;
const coverable = total - bare;
const percent = (share) => `${(100 * share).toFixed(0)} %`;
const lines = [
  `# Overlap of ${new Date().toISOString().slice(0, 10)}`,
  `${os.cpus().length} x ${os.cpus()[0].model}, Node ${process.version}. Median step of ${flags.rounds} interleaved runs each.`,
  `Command: \`node bench/overlap.mjs ${process.argv.slice(2).join(' ')}\`; trainer: \`${trainerFlags.join(' ')}\``,
  `Nothing covers ${NUM_BARE} collectives of a step: the first gather, the last reduction, the sum of loss and norm.`,
  `Load average at the end: ${os.loadavg()[0].toFixed(1)}.`,
  '| collectives a step | delay each | sum of delays | step without | step with | exposed | hidden of all | hidden of what can be |',
  '|---|---|---|---|---|---|---|---|',
  `| ${calls} | ${delayMs} ms | ${total} ms | ${t0.toFixed(0)} ms | ${t1.toFixed(0)} ms | ${exposed.toFixed(0)} ms | ${percent(1 - exposed / total)} | ${percent(1 - (exposed - bare) / coverable)} |`,
];
const text = `${lines.slice(0, 5).join('\n\n')}\n\n${lines.slice(5).join('\n')}\n`;
console.log(text);
if (flags.report !== undefined) {
  mkdirSync(dirname(flags.report), { recursive: true });
  writeFileSync(flags.report, text);
}

function run(delay) {
  const folder = mkdtempSync(join(os.tmpdir(), 'shardweave-overlap-'));
  const out = join(folder, 'run');
  const args = [
    TRAINER,
    ...trainerFlags,
    '--steps',
    STEPS,
    '--inject-delay-ms',
    delay,
    '--out',
    out,
    '--quiet',
  ];
  const { status, stderr } = spawnSync(process.execPath, args.map(String), { encoding: 'utf8' });
  if (status !== 0) throw new Error(`the trainer ended with ${status}: ${stderr.slice(-500)}`);
  const metrics = readFileSync(join(out, 'metrics.jsonl'), 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  const [rank] = JSON.parse(readFileSync(join(out, 'summary.json'), 'utf8')).ranks;
  rmSync(folder, { recursive: true });
  return {
    stepMs: metrics.slice(WARM_UP_STEPS).map(({ stepMs }) => stepMs),
    callsPerStep: (rank.allGathers + rank.reduceScatters + rank.allReduces) / STEPS,
  };
}

function median(list) {
  const sorted = [...list].sort((a, b) => a - b);
  return sorted[sorted.length >> 1];
}
