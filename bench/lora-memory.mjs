// What a process of a LoRA run takes, and when. The command trains adapters beside a base in bf16,
// which has random values in a shape of bench/shapes and is sharded over 1 and 2 processes over ws.
// The run draws the values or, with --weights, reads them from a file, as those of a user's model;
// with --blocks q4_K they are random blocks in a GGUF file, where the base stays in them.
// The bench compares the most resident bytes of each process (VmHWM, so on Linux only) with the
// process's ledger and with the formulas of docs/memory-model.md: once the model is loaded, after
// the last step, and at the end, which writes the adapters and a text. It needs the built packages.
// Usage: node bench/lora-memory.mjs [--shape smollm2-135m] [--ranks 1,2] [--steps 3]
//   [--lora-rank 16] [--lora-targets all-linear] [--batch 2] [--seq 256] [--precision bf16]
//   [--weights] [--blocks TYPE] [--strategy fsdp] [--checkpoint-activations]
//   [--tree DIR: another built checkout, whose trainer is measured] [--report FILE]

import { spawn } from 'node:child_process';
import { randomFillSync } from 'node:crypto';
import {
  copyFileSync,
  createWriteStream,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { pipeline } from 'node:stream/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { shardLayout } from '../packages/fsdp/dist/index.js';
import {
  applyLora,
  makeModel,
  parseModelConfig,
  quantizeBase,
  safetensorsPieces,
} from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device } from '../packages/tensor-core/dist/index.js';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { randomGguf } from './figures/random-gguf.mjs';
import { endRecord, headOf, startRecord } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const POLL_MS = 50;
const STAGES = ['loaded', 'steps', 'end'];

const flags = flagsOf({
  shape: 'smollm2-135m',
  ranks: '1,2',
  steps: '3',
  'lora-rank': '16',
  'lora-targets': 'all-linear',
  batch: '2',
  seq: '256',
  precision: 'bf16',
  weights: false,
  blocks: undefined,
  strategy: 'fsdp',
  'checkpoint-activations': false,
  tree: undefined,
  report: undefined,
});
const config = join(ROOT, 'bench/shapes', flags.shape, 'config.json');
const written = flags.weights || flags.blocks !== undefined ? await writeWeights() : undefined;
const model = written ?? dirname(config);
const record = await startRecord('bench/lora-memory.mjs');
const rows = [];
for (const ranks of flags.ranks.split(',').map(Number)) {
  const formula = await predict(ranks);
  for (const found of await measure(ranks)) {
    rows.push({ ranks, ...found, formula });
  }
}
await endRecord(record);
if (written !== undefined) {
  rmSync(flags.blocks === undefined ? written : dirname(written), { recursive: true });
}
Object.assign(record, { flags, rows });
publish(flags.report, report(), record);

/** What each rank reports, and the most bytes that its process held. */
async function measure(ranks) {
  const out = mkdtempSync(join(tmpdir(), 'lora-memory-'));
  const args = [
    ...['--model', model, '--tokenizer', 'byte'],
    ...['--lora-rank', flags['lora-rank'], '--lora-targets', flags['lora-targets']],
    ...['--batch', flags.batch, '--seq', flags.seq, '--steps', flags.steps],
    ...['--precision', flags.precision, '--device', 'cpu', '--threads', '1'],
    ...['--strategy', flags.strategy],
    ...(flags['checkpoint-activations'] ? ['--checkpoint-activations'] : []),
    ...['--ranks', String(ranks), '--transport', 'ws', '--out', join(out, 'run')],
  ];
  const child = spawn(process.execPath, ['apps/trainer/dist/main.js', 'train', ...args], {
    cwd: flags.tree ?? ROOT,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = new Promise((resolve) => child.on('exit', resolve));
  const most = Object.fromEntries(STAGES.map((stage) => [stage, new Map()]));
  let stage = 0;
  const read = () => {
    for (const pid of childrenOf(child.pid)) {
      const kilobytes = /VmHWM:\s+(\d+)/.exec(statusOf(pid))?.[1];
      if (kilobytes !== undefined) {
        most[STAGES[stage]].set(pid, Number(kilobytes) * 1024);
      }
    }
  };
  // The header follows the loading, and the last step's line the last step.
  const lastStep = new RegExp(`^step +${flags.steps}/${flags.steps} `);
  createInterface({ input: child.stdout }).on('line', (line) => {
    console.error(line);
    const isNext = stage === 0 ? /^model /.test(line) : stage === 1 && lastStep.test(line);
    if (isNext) {
      read();
      stage++;
    }
  });
  let code;
  ended.then((value) => {
    code = value ?? 1;
  });
  while (code === undefined) {
    read();
    await sleep(POLL_MS);
  }
  if (code !== 0) {
    throw new Error(`The run over ${ranks} ranks ended with code ${code}.`);
  }
  const summary = JSON.parse(readFileSync(join(out, 'run', 'summary.json'), 'utf8'));
  rmSync(out, { recursive: true });
  // Processes are started in rank order, so their ids grow with the rank.
  return summary.ranks.map(({ rank, peakBytes }) => ({
    rank,
    peakBytes,
    residentBytes: STAGES.map((name) => {
      const processes = [...most[name]].sort(([a], [b]) => a - b);
      return processes[rank][1];
    }),
  }));
}

/**
 * The bytes at rest of base and adapters, and the most that is gathered at once: the root and one
 * block.
 */
async function predict(ranks) {
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  const model = deferredModel(device);
  applyLora(model, {
    rank: Number(flags['lora-rank']),
    ...(flags['lora-targets'] === 'all-linear'
      ? {}
      : { targets: flags['lora-targets'].split(',') }),
  });
  if (flags.blocks !== undefined) {
    await quantizeBase(model, { type: flags.blocks });
  }
  const blocks = model.layers().slice(1, -1);
  const inBlocks = new Set(blocks.flatMap((block) => block.parameters()));
  const root = model.parameters().filter((parameter) => !inBlocks.has(parameter));
  // Over several ranks a table has a unit of its own, of whole rows.
  const isTable = ({ requiresGrad, shape, blocks }) =>
    ranks > 1 && !requiresGrad && shape.length === 2 && blocks === undefined;
  const tables = root.filter(isTable);
  const others = root.filter((parameter) => !isTable(parameter));
  const units = [...blocks.map((block) => block.parameters()), others];
  const bytes = flags.precision === 'fp32' ? 4 : 2;
  const lengths = units.map((parameters) => {
    const shard = (sizes) => (sizes.length === 0 ? 0 : shardLayout(sizes, ranks).shardLength);
    const [adapters, base] = [true, false].map((isTrained) =>
      parameters.filter(({ requiresGrad }) => requiresGrad === isTrained),
    );
    const numbers = base.filter((parameter) => parameter.blocks === undefined);
    const words = base.flatMap((parameter) => parameter.blocks?.words.size ?? []);
    return {
      base: bytes * shard(numbers.map(({ size }) => size)) + 4 * shard(words),
      adapters: shard(adapters.map(({ size }) => size)),
    };
  });
  device.dispose();
  await backend.dispose();
  const total = (name) => lengths.reduce((sum, unit) => sum + unit[name], 0);
  const rows = tables.map(({ size, shape }) => shardLayout([size], ranks, shape[1]).shardLength);
  return {
    base: total('base') + bytes * rows.reduce((sum, length) => sum + length, 0),
    adapters: 4 * total('adapters'),
    optimizer: 8 * total('adapters'),
  };
}

function deferredModel(device) {
  return makeModel(device, parseModelConfig(readFileSync(config, 'utf8')), { deferInit: true });
}

/** Writes a model with random weights, a tensor at a time: in bf16, or in blocks as a GGUF file. */
async function writeWeights() {
  if (flags.blocks !== undefined) {
    const path = join(mkdtempSync(join(tmpdir(), 'lora-memory-model-')), 'model.gguf');
    const pieces = await randomGguf(readFileSync(config, 'utf8'), flags.blocks);
    await pipeline(pieces, createWriteStream(path));
    return path;
  }
  const directory = mkdtempSync(join(tmpdir(), 'lora-memory-model-'));
  copyFileSync(config, join(directory, 'config.json'));
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  const state = deferredModel(device)
    .namedParameters()
    .map(([name, { shape, size }]) => {
      // Signs and the lower bits are random, and magnitudes are near 2^-6.
      const read = async () => {
        const words = randomFillSync(new Uint16Array(size));
        return new Uint8Array(words.map((word) => (word & 0x80ff) | 0x3c00).buffer);
      };
      return [name, { dtype: 'bf16', shape, read }];
    });
  const file = createWriteStream(join(directory, 'model.safetensors'));
  await pipeline(safetensorsPieces(new Map(state)), file);
  device.dispose();
  await backend.dispose();
  return directory;
}

function childrenOf(parent) {
  return readdirSync('/proc')
    .filter(
      (name) => /^\d+$/.test(name) && new RegExp(`^PPid:\\s+${parent}$`, 'm').test(statusOf(name)),
    )
    .map(Number);
}

function statusOf(pid) {
  try {
    return readFileSync(`/proc/${pid}/status`, 'utf8');
  } catch {
    return ''; // the process has ended
  }
}

function report() {
  const count = (bytes) => bytes.toLocaleString('en-US');
  const body = rows.map(({ ranks, rank, peakBytes, residentBytes, formula }) => [
    ranks,
    rank,
    count(formula.base),
    count(formula.adapters),
    count(peakBytes.parameter),
    count(formula.optimizer),
    count(peakBytes.optimizer),
    count(peakBytes.gathered),
    count(peakBytes.activation),
    count(peakBytes.total),
    ...residentBytes.map(count),
    count(residentBytes[2] - residentBytes[1]),
  ]);
  const head = [
    ...[
      'ranks',
      'rank',
      'base by formula',
      'adapters by formula',
      'parameters',
      'moments by formula',
    ],
    ...['moments', 'gathered', 'activations', 'peak of the device'],
    ...['process: loaded', 'after the steps', 'at the end', 'added by the end'],
  ];
  return [
    headOf(`Memory of LoRA on ${flags.shape}`, record),
    `Adapters of rank ${flags['lora-rank']} on ${flags['lora-targets']} of a frozen base, --precision ${flags.precision}, ${flags.batch} x ${flags.seq} tokens a step of all ranks, a process a rank over ws. Bytes; each column of the device is the most of its own, so they add up to more than the peak. Those of the process are its VmHWM up to that moment.`,
    table(head, body),
    'The process has, besides its device: Node with its code (about 80 MB), kernels and workers, buffers of the pool that wait for their next use, and host memory of values on their way (drawn, read, gathered).',
  ].join('\n\n');
}
