// A GPU beside PyTorch on it: matrix products, attention, copies and whole training steps. Every
// engine is a process, and they are timed in turn. A task that an engine dies of, or does not end,
// loses that engine's times of this task alone. Our products are measured for their tiles first.
// tooling/gpu carries this bench to a machine with a GPU. `--scale tiny` tries it on any machine,
// with PyTorch on the CPU.
// Usage: node bench/hardware.mjs [--scale full|tiny] [--parts probe,copy,products,attention,steps]
//   [--engines shardweave,torch,compiled] [--rounds N] [--python PYTHON] [--peak TFLOPS]
//   [--rows FILE, to which each row is appended] [--report FILE]

import { readFileSync } from 'node:fs';
import { clocks } from './engines/clocks.mjs';
import { interleave } from './engines/interleave.mjs';
import { openEngine } from './engines/open-engine.mjs';
import { flagsOf } from './figures/flags.mjs';
import { hardwareTable } from './figures/hardware-table.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord } from './figures/record.mjs';
import { appendRow } from './figures/rows.mjs';

const flags = flagsOf({
  scale: 'full',
  parts: 'copy,products,attention,steps',
  engines: 'shardweave,torch',
  rounds: '5',
  python: 'python3',
  // The f32 rate of an H100 SXM without its matrix units.
  peak: '67',
  rows: undefined,
  report: undefined,
});
/** A task that takes longer than this hangs; compiled PyTorch takes a minute for its first one. */
const TASK_MS = 150_000;
/** How often an engine that ended is started anew. */
const MOST_STARTS = 4;
const isTiny = flags.scale === 'tiny';
const GPT2 = {
  model_type: 'gpt2',
  vocab_size: isTiny ? 97 : 50257,
  n_positions: isTiny ? 32 : 1024,
  n_embd: isTiny ? 32 : 768,
  n_layer: isTiny ? 2 : 12,
  n_head: isTiny ? 2 : 12,
  embd_pdrop: 0,
  attn_pdrop: 0,
  resid_pdrop: 0,
};
const LLAMA = {
  ...JSON.parse(readFileSync(new URL('shapes/smollm2-135m/config.json', import.meta.url), 'utf8')),
  ...(isTiny
    ? { vocab_size: 97, hidden_size: 36, intermediate_size: 48, num_hidden_layers: 2 }
    : {}),
};
const BATCH = isTiny ? 2 : 8;
const SEQ = GPT2.n_positions;
const PRECISIONS = ['fp32', 'fp16', 'bf16'];
/** In place of a product of each class, which a driver on the CPU compiles for minutes. */
const TINY_SHAPES = [[64, 64, 32]];

const OURS = 'shardweave';
const torch = [flags.python, 'engines/hardware_torch.py', isTiny ? 'cpu' : 'cuda'];
const COMMANDS = {
  [OURS]: ['node', 'engines/hardware.mjs'],
  torch,
  compiled: [...torch, 'compiled'],
};

const record = await startRecord('bench/hardware.mjs');
const engines = new Map();
const starts = new Map();
const rows = [];
const tuned = new Set();
for (const { name, flop, perStep, isUntuned, ...task } of tasksOfParts()) {
  await openAll();
  if (!isUntuned && task.precision !== undefined) {
    await tune(task.precision);
  }
  const times = await timesOf(task);
  const { bytes, precision } = task;
  keep({ name, flop, perStep, bytes, precision, times, clocks: clocks() });
}
for (const engine of engines.values()) {
  engine.close();
}
await endRecord(record);
Object.assign(record, { rows });
publish(flags.report, report(), record);
const isWhole = rows.every(({ times }) => times === undefined || engines.size === 0 || times[OURS]);
process.exitCode = flags.engines.split(',').includes(OURS) && !isWhole ? 1 : 0;

function keep(row) {
  rows.push(row);
  appendRow(flags.rows, row);
}

/** Starts the engines that have not been started, or have ended. */
async function openAll() {
  for (const key of flags.engines.split(',')) {
    if (COMMANDS[key] === undefined) {
      throw new Error(`--engines: expected some of ${Object.keys(COMMANDS)}, got ${key}`);
    }
    const count = starts.get(key) ?? 0;
    if (engines.get(key)?.isOpen() || count === MOST_STARTS) {
      continue;
    }
    starts.set(key, count + 1);
    engines.delete(key);
    const onMissing = (missing) => {
      starts.set(key, MOST_STARTS);
      keep({ engine: key, missing });
    };
    const engine = await openEngine(key, { command: COMMANDS[key], onMissing });
    if (engine !== undefined) {
      engines.set(key, engine);
      keep({ engine: key, is: engine.name });
    }
  }
}

/** Measures our tiles for a precision, once. */
async function tune(precision) {
  const ours = engines.get(OURS);
  if (ours === undefined || tuned.has(precision)) {
    return;
  }
  tuned.add(precision);
  try {
    const shapes = isTiny ? TINY_SHAPES : undefined;
    const { tiles, seconds } = await ours.ask({ prepare: { task: 'tune', precision, shapes } });
    keep({ name: `tiles in ${precision}`, tiles, seconds });
  } catch (error) {
    keep({ name: `tiles in ${precision}`, error: error.message });
  }
}

/** Ends all engines where the task does not end. */
async function timesOf(task) {
  const all = [...engines.values()];
  const timer = setTimeout(() => {
    for (const engine of all) {
      engine.close();
    }
  }, TASK_MS);
  try {
    return (await interleave(all, task, { rounds: Number(flags.rounds) })).times;
  } finally {
    clearTimeout(timer);
  }
}

function tasksOfParts() {
  return flags.parts.split(',').flatMap((part) => tasksOf(part));
}

/**
 * The tasks of a part. `perStep` is how often a step of GPT-2 has this product; other tasks lack
 * it.
 */
function tasksOf(part) {
  switch (part) {
    case 'probe': {
      const large = squares().filter(({ layout }) => layout === 'NN');
      return [...tasksOf('copy'), ...large.map((task) => ({ ...task, isUntuned: true }))];
    }
    case 'copy': {
      const bytes = isTiny ? 2 ** 20 : 2 ** 30;
      return [{ task: 'copy', name: `copy of ${bytes / 2 ** 20} MiB`, bytes }];
    }
    case 'products':
      return [...squares(), ...gpt2Products()];
    case 'attention':
      return attentions();
    case 'steps':
      return PRECISIONS.flatMap((precision) =>
        [GPT2, LLAMA].map((config) => ({
          task: 'train',
          name: `step of ${config.model_type === 'gpt2' ? 'GPT-2 124M' : 'SmolLM2 135M'}, ${precision}`,
          config,
          batch: BATCH,
          seq: SEQ,
          precision,
        })),
      );
    default:
      throw new Error(`--parts: expected probe, copy, products, attention or steps, got ${part}`);
  }
}

function squares() {
  const n = isTiny ? 64 : 4096;
  return PRECISIONS.flatMap((precision) =>
    ['NN', 'NT', 'TN'].map((layout) =>
      product({ m: n, n, k: n, layout, precision, label: 'square' }),
    ),
  );
}

function gpt2Products() {
  const rows = BATCH * SEQ;
  const width = GPT2.n_embd;
  const layers = GPT2.n_layer;
  const linear = [
    ['qkv', width, 3 * width, layers],
    ['proj', width, width, layers],
    ['fc', width, 4 * width, layers],
    ['out', 4 * width, width, layers],
  ];
  const shapes = [
    ...linear.flatMap(([label, k, n, perStep]) => [
      { label, m: rows, n, k, layout: 'NN', perStep },
      { label: `${label} dx`, m: rows, n: k, k: n, layout: 'NT', perStep },
      { label: `${label} dW`, m: k, n, k: rows, layout: 'TN', perStep },
    ]),
    { label: 'head', m: rows, n: GPT2.vocab_size, k: width, layout: 'NT', perStep: 1 },
    { label: 'head dx', m: rows, n: width, k: GPT2.vocab_size, layout: 'NN', perStep: 1 },
    { label: 'head dW', m: GPT2.vocab_size, n: width, k: rows, layout: 'TN', perStep: 1 },
  ];
  return PRECISIONS.flatMap((precision) => shapes.map((shape) => product({ ...shape, precision })));
}

function product({ label, perStep, ...shape }) {
  const { m, n, k, layout, precision } = shape;
  const name = `${label} ${m} x ${n} x ${k} ${layout}, ${precision}`;
  return { task: 'product', name, flop: 2 * m * n * k, perStep, ...shape };
}

function attentions() {
  const heads = [
    { label: 'GPT-2', heads: GPT2.n_head, kvHeads: GPT2.n_head, dim: 64 },
    { label: 'SmolLM2', heads: 9, kvHeads: 3, dim: 64 },
  ];
  return PRECISIONS.flatMap((precision) =>
    heads.flatMap(({ label, ...shape }) =>
      [false, true].map((isBackward) => ({
        task: 'attention',
        name: `attention of ${label}${isBackward ? ', and backward' : ''}, ${precision}`,
        // A causal mask leaves half of the scores. Backward computes them again and has four more
        // products.
        flop: (isBackward ? 3.5 : 1) * 2 * BATCH * shape.heads * SEQ * SEQ * shape.dim,
        ...shape,
        batch: BATCH,
        seq: SEQ,
        precision,
        isBackward,
      })),
    ),
  );
}

function report() {
  const named = rows.filter(({ is }) => is !== undefined);
  return [
    headOf('A GPU beside PyTorch', record),
    named.map(({ engine, is }) => `- ${engine}: ${is}`).join('\n'),
    `Medians of ${flags.rounds} rounds in turn. Batch ${BATCH} x ${SEQ} tokens.`,
    hardwareTable(rows, { peak: Number(flags.peak) }),
  ].join('\n\n');
}
