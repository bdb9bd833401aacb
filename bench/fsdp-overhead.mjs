// What FullyShardedDataParallel costs where there is nothing to share. A training step of a GPT
// that is wrapped at world size 1 is compared with the same step without a wrapper, and with packed
// parameters. All three take turns in one process; it reports best and median. It needs the built
// packages.
// Usage: node bench/fsdp-overhead.mjs [--rounds 30] [--threads 1] [--report FILE]

import './relaxed-simd.mjs';
import { createMemoryGroup } from '../packages/collectives/dist/index.js';
import { FullyShardedDataParallel } from '../packages/fsdp/dist/index.js';
import { AdamW, Gpt2, packParameters } from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device, mean } from '../packages/tensor-core/dist/index.js';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';
import { GPT } from './gpt-shape.mjs';

// The kernels of the small shape cost next to nothing, so its time is the host's work.
const SHAPES = {
  small: { vocab: 32, seq: 8, width: 16, layers: 8, heads: 2, batch: 1 },
  bench: GPT,
};
const KINDS = ['plain', 'packed', 'wrapped'];
const WARM_UP_STEPS = 5; // until pools are full and the code is compiled

const flags = flagsOf({
  rounds: '30',
  threads: '1',
  report: undefined,
});
const rounds = Number(flags.rounds);
const record = await startRecord('bench/fsdp-overhead.mjs');
const backend = await createCpuBackend({ threads: Number(flags.threads) });
const rows = [];
for (const [name, shape] of Object.entries(SHAPES)) {
  rows.push(await measure(name, shape));
}
await backend.dispose();
await endRecord(record);
Object.assign(record, { rounds, rows });
publish(flags.report, report(), record);

/**
 * Measures in turns: each round runs one step of every kind, beginning with another one each time.
 */
async function measure(name, shape) {
  const runs = KINDS.map((kind) => ({ ...training(shape, kind), samples: [] }));
  for (let i = 0; i < WARM_UP_STEPS; i++) {
    for (const { step } of runs) {
      await step();
    }
  }
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
  for (const { dispose } of runs) {
    await dispose();
  }
  const pairs = runs[2].samples.map((ms, round) => ms - runs[0].samples[round]);
  return {
    name,
    shape,
    times: Object.fromEntries(runs.map(({ samples }, i) => [KINDS[i], timesOf(samples)])),
    kernels: runs.map(({ kernels }) => kernels),
    hostUsPerUnit: (1000 * timesOf(pairs).median) / (shape.layers + 1),
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
  if (kind === 'packed') {
    packParameters(gpt);
  }
  const optimizer = new AdamW(model.parameters(), { lr: 1e-3 });
  const ids = Int32Array.from({ length: batch * seq }, (_, i) => (i * 7) % vocab);
  const step = () =>
    device.scope(async () => {
      const [x, y] = [device.tensor(ids, [batch, seq]), device.tensor(ids, [batch, seq])];
      const loss = await device.scope(async () => mean(await model.call(x, { targets: y })));
      await loss.backward();
      await optimizer.step();
      optimizer.zeroGrad();
      await loss.item(); // waits for the whole step
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
  const body = rows.map(({ name, shape, times, kernels, hostUsPerUnit }) => {
    const both = (format) => ['best', 'median'].map(format).join(' / ');
    const over = (kind) => both((which) => (times.wrapped[which] / times[kind][which]).toFixed(3));
    return [
      `${name}: ${shape.layers} blocks, width ${shape.width}, ${shape.batch} x ${shape.seq} tokens`,
      shape.layers + 1,
      ...KINDS.map((kind) => both((which) => times[kind][which].toFixed(2))),
      over('plain'),
      over('packed'),
      hostUsPerUnit.toFixed(0),
      kernels.join(' / '),
    ];
  });
  return [
    headOf('Cost of wrapping at world size 1', record),
    `${backend.info.description}. Best / median of ${rounds} interleaved steps: forward, backward, AdamW, reading the loss back, f32. Us a unit: the median over rounds of wrapped less plain, divided by the units.`,
    table(head, body),
  ].join('\n\n');
}
