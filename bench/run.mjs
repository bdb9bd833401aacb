// Measures matrix products and a small GPT's training step against the field, in one run: every
// engine is a process of its own, all of them kept open, timed in turn. Best and median times, and ratios.
// The task lora takes a shape of bench/shapes with adapters on all linear layers, for engines that have it:
//   node bench/run.mjs --tasks lora --shape smollm2-135m --engines shardweave-cpu,torch
// Usage: node bench/run.mjs [--tasks matmul,step] [--model small|26m|124m] [--shape NAME] [--engines a,b]
//   [--rounds N] [--report FILE]

import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';
import { MODELS, parameterCount } from './gpt-shape.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const SIZES = [256, 512, 1024];
/** Adapters on all linear layers: their rank, rows and tokens of a step, learning rate. */
const LORA = { rank: 16, shape: [2, 256], lr: 1e-4 };
const LAYOUTS = ['NN', 'NT', 'TN'];
// Long enough that a clock tick and one wake-up don't show.
const MIN_SAMPLE_MS = 80;
/** An engine whose samples of a task took this long has no further one, after three of them. */
const MAX_TASK_MS = 8000;
const LEAST_ROUNDS = 3;

const ENGINES = {
  'shardweave-cpu': ['node', 'engines/shardweave.mjs', 'cpu', '2'],
  'shardweave-cpu-1': ['node', 'engines/shardweave.mjs', 'cpu', '1'],
  'jax-wasm': ['node', 'engines/jax.mjs', 'wasm'],
  'tfjs-wasm': ['node', 'engines/tfjs.mjs', 'wasm'],
  // Which of the two is the faster differs from machine to machine.
  torch: ['python', 'engines/pytorch.py', '2'],
  'torch-1': ['python', 'engines/pytorch.py', '1'],
  'shardweave-webgpu': ['node', 'engines/shardweave.mjs', 'webgpu'],
  'jax-webgpu': ['node', 'engines/jax.mjs', 'webgpu'],
  'tfjs-webgpu': ['node', 'engines/tfjs.mjs', 'webgpu'],
};

const { values: flags } = parseArgs({
  options: {
    tasks: { type: 'string', default: 'matmul,step' },
    engines: { type: 'string', default: Object.keys(ENGINES).join(',') },
    model: { type: 'string', default: 'small' },
    shape: { type: 'string', default: 'smollm2-135m' },
    rounds: { type: 'string', default: '10' },
    report: { type: 'string' },
  },
});

const rounds = Number(flags.rounds);
const model = MODELS[flags.model];
const record = await startRecord('bench/run.mjs');
const engines = [];
for (const key of flags.engines.split(',')) {
  const engine = await open(key);
  if (engine !== undefined) {
    engines.push(engine);
  }
}
const rows = [];
for (const task of listTasks()) {
  rows.push(await measure(task));
}
for (const engine of engines) {
  engine.close();
}
await endRecord(record);
Object.assign(record, {
  rounds,
  engines: engines.map(({ key, name }) => ({ key, name })),
  rows,
  kernelBytes: kernelBytes(),
});
publish(flags.report, report(), record);

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

/** Interleaved: each round times every engine once. */
async function measure(task) {
  const samples = new Map();
  const repetitions = new Map();
  const processor = new Map();
  for (const engine of engines) {
    try {
      await engine.ask({ prepare: task });
      const { ms } = await engine.ask({ repetitions: 1 });
      repetitions.set(engine, Math.max(1, Math.ceil(MIN_SAMPLE_MS / ms)));
      samples.set(engine, []);
      processor.set(engine, []);
    } catch (error) {
      console.error(`${engine.key} ${JSON.stringify(task)}: ${error.message}`);
    }
  }
  for (let round = 0; round < rounds; round++) {
    for (const [engine, list] of samples) {
      const spentMs = repetitions.get(engine) * list.reduce((sum, ms) => sum + ms, 0);
      if (round >= LEAST_ROUNDS && task.task === 'matmul' && spentMs > MAX_TASK_MS) {
        continue;
      }
      const { ms, processorMs } = await engine.ask({ repetitions: repetitions.get(engine) });
      list.push(ms);
      processor.get(engine).push(processorMs);
    }
  }
  const times = Object.fromEntries(
    [...samples].map(([engine, list]) => {
      const processorMs = Math.min(...processor.get(engine));
      return [engine.key, { ...timesOf(list), processorMs }];
    }),
  );
  console.error(JSON.stringify({ ...task, config: undefined }), times);
  return { ...task, times };
}

/** Bytes of the CPU device's kernels, which a page loads with the package. */
function kernelBytes() {
  const file = new URL('../packages/tensor-core/src/generated/cpu-plain.ts', import.meta.url);
  const [, base64] = /['"`]([A-Za-z0-9+/=]{1000,})['"`]/.exec(readFileSync(file, 'utf8'));
  return Buffer.from(base64, 'base64').byteLength;
}

function report() {
  const keys = engines.map(({ key }) => key);
  const parts = [
    headOf('Engines', record),
    `${rounds} rounds, in each all engines in turn (a product that took ${MAX_TASK_MS / 1000} s in fewer of them has no more); one process an engine, all in one run. PyTorch runs with OMP_WAIT_POLICY=PASSIVE, without which its two threads wait at the cost of each other.`,
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
    const ours = ['shardweave-cpu', 'shardweave-webgpu'].filter((key) => times[key]);
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

/** Starts an engine; undefined, with a line on stderr, where this machine lacks what it needs. */
async function open(key) {
  const [runtime, file, ...args] = ENGINES[key];
  const isNode = runtime === 'node';
  const child = spawn(isNode ? process.execPath : '/usr/bin/python3', [file, ...args], {
    cwd: HERE,
    stdio: isNode ? ['ignore', 'ignore', 'pipe', 'ipc'] : ['pipe', 'pipe', 'pipe'],
    env: {
      ...process.env,
      OMP_WAIT_POLICY: 'PASSIVE',
      BENCH_MODEL: flags.model,
      BENCH_SHAPE: JSON.stringify(model),
    },
  });
  let stderr = '';
  child.stderr.on('data', (chunk) => {
    stderr = (stderr + chunk).slice(-2000);
  });
  const waiting = new Map();
  const receive = (message) => waiting.get(message.id ?? 'ready')?.(message);
  if (isNode) {
    child.on('message', receive);
  } else {
    createInterface({ input: child.stdout }).on('line', (line) => receive(JSON.parse(line)));
  }
  let isClosing = false;
  const exited = new Promise((resolve) => {
    child.on('error', resolve);
    child.on('exit', () => resolve(new Error(`exited: ${stderr.trim().split('\n').at(-1)}`)));
  });
  const next = (id) => new Promise((resolve) => waiting.set(id, resolve));
  let lastId = 0;
  const ask = async (request) => {
    const id = ++lastId;
    const answer = next(id);
    if (isNode) {
      child.send({ id, ...request });
    } else {
      child.stdin.write(`${JSON.stringify({ id, ...request })}\n`);
    }
    const message = await Promise.race([answer, exited]);
    if (message instanceof Error) {
      throw message;
    }
    if (message.error !== undefined) {
      throw new Error(message.error);
    }
    return message;
  };
  const ready = await Promise.race([next('ready'), exited]);
  if (ready instanceof Error) {
    console.error(`${key}: left out, ${ready.message}`);
    return undefined;
  }
  exited.then((error) => {
    if (!isClosing) {
      console.error(`${key}: ${error.message}`);
    }
  });
  const close = () => {
    isClosing = true;
    child.kill();
  };
  return { key, name: ready.ready, ask, close };
}
