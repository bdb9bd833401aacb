// How the time of a training step on the CPU device divides among kernels and shapes of products,
// beside the rates that products and copies reach on this machine by themselves. Every step issues
// the same kernels. Each kernel counts with the least time that it took in any step, so that a
// profile from a loaded machine is still useful.
// Usage: node bench/profile.mjs [--model small|26m|124m] [--threads 2] [--steps 5] [--plain]

import './relaxed-simd.mjs';
import { AdamW, Gpt2, packParameters } from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device, mean } from '../packages/tensor-core/dist/index.js';
import { flagsOf } from './figures/flags.mjs';
import { table } from './figures/table.mjs';
import { MODELS, parameterCount } from './gpt-shape.mjs';

const flags = flagsOf({
  model: 'small',
  threads: '2',
  steps: '5',
  plain: false,
});
const shape = MODELS[flags.model];
const backend = await createCpuBackend({
  threads: Number(flags.threads),
  ...(flags.plain ? { fusedProducts: false } : {}),
});
const device = new Device(backend);

/** What ran in the step: a product with its shape, any other kernel with its name. */
const events = [];
const products = [];
const run = backend.run.bind(backend);
backend.run = (kernel, call) => {
  if (kernel === 'matmul') {
    products.push(call);
  }
  run(kernel, call);
};

const step = await prepareStep();
await step();
let stepMs = Number.POSITIVE_INFINITY;
let kernels;
for (let i = 0; i < Number(flags.steps); i++) {
  stepMs = Math.min(stepMs, await timed(step));
  events.length = 0;
  products.length = 0;
  backend.trace((event) => events.push(event));
  await step();
  backend.trace(undefined);
  const ran = events.filter(({ track }) => track === 'device');
  kernels ??= ran.map(({ name }) => ({ name, ms: Number.POSITIVE_INFINITY }));
  ran.forEach(({ startMs, endMs }, at) => {
    kernels[at].ms = Math.min(kernels[at].ms, endMs - startMs);
  });
}
const rates = { product: await productRate(), copy: await copyRate() };
console.log(report());
await backend.dispose();

async function timed(body) {
  const start = performance.now();
  await body();
  return performance.now() - start;
}

async function prepareStep() {
  const model = new Gpt2(device, {
    vocab_size: shape.vocab,
    n_positions: shape.seq,
    n_embd: shape.width,
    n_layer: shape.layers,
    n_head: shape.heads,
    embd_pdrop: 0,
    attn_pdrop: 0,
    resid_pdrop: 0,
  });
  packParameters(model);
  const optimizer = new AdamW(model.parameters(), { lr: shape.lr });
  const count = shape.batch * shape.seq;
  const at = (i) => (i * 7 + 3 * (i >> 4)) % shape.vocab;
  const ids = Int32Array.from({ length: count }, (_, i) => at(i));
  const targets = Int32Array.from({ length: count }, (_, i) => at(i + 1));
  const extent = [shape.batch, shape.seq];
  return () =>
    device.scope(async () => {
      const [x, y] = [device.tensor(ids, extent), device.tensor(targets, extent)];
      const loss = await device.scope(async () => mean(await model.call(x, { targets: y })));
      await loss.backward();
      await optimizer.step();
      optimizer.zeroGrad();
      await loss.item();
      await device.synchronize();
    });
}

/** The best rate of some products of size 1,024, in GFLOP/s. */
async function productRate() {
  const size = 1024;
  const [a, b, out] = [0, 1, 2].map(() => view(size * size));
  const dense = {
    aRow: size,
    bRow: size,
    outRow: size,
    batch: [1, 1],
    alpha: 1,
    accumulate: false,
  };
  const none = { aBatch: [0, 0], bBatch: [0, 0], outBatch: [0, 0], bias: undefined };
  const call = { a, b, out, m: size, n: size, k: size, transposeA: false, transposeB: false };
  const ms = await bestOf(() => run('matmul', { ...dense, ...none, ...call }));
  free(a, b, out);
  return (2 * size ** 3) / ms / 1e6;
}

/** The rate at which copies larger than the caches read and write, in GB/s. */
async function copyRate() {
  const size = 1 << 25;
  const [from, to] = [view(size), view(size)];
  const ms = await bestOf(() => backend.copy(from.buffer, 0, to.buffer, 0, size * 4));
  free(from, to);
  return (2 * size * 4) / ms / 1e6;
}

async function bestOf(encode) {
  let least = Number.POSITIVE_INFINITY;
  for (let i = 0; i < 10; i++) {
    const ms = await timed(async () => {
      encode();
      await backend.sync();
    });
    least = Math.min(least, ms);
  }
  return least;
}

function view(size) {
  const buffer = backend.alloc(size * 4, 'bench');
  run('fill', { out: { buffer, byteOffset: 0, dtype: 'f32', size }, value: 0.5 });
  return { buffer, byteOffset: 0, dtype: 'f32', size };
}

function free(...views) {
  for (const { buffer } of views) {
    backend.free(buffer);
  }
}

function report() {
  const total = sum(kernels.map(({ ms }) => ms));
  const byName = tally(kernels, ({ name }) => name);
  const matmuls = kernels.filter(({ name }) => name === 'matmul');
  const byShape = tally(
    matmuls.map((event, i) => ({ ...event, call: products[i] })),
    ({ call }) => shapeOf(call),
  );
  const row = (name, { ms, calls }) => [name, calls, ms.toFixed(2), percent(ms / stepMs)];
  return [
    `${parameterCount(shape).toLocaleString('en-US')} parameters, ${shape.batch} x ${shape.seq} tokens, ${backend.info.description}: ${stepMs.toFixed(1)} ms the best step, ${total.toFixed(1)} in its ${kernels.length} kernels.`,
    `By themselves: product of 1,024 ${rates.product.toFixed(1)} GFLOP/s, copy ${rates.copy.toFixed(1)} GB/s read and written.`,
    table(
      ['kernel', 'calls', 'ms', 'of the step'],
      byName.map(([name, entry]) => row(name, entry)),
    ),
    table(
      ['product', 'calls', 'ms', 'of the step', 'GFLOP/s'],
      byShape.map(([name, entry]) => [
        ...row(name, entry),
        (sum(entry.events.map(({ call }) => flopOf(call))) / entry.ms / 1e6).toFixed(1),
      ]),
    ),
  ].join('\n\n');
}

function shapeOf({ m, n, k, batch, transposeA, transposeB, bias, accumulate }) {
  const layout = `${transposeA ? 'T' : 'N'}${transposeB ? 'T' : 'N'}`;
  const batches = batch[0] * batch[1];
  const extras = `${bias ? ' + bias' : ''}${accumulate ? ' + out' : ''}`;
  return `${layout} ${m} x ${n} x ${k}${batches > 1 ? `, ${batches} times` : ''}${extras}`;
}

function flopOf({ m, n, k, batch }) {
  return 2 * m * n * k * batch[0] * batch[1];
}

/** Calls and time of each key, beginning with the longest time. */
function tally(list, keyOf) {
  const found = new Map();
  for (const event of list) {
    const key = keyOf(event);
    const entry = found.get(key) ?? { calls: 0, ms: 0, events: [] };
    entry.calls++;
    entry.ms += event.ms;
    entry.events.push(event);
    found.set(key, entry);
  }
  return [...found].sort(([, a], [, b]) => b.ms - a.ms);
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function percent(part) {
  return `${(part * 100).toFixed(1)} %`;
}
