// The gradients whose sums are longest: those of masks that are broadcast over pairs of attention,
// and of gathers from one line. By the model of packages/tensor-core's lane-time.ts, the longest
// lane of a kernel on hardware, at the sizes of an audit; and times on the adapter that is here, at
// sizes that a software driver ends in seconds. It needs the built packages.
// Usage: node bench/kernels/long-lanes.mjs [--rounds 3] [--report FILE]

import '../relaxed-simd.mjs';
import {
  Device,
  gather,
  scaledDotProductAttention,
} from '../../packages/tensor-core/dist/index.js';
import { createWebGpuBackend } from '../../packages/tensor-core/dist/webgpu.js';
import { openNodeGpu } from '../../packages/tensor-core/dist/webgpu-node.js';
import { flagsOf } from '../figures/flags.mjs';
import { publish } from '../figures/publish.mjs';
import { endRecord, headOf, startRecord, timesOf } from '../figures/record.mjs';
import { table } from '../figures/table.mjs';

const AUDIT = { shape: [8, 12, 1024, 64], ids: 4e6 };
const HERE = { shape: [2, 12, 256, 64], ids: 400_000 };

const flags = flagsOf({ rounds: '3', report: undefined });
const record = await startRecord('bench/kernels/long-lanes.mjs');
record.lanes = await lanes();
record.times = await times(Number(flags.rounds));
await endRecord(record);
publish(flags.report, report(), record);
process.exit(0);

function gradientsOf({ shape, ids }) {
  const [batch, heads, tokens, dim] = shape;
  const masks = [
    [1, heads, 1, 1],
    [1, 1, 1, tokens],
    [1, 1, 1, 1],
  ].map((own) => ({
    name: `mask [${own}] of ${batch} x ${heads} heads, ${tokens} tokens of ${dim}`,
    make: (device) => {
      const [q, k, v] = [0, 1, 2].map((i) => draw(device, [batch, tokens, heads, dim], i));
      const mask = draw(device, own, 3);
      mask.requiresGrad = true;
      return scaledDotProductAttention(q, k, v, { mask });
    },
  }));
  const rows = ids / 4;
  const gathers = [
    ['any', (i) => (i * 7919) % rows],
    ['one', () => 5],
  ].map(([which, id]) => ({
    name: `gather of ${ids.toExponential()} from ${rows.toExponential()}, ${which} index`,
    make: (device) => {
      const x = draw(device, [rows], 4);
      x.requiresGrad = true;
      return gather(x, device.tensor(Int32Array.from({ length: ids }, (_, i) => id(i))));
    },
  }));
  return [...masks, ...gathers];
}

function draw(device, shape, from) {
  const length = shape.reduce((product, extent) => product * extent);
  return device.tensor(
    Float32Array.from({ length }, (_, i) => Math.sin(from + i * 0.37)),
    shape,
  );
}

/** The longest lane of each gradient, by kernel, of the kernels for hardware. */
async function lanes() {
  const gpu = await (
    await openNodeGpu({ flags: ['backend=null'] }).requestAdapter()
  ).requestDevice();
  const backend = await createWebGpuBackend({ device: gpu, kernelProfile: 'hardware' });
  const device = new Device(backend);
  const rows = [];
  for (const { name, make } of gradientsOf(AUDIT)) {
    const found = new Map();
    await device.dryRun(async () => {
      const out = make(device);
      backend.onPlannedDispatch(({ kernel, workgroups, laneMs }) => {
        if (laneMs !== undefined && laneMs >= (found.get(kernel)?.laneMs ?? 0)) {
          found.set(kernel, { laneMs, workgroups });
        }
      });
      await out.backward({ gradient: out.detach() });
    });
    backend.onPlannedDispatch(undefined);
    for (const [kernel, { laneMs, workgroups }] of found) {
      rows.push({ name, kernel, workgroups, laneMs });
    }
  }
  await backend.dispose();
  return rows;
}

async function times(rounds) {
  const backend = await createWebGpuBackend({ gpu: openNodeGpu() });
  record.adapter = backend.info.description;
  const device = new Device(backend);
  const rows = [];
  for (const { name, make } of gradientsOf(HERE)) {
    const samples = [];
    for (let round = 0; round <= rounds; round++) {
      const out = make(device);
      const gradient = out.detach();
      await backend.sync();
      const start = performance.now();
      await out.backward({ gradient });
      await backend.sync();
      samples.push(performance.now() - start);
    }
    rows.push({ name, ...timesOf(samples.slice(1)) }); // the first compiles
  }
  return rows;
}

function report() {
  return [
    headOf('Gradients with long sums', record),
    'By model, on no GPU: the longest lane of each kernel that has one.',
    table(
      ['gradient', 'kernel', 'workgroups', 'longest lane, ms'],
      record.lanes.map(({ name, kernel, workgroups, laneMs }) => [
        name,
        kernel,
        workgroups,
        laneMs.toFixed(2),
      ]),
    ),
    `On ${record.adapter}:`,
    table(
      ['gradient', 'best ms', 'median', 'rounds'],
      record.times.map((row) => [row.name, row.best.toFixed(1), row.median.toFixed(1), row.rounds]),
    ),
  ].join('\n\n');
}
