// What a process of a LoRA run takes. The command trains adapters beside a base in bf16, which has
// random values in a shape of bench/shapes and is sharded over 1 and 2 processes over ws. It
// compares the most resident bytes of each process (VmHWM, so on Linux only) with the process's
// ledger and with the formulas of docs/memory-model.md. It needs the built packages.
// Usage: node bench/lora-memory.mjs [--shape smollm2-135m] [--ranks 1,2] [--steps 3]
//   [--precision bf16] [--report FILE]

import { spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { shardLayout } from '../packages/fsdp/dist/index.js';
import { applyLora, makeModel, parseModelConfig } from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device } from '../packages/tensor-core/dist/index.js';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const RANK = 16;
const TOKENS = ['--batch', '2', '--seq', '256'];
const POLL_MS = 50;

const { values: flags } = parseArgs({
  options: {
    shape: { type: 'string', default: 'smollm2-135m' },
    ranks: { type: 'string', default: '1,2' },
    steps: { type: 'string', default: '3' },
    precision: { type: 'string', default: 'bf16' },
    report: { type: 'string' },
  },
});
const modelDirectory = `bench/shapes/${flags.shape}`;
const record = await startRecord('bench/lora-memory.mjs');
const rows = [];
for (const ranks of flags.ranks.split(',').map(Number)) {
  const formula = await predict(ranks);
  for (const found of await measure(ranks)) {
    rows.push({ ranks, ...found, formula });
  }
}
await endRecord(record);
Object.assign(record, { flags, rows });
publish(flags.report, report(), record);

/** What each rank reports, and the most bytes that its process held. */
async function measure(ranks) {
  const out = mkdtempSync(join(tmpdir(), 'lora-memory-'));
  const args = [
    ...['--model', modelDirectory, '--tokenizer', 'byte', '--lora-rank', String(RANK), ...TOKENS],
    ...['--precision', flags.precision, '--device', 'cpu', '--threads', '1', '--strategy', 'fsdp'],
    ...['--ranks', String(ranks), '--transport', 'ws', '--steps', flags.steps],
    ...['--out', join(out, 'run'), '--quiet'],
  ];
  const child = spawn(process.execPath, ['apps/trainer/dist/main.js', 'train', ...args], {
    cwd: ROOT,
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  const ended = new Promise((resolve) => child.on('exit', resolve));
  const most = new Map();
  let code;
  ended.then((value) => {
    code = value ?? 1;
  });
  while (code === undefined) {
    for (const pid of childrenOf(child.pid)) {
      const kilobytes = /VmHWM:\s+(\d+)/.exec(statusOf(pid))?.[1];
      if (kilobytes !== undefined) {
        most.set(pid, Number(kilobytes) * 1024);
      }
    }
    await sleep(POLL_MS);
  }
  if (code !== 0) {
    throw new Error(`The run over ${ranks} ranks ended with code ${code}.`);
  }
  const summary = JSON.parse(readFileSync(join(out, 'run', 'summary.json'), 'utf8'));
  rmSync(out, { recursive: true });
  // Processes are started in rank order, so their ids grow with the rank.
  const processes = [...most].sort(([a], [b]) => a - b).map(([, bytes]) => bytes);
  return summary.ranks.map(({ rank, peakBytes }) => ({
    rank,
    peakBytes,
    residentBytes: processes[rank],
  }));
}

/**
 * The bytes at rest of base and adapters, and the most that is gathered at once: the root and one
 * block.
 */
async function predict(ranks) {
  const backend = await createCpuBackend({ threads: 1 });
  const device = new Device(backend);
  const text = readFileSync(new URL(`shapes/${flags.shape}/config.json`, import.meta.url), 'utf8');
  const model = makeModel(device, parseModelConfig(text), { deferInit: true });
  applyLora(model, { rank: RANK });
  const blocks = model.layers().slice(1, -1);
  const inBlocks = new Set(blocks.flatMap((block) => block.parameters()));
  const root = model.parameters().filter((parameter) => !inBlocks.has(parameter));
  const units = [...blocks.map((block) => block.parameters()), root];
  const lengths = units.map((parameters) => {
    const shard = (isTrained) => {
      const sizes = parameters.flatMap(({ requiresGrad, size }) =>
        requiresGrad === isTrained ? [size] : [],
      );
      return sizes.length === 0 ? 0 : shardLayout(sizes, ranks).shardLength;
    };
    return { base: shard(false), adapters: shard(true) };
  });
  device.dispose();
  await backend.dispose();
  const total = (name) => lengths.reduce((sum, unit) => sum + unit[name], 0);
  const bytes = flags.precision === 'fp32' ? 4 : 2;
  return {
    base: bytes * total('base'),
    adapters: 4 * total('adapters'),
    optimizer: 8 * total('adapters'),
  };
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
    count(residentBytes),
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
    ...['moments', 'gathered', 'activations', 'peak of the device', 'VmHWM of the process'],
  ];
  return [
    headOf(`Memory of LoRA on ${flags.shape}`, record),
    `Adapters of rank ${RANK} on all linear layers of a frozen base, --precision ${flags.precision}, 2 x 256 tokens a step of all ranks, a process a rank over ws. Bytes; each column is the most of its own, so they add up to more than the peak.`,
    table(head, body),
    'The process has, besides its device: Node with its code (about 80 MB), kernels and workers, buffers of the pool that wait for their next use, and host memory of values on their way (drawn, read, gathered).',
  ].join('\n\n');
}
