// A GPU beside PyTorch on it: matrix products, attention, copies and whole training steps. Every
// engine is a process, and they are timed in turn. tooling/gpu carries this bench to a machine with
// a GPU. `--scale tiny` tries it on any machine, with PyTorch on the CPU.
// Usage: node bench/hardware.mjs [--scale full|tiny] [--parts copy,products,attention,steps]
//   [--rounds N] [--python PYTHON] [--peak TFLOPS] [--report FILE]

import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { interleave } from './engines/interleave.mjs';
import { openEngine } from './engines/open-engine.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const { values: flags } = parseArgs({
  options: {
    scale: { type: 'string', default: 'full' },
    parts: { type: 'string', default: 'copy,products,attention,steps' },
    rounds: { type: 'string', default: '5' },
    python: { type: 'string', default: 'python3' },
    // The f32 rate of an H100 SXM without its matrix units.
    peak: { type: 'string', default: '67' },
    report: { type: 'string' },
  },
});
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

const OURS = 'shardweave';
const torch = [flags.python, 'engines/hardware_torch.py', isTiny ? 'cpu' : 'cuda'];
const ENGINES = {
  [OURS]: ['node', 'engines/hardware.mjs'],
  torch,
  'torch compiled': [...torch, 'compiled'],
};

const record = await startRecord('bench/hardware.mjs');
const engines = [];
for (const [key, command] of Object.entries(ENGINES)) {
  const engine =
    isTiny && key.includes('compiled') ? undefined : await openEngine(key, { command });
  if (engine !== undefined) {
    engines.push(engine);
  }
}
const rows = [];
for (const { name, flop, perStep, ...task } of flags.parts
  .split(',')
  .flatMap((part) => tasksOf(part))) {
  const { times } = await interleave(engines, task, { rounds: Number(flags.rounds) });
  rows.push({ name, flop, perStep, bytes: task.bytes, precision: task.precision, times });
}
for (const engine of engines) {
  engine.close();
}
await endRecord(record);
Object.assign(record, { engines: engines.map(({ key, name }) => ({ key, name })), rows });
publish(flags.report, report(), record);
process.exitCode = rows.some(({ times }) => times[OURS] === undefined) ? 1 : 0;

/**
 * The tasks of a part. `perStep` is how often a step of GPT-2 has this product; other tasks lack
 * it.
 */
function tasksOf(part) {
  switch (part) {
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
      throw new Error(`--parts: expected copy, products, attention or steps, got ${part}`);
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
  return ['fp32', 'fp16'].flatMap((precision) =>
    shapes.map((shape) => product({ ...shape, precision })),
  );
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
  return ['fp32', 'fp16'].flatMap((precision) =>
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
  const keys = engines.map(({ key }) => key);
  const others = keys.filter((key) => key !== OURS);
  const ratios = others.map((key) => `over ${key}`);
  const body = rows.map(({ name, flop, bytes, times }) => [
    name,
    ...keys.map((key) => times[key]?.median.toFixed(2) ?? '-'),
    rateOf({ flop, bytes }, times[OURS]?.median),
    ...others.map((key) => ratio(times[OURS]?.median, times[key]?.median)),
  ]);
  return [
    headOf('A GPU beside PyTorch', record),
    engines.map(({ key, name }) => `- ${key}: ${name}`).join('\n'),
    `Medians of ${flags.rounds} rounds in turn, milliseconds. Batch ${BATCH} x ${SEQ} tokens.`,
    table(['what', ...keys, `${OURS}'s rate`, ...ratios], body),
    ...overall(),
  ].join('\n\n');
}

function rateOf({ flop, bytes }, ms) {
  if (ms === undefined) {
    return '-';
  }
  if (bytes !== undefined) {
    return `${((2 * bytes) / ms / 1e6).toFixed(0)} GB/s`;
  }
  return flop === undefined ? '' : `${(flop / ms / 1e9).toFixed(2)} TFLOP/s`;
}

/** The rate of all products of a step of GPT-2 together, and its share of the chip's f32 rate. */
function overall() {
  return ['fp32', 'fp16'].flatMap((precision) => {
    const all = rows.filter(
      (row) => row.perStep !== undefined && row.precision === precision && row.times[OURS],
    );
    if (all.length === 0) {
      return [];
    }
    const flop = all.reduce((sum, row) => sum + row.flop * row.perStep, 0);
    const ms = all.reduce((sum, row) => sum + row.times[OURS].median * row.perStep, 0);
    const rate = flop / ms / 1e9;
    return [
      `Products of a step of GPT-2 in ${precision}: ${ms.toFixed(1)} ms, ${rate.toFixed(2)} TFLOP/s, ${((100 * rate) / Number(flags.peak)).toFixed(0)} % of ${flags.peak}.`,
    ];
  });
}

function ratio(ours, theirs) {
  return ours === undefined || theirs === undefined ? '-' : (ours / theirs).toFixed(2);
}
