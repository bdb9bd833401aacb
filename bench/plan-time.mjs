// What `plan` predicts for the time of a step, beside the time that it takes. The bench runs some
// commands with --check, which times the kernels of the dry step and the link once the run is over,
// in several rounds. It fails where the prediction differs from the median of a run's steps by more
// than a quarter. It needs the built packages.
// Usage: node bench/plan-time.mjs [--rounds 2] [--steps 8] [--only NAME] [--script FILE]
//   [--report FILE]

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const MOST_PERCENT = 25;
/** The first steps fill pools and compile, so they are not timed. */
const UNTIMED_STEPS = 2;
const ROOT = join(import.meta.dirname, '..');
const TEXT = join(ROOT, 'tooling/reference/data/tiny/text.txt');

/** Models of 29 M and 27 M parameters in the shapes of their families. */
const MODELS = {
  gpt2: {
    ...{ model_type: 'gpt2', vocab_size: 8192, n_positions: 256 },
    ...{ n_embd: 512, n_layer: 8, n_head: 8 },
  },
  llama: {
    ...{ model_type: 'llama', vocab_size: 8192, hidden_size: 512, intermediate_size: 1376 },
    ...{ num_hidden_layers: 8, num_attention_heads: 8, num_key_value_heads: 4 },
    ...{ max_position_embeddings: 256, rms_norm_eps: 1e-5, rope_theta: 10000 },
    ...{ tie_word_embeddings: false, hidden_act: 'silu' },
  },
};

const RUNS = {
  'GPT-2 124M, single': '--model gpt2 --strategy single --batch 2 --seq 64',
  'GPT-2, single, checkpointing': '--strategy single --checkpoint-activations --batch 4 --seq 128',
  'GPT-2, fsdp on 2 ranks over ws': '--ranks 2 --transport ws --batch 8 --seq 128',
  'GPT-2, offload': '--strategy offload --batch 4 --seq 128',
  'Llama, fsdp on 2 ranks over memory': '--model llama --ranks 2 --batch 8 --seq 128',
  'Llama, ddp on 2 ranks over memory': '--model llama --strategy ddp --ranks 2 --batch 8 --seq 128',
  'Llama, single in bf16': '--model llama --strategy single --precision bf16 --batch 4 --seq 128',
};

const flags = flagsOf({
  rounds: '2',
  steps: '8',
  only: '',
  script: 'apps/trainer/dist/main.js',
  report: undefined,
});
const record = await startRecord('bench/plan-time.mjs');
const scratch = join(import.meta.dirname, '.shardweave');
mkdirSync(scratch, { recursive: true });
const folder = mkdtempSync(join(scratch, 'plan-time-'));
const runs = Object.entries(RUNS)
  .filter(([name]) => name.includes(flags.only))
  .map(([name, line]) => ({ name, line, planned: [], taken: [] }));
try {
  for (const [name, config] of Object.entries(MODELS)) {
    mkdirSync(join(folder, name));
    writeFileSync(join(folder, name, 'config.json'), JSON.stringify(config));
  }
  for (let round = 0; round < Number(flags.rounds); round++) {
    for (const run of runs) {
      const { planned, taken } = await train(run.line);
      run.planned.push(planned);
      run.taken.push(taken);
    }
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
await endRecord(record);
for (const run of runs) {
  run.percent = 100 * (median(run.planned) / median(run.taken) - 1);
}
Object.assign(record, { flags, runs });
publish(flags.report, report(), record);
if (runs.some(({ percent }) => Math.abs(percent) > MOST_PERCENT)) {
  console.error(`A planned time is more than ${MOST_PERCENT} % off.`);
  process.exitCode = 1;
}

/** Runs the command, and returns the milliseconds of a step as planned and as taken. */
async function train(line) {
  const out = join(folder, 'run');
  const model = /--model (llama)/.test(line)
    ? line.replace('--model llama', `--model ${join(folder, 'llama')}`)
    : line.includes('--model')
      ? line
      : `--model ${join(folder, 'gpt2')} ${line}`;
  const data = `--data ${TEXT} --tokenizer byte --cache ${join(folder, 'cache')}`;
  const args = `${model} ${data} --device cpu --quiet --check --steps ${flags.steps} --out ${out}`;
  const child = spawn(
    process.execPath,
    [resolve(ROOT, flags.script), 'train', ...args.split(' ')],
    {
      stdio: ['ignore', 'ignore', 'inherit'],
    },
  );
  const [code] = await once(child, 'exit');
  if (code !== 0) {
    throw new Error(`${line}: the run ended with ${code}`);
  }
  const { check } = JSON.parse(readFileSync(join(out, 'summary.json'), 'utf8'));
  const steps = readFileSync(join(out, 'metrics.jsonl'), 'utf8').trimEnd().split('\n');
  const ms = steps.slice(UNTIMED_STEPS).map((text) => JSON.parse(text).stepMs);
  rmSync(out, { recursive: true });
  return { planned: check[0].stepMs, taken: median(ms) };
}

function median(values) {
  return timesOf(values).median;
}

function report() {
  const ms = (values) => `${median(values).toFixed(0)} ms`;
  const rows = runs.map(({ name, planned, taken, percent }) => [
    name,
    ms(planned),
    ms(taken),
    `${percent >= 0 ? '+' : ''}${percent.toFixed(0)} %`,
  ]);
  const lines = runs.map(({ name, line }) => `- ${name}: \`${line}\``);
  return [
    headOf('Planned time of a step', record),
    `What \`--check\` plans a step to take beside the median of ${Number(flags.steps) - UNTIMED_STEPS} steps, medians of ${flags.rounds} rounds. GPT-2 and Llama without a size have 8 blocks of width 512 and a vocabulary of 8192. The bound is ${MOST_PERCENT} %.`,
    table(['a step', 'planned', 'taken', 'off by'], rows),
    lines.join('\n'),
  ].join('\n\n');
}
