// Measures matrix products and a small GPT's training step against the field, in one run: every
// engine is a process of its own, all of them kept open, timed in turn. Medians and ratios.
// Usage: node bench/run.mjs [--tasks matmul,step] [--engines a,b] [--rounds N] [--report FILE]

import { spawn } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { dirname } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const HERE = dirname(fileURLToPath(import.meta.url));
const SIZES = [256, 512, 1024];
const LAYOUTS = ['NN', 'NT', 'TN'];
// Long enough that a clock tick and one wake-up don't show.
const MIN_SAMPLE_MS = 150;

const ENGINES = {
  'shardweave-cpu': ['node', 'engines/shardweave.mjs', 'cpu', '2'],
  'shardweave-cpu-1': ['node', 'engines/shardweave.mjs', 'cpu', '1'],
  'jax-wasm': ['node', 'engines/jax.mjs', 'wasm'],
  'tfjs-wasm': ['node', 'engines/tfjs.mjs', 'wasm'],
  torch: ['python', 'engines/pytorch.py'],
  'shardweave-webgpu': ['node', 'engines/shardweave.mjs', 'webgpu'],
  'jax-webgpu': ['node', 'engines/jax.mjs', 'webgpu'],
  'tfjs-webgpu': ['node', 'engines/tfjs.mjs', 'webgpu'],
};

const { values: flags } = parseArgs({
  options: {
    tasks: { type: 'string', default: 'matmul,step' },
    engines: { type: 'string', default: Object.keys(ENGINES).join(',') },
    rounds: { type: 'string', default: '5' },
    report: { type: 'string' },
  },
});

const rounds = Number(flags.rounds);
const engines = [];
for (const key of flags.engines.split(',')) {
  const engine = await open(key);
  if (engine !== undefined) engines.push(engine);
}
const rows = [];
for (const task of listTasks()) rows.push(await measure(task));
for (const engine of engines) engine.close();
const text = report();
console.log(text);
if (flags.report !== undefined) {
  mkdirSync(dirname(flags.report), { recursive: true });
  writeFileSync(flags.report, text);
}

function listTasks() {
  const wanted = flags.tasks.split(',');
  const matmuls = LAYOUTS.flatMap((layout) => SIZES.map((n) => ({ task: 'matmul', layout, n })));
  return [
    ...(wanted.includes('matmul') ? matmuls : []),
    ...(wanted.includes('step') ? [{ task: 'step' }] : []),
  ];
}

/** Interleaved: each round times every engine once. */
async function measure(task) {
  const samples = new Map();
  const repetitions = new Map();
  for (const engine of engines) {
    try {
      await engine.ask({ prepare: task });
      const { ms } = await engine.ask({ repetitions: 1 });
      repetitions.set(engine, Math.max(1, Math.ceil(MIN_SAMPLE_MS / ms)));
      samples.set(engine, []);
    } catch (error) {
      console.error(`${engine.key} ${JSON.stringify(task)}: ${error.message}`);
    }
  }
  for (let round = 0; round < rounds; round++) {
    for (const [engine, list] of samples) {
      const { ms } = await engine.ask({ repetitions: repetitions.get(engine) });
      list.push(ms);
    }
  }
  const medians = new Map([...samples].map(([engine, list]) => [engine.key, median(list)]));
  console.error(JSON.stringify(task), Object.fromEntries(medians));
  return { task, medians };
}

function median(list) {
  const sorted = [...list].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function report() {
  const keys = engines.map(({ key }) => key);
  const table = (head, body) =>
    [head, head.map(() => '---'), ...body].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
  const matmuls = rows.filter(({ task }) => task.task === 'matmul');
  const steps = rows.filter(({ task }) => task.task === 'step');
  const parts = [
    `# Bench of ${new Date().toISOString().slice(0, 10)}`,
    `${os.cpus().length} x ${os.cpus()[0].model}, Node ${process.version}. Medians of ${rounds} interleaved rounds; one process an engine, all in one run.`,
    `Command: \`node bench/run.mjs ${process.argv.slice(2).join(' ')}\``,
    engines.map(({ key, name }) => `- ${key}: ${name}`).join('\n'),
  ];
  if (matmuls.length > 0) {
    const body = matmuls.map(({ task, medians }) => [
      `${task.layout} ${task.n}`,
      ...keys.map((key) =>
        medians.has(key) ? ((2 * task.n ** 3) / medians.get(key) / 1e6).toFixed(1) : '-',
      ),
    ]);
    parts.push('## f32 matrix product, GFLOP/s', table(['layout, size', ...keys], body));
  }
  if (steps.length > 0) {
    const [{ medians }] = steps;
    const body = keys
      .filter((key) => medians.has(key))
      .map((key) => [
        key,
        medians.get(key).toFixed(0),
        ...['shardweave-cpu', 'shardweave-webgpu'].map((ours) =>
          medians.has(ours) ? (medians.get(key) / medians.get(ours)).toFixed(2) : '-',
        ),
      ]);
    parts.push(
      '## Training step of a small GPT',
      '842,496 f32 parameters, batch 8 x 128 tokens, forward, backward, AdamW.',
      table(['engine', 'ms', 'over shardweave-cpu', 'over shardweave-webgpu'], body),
    );
  }
  return `${parts.join('\n\n')}\n`;
}

/** Starts an engine; undefined, with a line on stderr, where this machine lacks what it needs. */
async function open(key) {
  const [runtime, file, ...args] = ENGINES[key];
  const isNode = runtime === 'node';
  const child = spawn(isNode ? process.execPath : '/usr/bin/python3', [file, ...args], {
    cwd: HERE,
    stdio: isNode ? ['ignore', 'ignore', 'pipe', 'ipc'] : ['pipe', 'pipe', 'pipe'],
    env: { ...process.env, OMP_WAIT_POLICY: 'PASSIVE' },
  });
  let stderr = '';
  child.stderr.on('data', (chunk) => {
    stderr = (stderr + chunk).slice(-2000);
  });
  const waiting = new Map();
  const receive = (message) => waiting.get(message.id ?? 'ready')?.(message);
  if (isNode) child.on('message', receive);
  else createInterface({ input: child.stdout }).on('line', (line) => receive(JSON.parse(line)));
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
    if (isNode) child.send({ id, ...request });
    else child.stdin.write(`${JSON.stringify({ id, ...request })}\n`);
    const message = await Promise.race([answer, exited]);
    if (message instanceof Error) throw message;
    if (message.error !== undefined) throw new Error(message.error);
    return message;
  };
  const ready = await Promise.race([next('ready'), exited]);
  if (ready instanceof Error) {
    console.error(`${key}: left out, ${ready.message}`);
    return undefined;
  }
  exited.then((error) => {
    if (!isClosing) console.error(`${key}: ${error.message}`);
  });
  const close = () => {
    isClosing = true;
    child.kill();
  };
  return { key, name: ready.ready, ask, close };
}
