// What it costs to rest off the device. The parts are:
// - cost: a training step of a GPT under OffloadModel, on the host and the disk tier, beside the
//   same step resident, by batch size
// - hidden: how much of a delay in every read is hidden
// - tight: a model whose state is ten times the device's budget
// - disk: the disk tier beside plain files that are written, synced and read in the same order
// - optimizer: the optimizer's step streamed through a WebGPU device, beside the same step by cpu
//   kernels on the host, where the state rests
// Contenders take turns in one process; it reports best and median. It needs the built packages.
// Usage: node bench/offload.mjs [--only cost,hidden,tight,disk,optimizer] [--rounds 10]
//   [--threads 2] [--delay 20] [--report FILE]

import './relaxed-simd.mjs';
import { constants, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { AdamW, Gpt2, packParameters } from '../packages/nn/dist/index.js';
import { OffloadModel } from '../packages/offload/dist/index.js';
import { createHostStore } from '../packages/shard-store/dist/index.js';
import { openDiskStore } from '../packages/shard-store/dist/node.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device, mean } from '../packages/tensor-core/dist/index.js';
import { createWebGpuBackend } from '../packages/tensor-core/dist/webgpu.js';
import { openNodeGpu } from '../packages/tensor-core/dist/webgpu-node.js';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from './figures/record.mjs';
import { table } from './figures/table.mjs';

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
const WARM_UP_STEPS = 3; // until the order of slices is learned and pools are full
const DISK_KEYS = 8;
const DISK_KEY_BYTES = 4 * 2 ** 20;
const AT_ONCE = 4; // what the store does by default

const flags = flagsOf({
  only: 'cost,hidden,tight,disk,optimizer',
  rounds: '10',
  threads: '2',
  delay: '20',
  report: undefined,
});
const rounds = Number(flags.rounds);
const delayMs = Number(flags.delay);
const parts = flags.only.split(',');
const record = await startRecord('bench/offload.mjs');
// The system's folder for temporary files may be in memory, so this one is used.
const scratch = join(import.meta.dirname, '.shardweave');
mkdirSync(scratch, { recursive: true });
const folder = mkdtempSync(join(scratch, 'offload-'));
const backend = await createCpuBackend({ threads: Number(flags.threads) });
const figures = { rounds, threads: Number(flags.threads), delayMs };
try {
  if (parts.includes('cost')) {
    figures.costs = [];
    for (const batch of BATCHES) {
      figures.costs.push(await cost(batch));
    }
  }
  if (parts.includes('hidden')) {
    figures.hidden = await hiddenDelay(BATCHES.at(-1));
  }
  if (parts.includes('optimizer')) {
    figures.optimizers = await optimizerSteps();
  }
  if (parts.includes('tight')) {
    figures.tight = await tenthOfItsState();
  }
  await backend.dispose();
  if (parts.includes('disk')) {
    figures.disk = await diskRates();
  }
} finally {
  rmSync(folder, { recursive: true });
}
await endRecord(record);
Object.assign(record, figures);
publish(flags.report, report(), record);

async function cost(batch) {
  const runs = [];
  for (const kind of KINDS) {
    runs.push({ ...(await training(kind, batch)), samples: [] });
  }
  for (let i = 0; i < WARM_UP_STEPS; i++) {
    for (const { step } of runs) {
      await step();
    }
  }
  for (let round = 0; round < rounds; round++) {
    for (let i = 0; i < runs.length; i++) {
      const run = runs[(i + round) % runs.length];
      run.samples.push(await timed(run.step));
    }
  }
  const peaks = runs.map(({ device }) => device.memory().peak.total);
  for (const { dispose } of runs) {
    await dispose();
  }
  const times = Object.fromEntries(runs.map(({ samples }, i) => [KINDS[i], timesOf(samples)]));
  return { batch, times, peaks };
}

/**
 * The peak of a device whose limit is a tenth of the model's state, and whether losses stay the
 * same.
 */
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
        const loss = mean(await model.call(x, { targets: x }));
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

/** Makes every read of a parameter take delayMs longer, which occupies no core. */
async function hiddenDelay(batch) {
  let isDelayed = false;
  let reads = 0;
  const store = createHostStore();
  const read = store.read.bind(store);
  store.read = async (key, ...rest) => {
    if (key.endsWith('/parameter')) {
      reads += 1;
      if (isDelayed) {
        await new Promise((resolve) => setTimeout(resolve, delayMs));
      }
    }
    return read(key, ...rest);
  };
  const { step, dispose } = await training('host', batch, store);
  for (let i = 0; i < WARM_UP_STEPS; i++) {
    await step();
  }
  const samples = { plain: [], delayed: [] };
  for (let round = 0; round < 2 * rounds; round++) {
    isDelayed = round % 2 === 1;
    reads = 0;
    samples[isDelayed ? 'delayed' : 'plain'].push(await timed(step));
  }
  await dispose();
  return { batch, reads, plain: timesOf(samples.plain), delayed: timesOf(samples.delayed) };
}

/**
 * The milliseconds of an optimizer's step with all state in host memory, for each device that
 * computes it.
 */
async function optimizerSteps() {
  const adapter = await openNodeGpu().requestAdapter();
  if (adapter === null) {
    return undefined;
  }
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
      if (round > 0) {
        samples.push(ms); // the first step compiles and fills pools
      }
    }
  }
  for (const { dispose } of runs) {
    await dispose();
  }
  await gpu.dispose();
  const { vendor, architecture, description } = adapter.info;
  const [onDevice, onHost] = runs.map(({ samples }) => timesOf(samples));
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
  if (kind === 'resident') {
    packParameters(gpt);
  } else {
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
      const loss = mean(await model.call(x, { targets: x }));
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

/**
 * The milliseconds to write and to read the same bytes by the store and by plain files. The plain
 * files follow the order of the store: the older of two files of each key is overwritten in place,
 * four at once, and at the end all of them and their folder are synced where that is asked for. The
 * rest of the difference is due to checksums, pieces and the list that a commit writes.
 */
async function diskRates() {
  const values = Array.from({ length: DISK_KEYS }, (_, i) =>
    new Uint8Array(DISK_KEY_BYTES).fill(i),
  );
  const into = values.map(() => new Uint8Array(DISK_KEY_BYTES));
  const keys = values.map((_, i) => `k${i}`);
  const rates = [];
  for (const fsync of [false, true]) {
    const directory = join(folder, `rates-${fsync}`);
    const store = await openDiskStore({ directory, fsync, maxConcurrent: AT_ONCE });
    const samples = { storeWrite: [], fileWrite: [], storeRead: [], fileRead: [] };
    for (let round = -WARM_UP_STEPS; round < rounds; round++) {
      const slot = (round + WARM_UP_STEPS) % 2;
      const pathOf = (i) => join(directory, `plain-${i}-${slot}`);
      const bodies = {
        storeWrite: async () => {
          await Promise.all(keys.map((key, i) => store.write(key, values[i])));
          await store.commit();
        },
        fileWrite: () => writePlain(pathOf, values, { directory, fsync }),
        storeRead: () => Promise.all(keys.map((key, i) => store.read(key, into[i]))),
        fileRead: () =>
          eachFile(pathOf, constants.O_RDONLY, (file, i) =>
            file.read(into[i], 0, DISK_KEY_BYTES, 0),
          ),
      };
      for (const [name, body] of Object.entries(bodies)) {
        const ms = await timed(body);
        if (round >= 0) {
          samples[name].push(ms); // earlier rounds create the files
        }
      }
    }
    await store.close();
    const times = Object.entries(samples).map(([name, list]) => [name, timesOf(list)]);
    rates.push({ fsync, ...Object.fromEntries(times) });
  }
  return { bytes: DISK_KEYS * DISK_KEY_BYTES, rates };
}

async function writePlain(pathOf, values, { directory, fsync }) {
  const flagsToWrite = constants.O_WRONLY | constants.O_CREAT;
  await eachFile(pathOf, flagsToWrite, (file, i) => file.write(values[i], 0, DISK_KEY_BYTES, 0));
  if (!fsync) {
    return;
  }
  await eachFile(pathOf, constants.O_RDONLY, (file) => file.sync());
  const handle = await open(directory);
  await handle.sync();
  await handle.close();
}

/** Opens all files, AT_ONCE of them at a time. */
async function eachFile(pathOf, mode, use) {
  let next = 0;
  const lane = async () => {
    while (next < DISK_KEYS) {
      const i = next++;
      const file = await open(pathOf(i), mode);
      await use(file, i);
      await file.close();
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, lane));
}

function report() {
  const { costs, hidden, tight, disk, optimizers } = figures;
  const both = ({ best, median }) => `${best.toFixed(0)} / ${median.toFixed(0)}`;
  const ratios = (a, b) =>
    ['best', 'median'].map((key) => (a[key] / b[key]).toFixed(2)).join(' / ');
  const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
  const sections = [headOf('Cost of offload', record)];
  sections.push(
    `cpu device, ${flags.threads} threads. GPT: ${CONFIG.n_layer} layers, width ${CONFIG.n_embd}, ${CONFIG.n_positions} tokens a row; a slice a layer, AdamW. ${rounds} interleaved rounds; every time is best / median in ms, every ratio that of the bests / of the medians.`,
  );
  if (costs !== undefined) {
    const head = [
      'rows',
      ...KINDS,
      'host / resident',
      'disk / resident',
      'peak of the device, resident',
      'host',
    ];
    const rows = costs.map(({ batch, times, peaks }) => [
      batch,
      ...KINDS.map((kind) => both(times[kind])),
      ratios(times.host, times.resident),
      ratios(times.disk, times.resident),
      mib(peaks[0]),
      mib(peaks[1]),
    ]);
    sections.push(
      table(head, rows),
      "On a cpu device host and device share memory and cores: a load is a copy that takes a core from the kernels, so the ratios show the work that offload adds, not a bus. What a PCIe or unified-memory GPU would show isn't in them.",
    );
  }
  if (hidden !== undefined) {
    const { plain, delayed, reads, batch } = hidden;
    const shares = ['best', 'median'].map((key) =>
      (100 * (1 - (delayed[key] - plain[key]) / (reads * delayMs))).toFixed(0),
    );
    sections.push(
      `Hidden: ${reads} reads of parameters a step (forward, backward, optimizer), each delayed by ${delayMs} ms, ${batch} rows: ${both(plain)} ms without, ${both(delayed)} ms with; ${shares.join(' / ')} % of the delays hidden.`,
    );
  }
  if (tight !== undefined) {
    const held = tight.runs.map(({ kind, peak, losses }) => `${kind} ${mib(peak)} (${losses})`);
    sections.push(
      `A GPT of 40 layers, width 64: parameters, gradients and optimizer state take ${mib(tight.stateBytes)}, the budget is ${mib(tight.budget)}. The most that the pool held in three steps, and their losses: ${held.join('; ')}.`,
    );
  }
  if (disk !== undefined) {
    const rows = disk.rates.flatMap((rate) =>
      ['Write', 'Read'].map((what) => [
        `${what.toLowerCase()}${what === 'Write' ? `, ${rate.fsync ? 'fsync' : 'no fsync'}` : ''}`,
        both(rate[`store${what}`]),
        both(rate[`file${what}`]),
        ratios(rate[`store${what}`], rate[`file${what}`]),
      ]),
    );
    sections.push(
      `Disk tier: ${mib(disk.bytes)} in ${DISK_KEYS} keys, written and committed, and read again; beside it plain files without checksums, in the same order: the older of two files of each key written over in place, ${AT_ONCE} at once, synced at the end where the store is told to. Reads come from the page cache.`,
      table(['', 'store, ms', 'plain files, ms', 'store / plain'], rows),
    );
  }
  if (parts.includes('optimizer')) {
    sections.push(
      optimizers === undefined
        ? 'Optimizer on the device or on the host: no WebGPU adapter here.'
        : `Optimizer: AdamW's step over host bytes, layer by layer, streamed through WebGPU (${optimizers.adapter}) ${both(optimizers.onDevice)} ms, by cpu kernels on the host ${both(optimizers.onHost)} ms: ${ratios(optimizers.onDevice, optimizers.onHost)} times. Offload steps on the compute device as the layer passes: the kernels, and so the bits, are those of a resident step. On a software adapter both use the same cores and memory; a GPU adds a bus each way, 12 bytes to and 12 from the device a parameter and 4 of its gradient.`,
    );
  }
  return sections.join('\n\n');
}

async function timed(body) {
  const start = performance.now();
  await body();
  return performance.now() - start;
}
