// Bucketed gradients beside one all-reduce per parameter, and beside PyTorch's
// DistributedDataParallel over Gloo with the same bytes, in one interleaved run.
// Usage: node bench/ddp.mjs [--ranks 2] [--rounds 5] [--steps 8] [--transports ws,shm]
//   [--report FILE]

import { spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import os from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const PYTHON = '/usr/bin/python3'; // Debian's Python, which finds Debian's packages
const MIB = 2 ** 20;
/**
 * A GPT of 76 parameters with 21 MiB of gradients. That makes several buckets of the shape that
 * PyTorch's usually have, at a smaller cap.
 */
const GPT = { vocab_size: 2048, n_positions: 64, n_embd: 256, n_layer: 6, n_head: 4 };
const SIZES = { firstBucketBytes: MIB, bucketCapBytes: 4 * MIB };

const flags = flagsOf({
  ranks: '2',
  rounds: '5',
  steps: '8',
  transports: 'ws,shm',
  report: undefined,
});
const worldSize = Number(flags.ranks);
const steps = Number(flags.steps);
const transports = flags.transports.split(',');
const folder = mkdtempSync(join(os.tmpdir(), 'shardweave-ddp-'));
const record = await startRecord('bench/ddp.mjs');
const results = new Map();
let torchVersion;
let shape;
try {
  const script = await bundle();
  const shapes = shapesOf(GPT);
  const hasTorch = spawnSync(PYTHON, ['-c', 'import torch']).status === 0;
  for (let round = 0; round < Number(flags.rounds); round++) {
    process.stderr.write(`round ${round + 1} of ${flags.rounds}\n`);
    for (const transport of transports) {
      for (const hasCompute of [false, true]) {
        const out = await ours(script, { transport, hasCompute });
        shape = out;
        for (const [mode, times] of Object.entries(out.times)) {
          note(`${transport} ${hasCompute ? 'gpt' : 'shapes'} ${mode}`, times);
        }
      }
    }
    if (!hasTorch) {
      continue;
    }
    const out = await torch(shapes, round);
    torchVersion = out.version;
    note('torch', out.times);
  }
} finally {
  rmSync(folder, { recursive: true, force: true });
}
await endRecord(record);
Object.assign(record, {
  worldSize,
  transports,
  steps,
  rounds: Number(flags.rounds),
  ...SIZES,
  numParameters: shape.numParameters,
  numBuckets: shape.numBuckets,
  bytes: shape.bytes,
  torchVersion,
  // Times in ms, of communication alone and of steps of a GPT. The first key is the transport, the
  // second the mode.
  alone: byTransport('shapes', 'communicationMs', ['naive', 'bucketed']),
  step: byTransport('gpt', 'stepMs', ['local', 'naive', 'bucketed']),
  torch:
    torchVersion && timesOf(results.get('torch').map(({ communicationMs }) => communicationMs)),
});
publish(flags.report, reportText(), record);

/**
 * Bundles the rank's script with the packages' sources into one file, placed where Node finds what
 * is not bundled.
 */
async function bundle() {
  const outfile = fileURLToPath(new URL('.shardweave/ddp-rank.mjs', import.meta.url));
  await build({
    entryPoints: [fileURLToPath(new URL('ddp/rank.mjs', import.meta.url))],
    outfile,
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'es2022',
    conditions: ['@shardweave/source'],
    nodePaths: [fileURLToPath(new URL('../apps/trainer/node_modules', import.meta.url))],
    external: ['webgpu', 'bufferutil'],
    banner: {
      js: "import { createRequire as requireFrom } from 'node:module'; const require = requireFrom(import.meta.url);",
    },
    logLevel: 'error',
  });
  return outfile;
}

async function ours(script, { transport, hasCompute }) {
  const shared = { transport, hasCompute, worldSize, steps, gpt: GPT, rows: 4, ...SIZES };
  const job = { port: await freePort(), secret: randomBytes(16).toString('hex') };
  const ranks = transport === 'ws' ? [...Array(worldSize).keys()] : [0];
  const specs = ranks.map((rank) => JSON.stringify({ ...shared, ...job, rank }));
  return firstLine(specs.map((spec) => [process.execPath, [script, spec]]));
}

async function torch(shapes, round) {
  const own = join(folder, `torch-${round}`);
  mkdirSync(own);
  const script = fileURLToPath(new URL('ddp/torch_rank.py', import.meta.url));
  const specs = [...Array(worldSize).keys()].map((rank) =>
    JSON.stringify({ rank, worldSize, shapes, steps, folder: own, ...SIZES }),
  );
  return firstLine(specs.map((spec) => [PYTHON, [script, spec]]));
}

/** Runs all processes to their ends, and returns what the first one printed. */
async function firstLine(commands) {
  const runs = commands.map(
    ([file, args]) =>
      new Promise((resolve, reject) => {
        const child = spawn(file, args, { stdio: ['ignore', 'pipe', 'inherit'] });
        let out = '';
        child.stdout.on('data', (chunk) => {
          out += chunk;
        });
        child.on('error', reject);
        child.on('exit', (code) => {
          if (code === 0) {
            resolve(out);
          } else {
            reject(new Error(`${file} ended with ${code}`));
          }
        });
      }),
  );
  return JSON.parse((await Promise.all(runs))[0]);
}

function freePort() {
  return new Promise((resolve) => {
    const server = createServer();
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** The shapes of GPT-2's parameters, with a tied head. */
function shapesOf({ vocab_size: V, n_positions: T, n_embd: C, n_layer: L }) {
  const block = [[C], [C], [C, 3 * C], [3 * C], [C, C], [C]];
  const mlp = [[C], [C], [C, 4 * C], [4 * C], [4 * C, C], [C]];
  return [[V, C], [T, C], ...Array.from({ length: L }, () => [...block, ...mlp]).flat(), [C], [C]];
}

function note(name, times) {
  results.set(name, [...(results.get(name) ?? []), ...times]);
}

function byTransport(what, key, modes) {
  const timesIn = (transport, mode) =>
    timesOf(results.get(`${transport} ${what} ${mode}`).map((time) => time[key]));
  return Object.fromEntries(
    transports.map((transport) => [
      transport,
      Object.fromEntries(modes.map((mode) => [mode, timesIn(transport, mode)])),
    ]),
  );
}

function reportText() {
  const { alone, step, torch } = record;
  const both = ({ best, median }) => `${best.toFixed(1)} / ${median.toFixed(1)}`;
  const ratios = (a, b) =>
    ['best', 'median'].map((key) => (a[key] / b[key]).toFixed(2)).join(' / ');
  const less = (a, b) => ({ best: a.best - b.best, median: a.median - b.median });
  return [
    headOf('Bucketed gradients', record),
    `${worldSize} ranks, ${shape.numParameters} parameters, ${(shape.bytes / MIB).toFixed(1)} MiB of f32 gradients, ${shape.numBuckets} buckets (first ${SIZES.firstBucketBytes / MIB} MiB, cap ${SIZES.bucketCapBytes / MIB} MiB, for PyTorch too; both default to more). ${flags.rounds} rounds, in each all contenders in turn, ${steps} steps after three of warm-up, in which the modes of ours take turns. Every cell: best / median of ${record.rounds * steps} steps, times in ms, or the ratio of the bests / of the medians.`,
    '## Communication alone',
    'All gradients are on the host, on every rank; then one all-reduce after another, or all buckets at once, until the last has ended.',
    table(
      ['', 'an all-reduce for each parameter', 'buckets', 'buckets : each'],
      transports.map((transport) => {
        const { naive, bucketed } = alone[transport];
        return [transport, both(naive), both(bucketed), ratios(bucketed, naive)];
      }),
    ),
    torch === undefined
      ? 'PyTorch was not installed.'
      : table(
          [
            `PyTorch ${torchVersion}'s DDP over Gloo`,
            ...transports.map((transport) => `our buckets over ${transport} : it`),
          ],
          [[both(torch), ...transports.map((name) => ratios(alone[name].bucketed, torch))]],
        ),
    '## What a step of a GPT shows of it',
    'Forward and backward on one wasm thread a rank. Exposed: what the step takes longer than the same without communication.',
    table(
      [
        '',
        'step without',
        'an all-reduce for each',
        'exposed',
        'buckets',
        'exposed',
        'exposed, buckets : each',
      ],
      transports.map((transport) => {
        const { local, naive, bucketed } = step[transport];
        const [ofNaive, ofBuckets] = [less(naive, local), less(bucketed, local)];
        return [
          transport,
          both(local),
          both(naive),
          both(ofNaive),
          both(bucketed),
          both(ofBuckets),
          ratios(ofBuckets, ofNaive),
        ];
      }),
    ),
  ].join('\n\n');
}
