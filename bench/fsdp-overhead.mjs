// What FullyShardedDataParallel costs where there is nothing to share: a training step of a GPT wrapped
// at world size 1 over the same step plain, and plain with packed parameters. One process, steps of
// all three in turn; medians. Needs the built packages.
// Usage: node bench/fsdp-overhead.mjs [--rounds 30] [--threads 1] [--report FILE]

import { mkdirSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { dirname } from 'node:path';
import { parseArgs } from 'node:util';
import { createMemoryGroup } from '../packages/collectives/dist/index.js';
import { FullyShardedDataParallel } from '../packages/fsdp/dist/index.js';
import { AdamW, Gpt2, packParameters } from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { crossEntropy, Device } from '../packages/tensor-core/dist/index.js';
import { GPT } from './gpt-shape.mjs';

// Of the small one the kernels cost next to nothing: what is left is the host's work.
const SHAPES = {
  small: { vocab: 32, seq: 8, width: 16, layers: 8, heads: 2, batch: 1 },
  bench: GPT,
};
const KINDS = ['plain', 'packed', 'wrapped'];
const WARM_UP_STEPS = 5; // pools fill, code is compiled

const { values: flags } = parseArgs({
  options: {
    rounds: { type: 'string', default: '30' },
    threads: { type: 'string', default: '1' },
    report: { type: 'string' },
  },
});
const rounds = Number(flags.rounds);
const backend = await createCpuBackend({ threads: Number(flags.threads) });
const rows = [];
for (const [name, shape] of Object.entries(SHAPES)) rows.push(await measure(name, shape));
await backend.dispose();
const text = report();
console.log(text);
if (flags.report !== undefined) {
  mkdirSync(dirname(flags.report), { recursive: true });
  writeFileSync(flags.report, text);
}

/** Interleaved: each round runs one step of every kind, in an order that turns. */
async function measure(name, shape) {
  const runs = KINDS.map((kind) => ({ ...training(shape, kind), samples: [] }));
  for (let i = 0; i < WARM_UP_STEPS; i++) for (const { step } of runs) await step();
  for (const run of runs) {
    const before = backend.dispatches;
    await run.step();
    run.kernels = backend.dispatches - before;
  }
  for (let round = 0; round < rounds; round++) {
    for (let i = 0; i < runs.length; i++) {
      const run = runs[(i + round) % runs.length];
      const start = performance.now();
      await run.step();
      run.samples.push(performance.now() - start);
    }
  }
  for (const { dispose } of runs) await dispose();
  const medians = runs.map(({ samples }) => median(samples));
  const pairs = runs[2].samples.map((ms, round) => ms - runs[0].samples[round]);
  return {
    name,
    shape,
    medians,
    kernels: runs.map(({ kernels }) => kernels),
    hostUsPerUnit: (1000 * median(pairs)) / (shape.layers + 1),
  };
}

function training(shape, kind) {
  const { vocab, seq, width, layers, heads, batch } = shape;
  const device = new Device(backend, { seed: 1 });
  const gpt = new Gpt2(device, {
    vocab_size: vocab,
    n_positions: seq,
    n_embd: width,
    n_layer: layers,
    n_head: heads,
    embd_pdrop: 0,
    attn_pdrop: 0,
    resid_pdrop: 0,
  });
  const [processGroup] = createMemoryGroup(1);
  const model = kind === 'wrapped' ? wrap(gpt, processGroup) : gpt;
  if (kind === 'packed') packParameters(gpt);
  const optimizer = new AdamW(model.parameters(), { lr: 1e-3 });
  const ids = Int32Array.from({ length: batch * seq }, (_, i) => (i * 7) % vocab);
  const step = () =>
    device.scope(async () => {
      const [x, y] = [device.tensor(ids, [batch, seq]), device.tensor(ids, [batch, seq])];
      const loss = await device.scope(async () => crossEntropy(await model.call(x), y));
      await loss.backward();
      await optimizer.step();
      optimizer.zeroGrad();
      await loss.item(); // waits for all of it
    });
  const dispose = async () => {
    device.dispose();
    await processGroup.close();
  };
  return { step, dispose };
}

function wrap(gpt, processGroup) {
  for (const name of [...gpt.children().keys()].slice(1, -1)) {
    const block = new FullyShardedDataParallel(gpt.children().get(name), { processGroup });
    gpt.replaceChild(name, block);
  }
  return new FullyShardedDataParallel(gpt, { processGroup });
}

function median(list) {
  const sorted = [...list].sort((a, b) => a - b);
  return sorted[sorted.length >> 1];
}

function report() {
  const head = [
    'model',
    'units',
    ...KINDS.map((kind) => `${kind}, ms`),
    'wrapped / plain',
    'wrapped / packed',
    'us a unit over plain',
    `kernels ${KINDS.join(' / ')}`,
  ];
  const body = rows.map(({ name, shape, medians, kernels, hostUsPerUnit }) => [
    `${name}: ${shape.layers} blocks, width ${shape.width}, ${shape.batch} x ${shape.seq} tokens`,
    shape.layers + 1,
    ...medians.map((ms) => ms.toFixed(2)),
    (medians[2] / medians[0]).toFixed(3),
    (medians[2] / medians[1]).toFixed(3),
    hostUsPerUnit.toFixed(0),
    kernels.join(' / '),
  ]);
  const table = [head, head.map(() => '---'), ...body].map((line) => `| ${line.join(' | ')} |`);
  const command = `node bench/fsdp-overhead.mjs ${process.argv.slice(2).join(' ')}`.trim();
  return `${[
    `# Cost of wrapping at world size 1, ${new Date().toISOString().slice(0, 10)}`,
    `${os.cpus().length} x ${os.cpus()[0].model}, Node ${process.version}, load ${os.loadavg()[0].toFixed(1)}. ${backend.info.description}. Medians of ${rounds} interleaved steps: forward, backward, AdamW, reading the loss back, f32. Us a unit: the median over rounds of wrapped less plain, divided by the units.`,
    `Command: \`${command}\``,
    table.join('\n'),
  ].join('\n\n')}\n`;
}
