// Measures matrix products and the training step of a small GPT beside other engines in one run.
// Every engine is a process; all of them stay open and are timed in turn. It reports best and
// median times, and ratios. The task lora takes a shape of bench/shapes with adapters on all linear
// layers, for engines that can do that:
//   node bench/run.mjs --tasks lora --shape smollm2-135m --engines shardweave-cpu,torch
//   node bench/run.mjs --tasks lora --shape smollm2-135m --engines base-bf16,base-q8_0,base-q4_0
// Usage: node bench/run.mjs [--tasks matmul,step] [--model small|26m|124m] [--shape NAME]
//   [--engines a,b] [--rounds N] [--report FILE]

import { readFileSync } from 'node:fs';
import { interleave } from './engines/interleave.mjs';
import { openEngine } from './engines/open-engine.mjs';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord } from './figures/record.mjs';
import { table } from './figures/table.mjs';
import { MODELS, parameterCount } from './gpt-shape.mjs';

const SIZES = [256, 512, 1024];
/**
 * Adapters on all linear layers: their rank, the rows and tokens of a step, and the learning rate.
 */
const LORA = { rank: 16, shape: [2, 256], lr: 1e-4 };
const LAYOUTS = ['NN', 'NT', 'TN'];
/**
 * An engine whose samples of a product have taken this long gets no further one after its third.
 */
const MAX_TASK_MS = 8000;

/** Debian's Python, for which its python3-torch is made. */
const PYTHON = '/usr/bin/python3';
const ENGINES = {
  'shardweave-cpu': ['node', 'engines/shardweave.mjs', 'cpu', '2'],
  'shardweave-cpu-1': ['node', 'engines/shardweave.mjs', 'cpu', '1'],
  // By a library of the machine; and in wasm as a program gets it on Node 20 without a flag.
  'shardweave-native': ['node', 'engines/shardweave.mjs', 'cpu', '2', 'native'],
  'shardweave-native-1': ['node', 'engines/shardweave.mjs', 'cpu', '1', 'native'],
  'shardweave-plain-1': ['node', 'engines/shardweave.mjs', 'cpu', '1', 'plain'],
  'jax-wasm': ['node', 'engines/jax.mjs', 'wasm'],
  'tfjs-wasm': ['node', 'engines/tfjs.mjs', 'wasm'],
  // Either of the next two may be the faster one, depending on the machine.
  torch: [PYTHON, 'engines/pytorch.py', '2'],
  'torch-1': [PYTHON, 'engines/pytorch.py', '1'],
  'shardweave-webgpu': ['node', 'engines/shardweave.mjs', 'webgpu'],
  'jax-webgpu': ['node', 'engines/jax.mjs', 'webgpu'],
  'tfjs-webgpu': ['node', 'engines/tfjs.mjs', 'webgpu'],
};

/** For the task lora alone: a base of each type, one thread, in bf16. */
const BASES = Object.fromEntries(
  ['bf16', 'q8_0', 'q4_0', 'q4_K'].map((type) => [
    `base-${type}`,
    ['node', 'engines/shardweave.mjs', 'cpu', '1', 'wasm', type],
  ]),
);

const flags = flagsOf({
  tasks: 'matmul,step',
  engines: Object.keys(ENGINES).join(','),
  model: 'small',
  shape: 'smollm2-135m',
  rounds: '10',
  report: undefined,
});

const rounds = Number(flags.rounds);
const model = MODELS[flags.model];
const ENVIRONMENT = { BENCH_MODEL: flags.model, BENCH_SHAPE: JSON.stringify(model) };
const record = await startRecord('bench/run.mjs');
const engines = [];
for (const key of flags.engines.split(',')) {
  const command = ENGINES[key] ?? BASES[key];
  const env = { ...ENVIRONMENT, ...(command[0] === PYTHON && threadsOfLibraries(command[2])) };
  const engine = await openEngine(key, { command, env });
  if (engine !== undefined) {
    engines.push(engine);
  }
}
const rows = [];
for (const task of listTasks()) {
  const mostMs = task.task === 'matmul' ? MAX_TASK_MS : Number.POSITIVE_INFINITY;
  rows.push(await interleave(engines, task, { rounds, mostMs }));
}
for (const engine of engines) {
  engine.close();
}
await endRecord(record);
Object.assign(record, {
  rounds,
  engines: engines.map(({ key, name }) => ({ key, name })),
  rows,
});
publish(flags.report, report(), record);

/** PyTorch's products are by libraries that have threads of their own, which it does not set. */
function threadsOfLibraries(count) {
  return { OPENBLAS_NUM_THREADS: count, OMP_NUM_THREADS: count };
}

function listTasks() {
  const wanted = flags.tasks.split(',');
  const matmuls = LAYOUTS.flatMap((layout) => SIZES.map((n) => ({ task: 'matmul', layout, n })));
  return [
    ...(wanted.includes('matmul') ? matmuls : []),
    ...(wanted.includes('step') ? [{ task: 'step' }] : []),
    ...(wanted.includes('lora') ? [{ task: 'lora', ...LORA, config: shapeConfig() }] : []),
  ];
}

function shapeConfig() {
  const file = new URL(`shapes/${flags.shape}/config.json`, import.meta.url);
  return JSON.parse(readFileSync(file, 'utf8'));
}

function report() {
  const keys = engines.map(({ key }) => key);
  const parts = [
    headOf('Engines', record),
    `${rounds} rounds, in each all engines in turn (a product that took ${MAX_TASK_MS / 1000} s in fewer of them has no more); one process an engine, all in one run. PyTorch runs with OMP_WAIT_POLICY=PASSIVE, without which its two threads wait at the cost of each other, and with its libraries' threads set to its own number.`,
    engines.map(({ key, name }) => `- ${key}: ${name}`).join('\n'),
  ];
  const products = rows.filter(({ task }) => task === 'matmul');
  for (const which of products.length > 0 ? ['best', 'median'] : []) {
    const body = products.map(({ layout, n, times }) => [
      `${layout} ${n}`,
      ...keys.map((key) =>
        times[key] === undefined ? '-' : ((2 * n ** 3) / times[key][which] / 1e6).toFixed(1),
      ),
    ]);
    parts.push(`## f32 matrix product, GFLOP/s, ${which}`, table(['layout, size', ...keys], body));
  }
  for (const { task, times } of rows.filter(({ task }) => task !== 'matmul')) {
    const ours = ['shardweave-cpu', 'shardweave-native', 'shardweave-webgpu', 'base-bf16'].filter(
      (key) => times[key],
    );
    const head = ['engine', 'best, ms', 'median, ms', 'processor time, ms'];
    for (const key of ours) {
      head.push(`best over ${key}'s`, `median over ${key}'s`);
    }
    const body = Object.entries(times).map(([key, { best, median, processorMs }]) => [
      key,
      best.toFixed(0),
      median.toFixed(0),
      processorMs.toFixed(0),
      ...ours.flatMap((own) => [
        (best / times[own].best).toFixed(2),
        (median / times[own].median).toFixed(2),
      ]),
    ]);
    const title =
      task === 'lora'
        ? [
            `## LoRA step of ${flags.shape}`,
            `Random f32 weights, frozen; adapters of rank ${LORA.rank} on all linear layers, ${LORA.shape.join(' x ')} tokens, forward, backward, AdamW.`,
          ]
        : [
            '## Training step of a small GPT',
            `${parameterCount(model).toLocaleString('en-US')} f32 parameters, batch ${model.batch} x ${model.seq} tokens, forward, backward, AdamW.`,
          ];
    parts.push(...title, table(head, body));
  }
  return parts.join('\n\n');
}
