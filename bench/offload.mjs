// What resting off the device costs: a training step of a GPT under OffloadModel, on the host and the
// disk tier, over the same step resident, by batch size; how much of a delay in every read is hidden; and
// the disk tier's rate over plain files; a model whose state is ten times the device's budget; and the optimizer's step streamed through a WebGPU device over the
// same step by cpu kernels on the host, where the state rests. One process, steps in turn; medians. Needs the built packages.
// Usage: node bench/offload.mjs [--rounds 10] [--threads 2] [--delay 20] [--report FILE]

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import os from 'node:os';
import { dirname, join } from 'node:path';
import { parseArgs } from 'node:util';
import { AdamW, Gpt2, packParameters } from '../packages/nn/dist/index.js';
import { OffloadModel } from '../packages/offload/dist/index.js';
import { createHostStore } from '../packages/shard-store/dist/index.js';
import { openDiskStore } from '../packages/shard-store/dist/node.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { crossEntropy, Device } from '../packages/tensor-core/dist/index.js';
import { createWebGpuBackend } from '../packages/tensor-core/dist/webgpu.js';
import { openNodeGpu } from '../packages/tensor-core/dist/webgpu-node.js';

const CONFIG = {
  vocab_size: 256,
  n_positions: 64,
  n_embd: 256,
  n_layer: 6,
  n_head: 8,
  embd_pdrop: 0,
  attn_pdrop: 0,
  resid_pdrop: 0,
};
const BATCHES = [1, 4, 16];
const KINDS = ['resident', 'host', 'disk'];
const WARM_UP_STEPS = 3; // the order of slices is learnt, pools and buffers fill
const DISK_KEYS = 16;
const DISK_KEY_BYTES = 8 * 2 ** 20;

const { values: flags } = parseArgs({
  options: {
    rounds: { type: 'string', default: '10' },
    threads: { type: 'string', default: '2' },
    delay: { type: 'string', default: '20' },
    report: { type: 'string' },
  },
});
const rounds = Number(flags.rounds);
const delayMs = Number(flags.delay);
const folder = mkdtempSync(join(os.tmpdir(), 'shardweave-offload-'));
const backend = await createCpuBackend({ threads: Number(flags.threads) });
const costs = [];
for (const batch of BATCHES) costs.push(await cost(batch));
const hidden = await hiddenDelay(BATCHES.at(-1));
const optimizers = await optimizerSteps();
const tight = await tenthOfItsState();
await backend.dispose();
const disk = await diskRates();
rmSync(folder, { recursive: true });
const text = report();
console.log(text);
if (flags.report !== undefined) {
  mkdirSync(dirname(flags.report), { recursive: true });
  writeFileSync(flags.report, text);
}

async function cost(batch) {
  const runs = [];
  for (const kind of KINDS) runs.push({ ...(await training(kind, batch)), samples: [] });
  for (let i = 0; i < WARM_UP_STEPS; i++) for (const { step } of runs) await step();
  for (let round = 0; round < rounds; round++) {
    for (let i = 0; i < runs.length; i++) {
      const run = runs[(i + round) % runs.length];
      run.samples.push(await timed(run.step));
    }
  }
  const peaks = runs.map(({ device }) => device.memory().peak.total);
  for (const { dispose } of runs) await dispose();
  return { batch, medians: runs.map(({ samples }) => median(samples)), peaks };
}

/** The peak of a device that may hold a tenth of the model's state, and whether losses stay the same. */
async function tenthOfItsState() {
  const config = { ...CONFIG, vocab_size: 64, n_positions: 32, n_embd: 64, n_layer: 40, n_head: 4 };
  const ids = Int32Array.from({ length: 2 * 32 }, (_, i) => (i * 7) % 64);
  const runs = [];
  let budget;
  let stateBytes;
  for (const kind of KINDS) {
    const device = new Device(backend, { seed: 1 });
    let model = new Gpt2(device, config, { seed: 1, deferInit: kind !== 'resident' });
    let store;
    if (kind === 'resident') {
      stateBytes = model.parameters().reduce((sum, { size }) => sum + 16 * size, 0);
      budget = Math.floor(stateBytes / 10);
    } else {
      const directory = join(folder, 'tight');
      store = kind === 'host' ? createHostStore() : await openDiskStore({ directory });
      const options = { store, deviceBudgetBytes: budget, checkpointActivation: true };
      model = new OffloadModel(model, options);
    }
    const optimizer = new AdamW(model.parameters(), { lr: 1e-3 });
    const losses = [];
    let peak = 0;
    for (let step = 0; step < 3; step++) {
      await device.scope(async () => {
        const x = device.tensor(ids, [2, 32]);
        const loss = crossEntropy(await model.call(x), x);
        await loss.backward();
        losses.push(await loss.item());
      });
      peak = Math.max(peak, device.memory().reservedBytes);
      await optimizer.step();
      peak = Math.max(peak, device.memory().reservedBytes);
      optimizer.zeroGrad();
    }
    runs.push({ kind, peak, losses: losses.join(', ') });
    device.dispose();
    await store?.close();
  }
  return { stateBytes, budget, runs };
}

/** Every read of a parameter takes delayMs longer, which costs no core. */
async function hiddenDelay(batch) {
  let isDelayed = false;
  let reads = 0;
  const store = createHostStore();
  const read = store.read.bind(store);
  store.read = async (key, ...rest) => {
    if (key.endsWith('/parameter')) {
      reads += 1;
      if (isDelayed) await new Promise((resolve) => setTimeout(resolve, delayMs));
    }
    return read(key, ...rest);
  };
  const { step, dispose } = await training('host', batch, store);
  for (let i = 0; i < WARM_UP_STEPS; i++) await step();
  const samples = { plain: [], delayed: [] };
  for (let round = 0; round < rounds; round++) {
    isDelayed = round % 2 === 1;
    reads = 0;
    samples[isDelayed ? 'delayed' : 'plain'].push(await timed(step));
  }
  await dispose();
  const [t0, t1] = [median(samples.plain), median(samples.delayed)];
  return { batch, reads, t0, t1, share: 1 - (t1 - t0) / (reads * delayMs) };
}

/** Milliseconds of an optimizer's step with all state in host memory, by the device that computes it. */
async function optimizerSteps() {
  const adapter = await openNodeGpu().requestAdapter();
  if (adapter === null) return undefined;
  const gpu = await createWebGpuBackend({ gpu: openNodeGpu(), allowSoftware: true });
  const runs = [];
  for (const kernels of [gpu, backend]) {
    const { pass, stepOptimizer, dispose } = await training('host', 1, undefined, kernels);
    runs.push({ pass, stepOptimizer, dispose, samples: [] });
  }
  for (let round = 0; round < rounds + 1; round++) {
    for (const { pass, stepOptimizer, samples } of runs) {
      await pass();
      const ms = await timed(stepOptimizer);
      if (round > 0) samples.push(ms); // the first compiles and fills pools
    }
  }
  for (const { dispose } of runs) await dispose();
  await gpu.dispose();
  const { vendor, architecture, description } = adapter.info;
  const [onDevice, onHost] = runs.map(({ samples }) => median(samples));
  return {
    adapter: [vendor, architecture, description].filter(Boolean).join(' '),
    onDevice,
    onHost,
  };
}

async function training(kind, batch, given, kernels = backend) {
  const device = new Device(kernels, { seed: 1 });
  const gpt = new Gpt2(device, CONFIG, { seed: 1 });
  let model = gpt;
  let store = given;
  if (kind === 'resident') packParameters(gpt);
  else {
    const directory = join(folder, `${kind}-${batch}`);
    store ??= kind === 'host' ? createHostStore() : await openDiskStore({ directory });
    model = new OffloadModel(gpt, { store, numSlices: CONFIG.n_layer + 2 });
  }
  const optimizer = new AdamW(model.parameters(), { lr: 1e-3 });
  const seq = CONFIG.n_positions;
  const ids = Int32Array.from({ length: batch * seq }, (_, i) => (i * 7) % CONFIG.vocab_size);
  const pass = () =>
    device.scope(async () => {
      const x = device.tensor(ids, [batch, seq]);
      const loss = crossEntropy(await model.call(x), x);
      await loss.backward();
      await loss.item();
    });
  const stepOptimizer = async () => {
    await optimizer.step();
    optimizer.zeroGrad();
    await device.synchronize();
  };
  const step = async () => {
    await pass();
    await stepOptimizer();
  };
  const dispose = async () => {
    device.dispose();
    await store?.close();
  };
  return { device, step, pass, stepOptimizer, dispose };
}

/** Milliseconds to write and to read the same bytes: the store, and files without checksums. */
async function diskRates() {
  const values = Array.from({ length: DISK_KEYS }, (_, i) =>
    new Uint8Array(DISK_KEY_BYTES).fill(i),
  );
  const into = new Uint8Array(DISK_KEY_BYTES);
  const store = await openDiskStore({ directory: join(folder, 'rates') });
  const times = { storeWrite: [], storeRead: [], fileWrite: [], fileRead: [] };
  for (let round = 0; round < 5; round++) {
    times.storeWrite.push(
      await timed(async () => {
        await Promise.all(values.map((value, i) => store.write(`k${i}`, value)));
        await store.commit();
      }),
    );
    times.fileWrite.push(await timed(() => eachFile('w', (file, i) => file.write(values[i]))));
    times.storeRead.push(
      await timed(async () => {
        for (let i = 0; i < DISK_KEYS; i++) await store.read(`k${i}`, into);
      }),
    );
    times.fileRead.push(
      await timed(() => eachFile('r', (file) => file.read(into, 0, DISK_KEY_BYTES, 0))),
    );
  }
  await store.close();
  return Object.fromEntries(Object.entries(times).map(([name, list]) => [name, median(list)]));
}

async function eachFile(mode, use) {
  for (let i = 0; i < DISK_KEYS; i++) {
    const file = await open(join(folder, `plain${i}`), mode);
    await use(file, i);
    await file.close();
  }
}

function report() {
  const ms = (value) => `${value.toFixed(0)} ms`;
  const ratio = (a, b) => (a / b).toFixed(2);
  const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
  const total = DISK_KEYS * DISK_KEY_BYTES;
  return [
    `# Cost of offload, ${new Date().toISOString().slice(0, 10)}`,
    `${os.cpus().length} x ${os.cpus()[0].model}, Node ${process.version}, load ${os.loadavg()[0].toFixed(1)} at the end. cpu device, ${flags.threads} threads. GPT: ${CONFIG.n_layer} layers, width ${CONFIG.n_embd}, ${CONFIG.n_positions} tokens a row; a slice a layer, AdamW. Medians of ${rounds} interleaved steps.`,
    `Command: \`node bench/offload.mjs ${process.argv.slice(2).join(' ')}\``,
    [
      '| rows | resident | host tier | disk tier | host / resident | disk / resident | peak of the device, resident | host tier |',
      '|---|---|---|---|---|---|---|---|',
      ...costs.map(
        ({ batch, medians: [resident, host, onDisk], peaks }) =>
          `| ${batch} | ${ms(resident)} | ${ms(host)} | ${ms(onDisk)} | ${ratio(host, resident)} | ${ratio(onDisk, resident)} | ${mib(peaks[0])} | ${mib(peaks[1])} |`,
      ),
    ].join('\n'),
    `Hidden: ${hidden.reads} reads of parameters a step (forward, backward, optimizer), each delayed by ${delayMs} ms, ${hidden.batch} rows: ${ms(hidden.t0)} without, ${ms(hidden.t1)} with; ${(100 * hidden.share).toFixed(0)} % of the delays hidden.`,
    `A GPT of 40 layers, width 64: parameters, gradients and optimizer state take ${mib(tight.stateBytes)}, the budget is ${mib(tight.budget)}. The most that the pool held in three steps, and their losses: ${tight.runs.map(({ kind, peak, losses }) => `${kind} ${mib(peak)} (${losses})`).join('; ')}.`,
    `Disk tier: ${mib(total)} written and committed in ${ms(disk.storeWrite)}, read in ${ms(disk.storeRead)}; plain files, without checksums, ${ms(disk.fileWrite)} and ${ms(disk.fileRead)}: ${ratio(disk.storeWrite, disk.fileWrite)} and ${ratio(disk.storeRead, disk.fileRead)} times. The files lie in the page cache.`,
    optimizers === undefined
      ? 'Optimizer on the device or on the host: no WebGPU adapter here.'
      : `Optimizer: AdamW's step over host bytes, layer by layer, streamed through WebGPU (${optimizers.adapter}) ${ms(optimizers.onDevice)}, by cpu kernels on the host ${ms(optimizers.onHost)}: ${ratio(optimizers.onDevice, optimizers.onHost)} times. Offload steps on the compute device as the layer passes: the kernels, and so the bits, are those of a resident step. On a software adapter both use the same cores and memory; a GPU adds a bus each way, 12 bytes to and 12 from the device a parameter and 4 of its gradient.`,
    "On a cpu device host and device share memory and cores: a load is a copy that takes a core from the kernels, so the ratios show the work that offload adds, not a bus. What a PCIe or unified-memory GPU would show isn't in them.",
    '',
  ].join('\n\n');
}

async function timed(body) {
  const start = performance.now();
  await body();
  return performance.now() - start;
}

function median(list) {
  const sorted = [...list].sort((a, b) => a - b);
  return sorted[sorted.length >> 1];
}
