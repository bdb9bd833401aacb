// What a training step of GPT-2 asks of the queue: the dispatches of each kernel, the submits and
// the new bind groups of the second step. It runs on Dawn's null driver, which computes nothing, so
// every machine counts the same. That driver holds no more than a gigabyte. So the model has as
// many layers as GPT-2 124M, each only as wide as one row of heads of eight, over 1,024 tokens;
// weight gradients are then cut into parts as they are at full size. It also tells which share of
// the products of an f16 step at full size matrix units can take. It needs the built packages.
// Usage: node bench/kernels/dispatches.mjs [--layers 12] [--report FILE]

import '../relaxed-simd.mjs';
import { AdamW, Gpt2, packParameters } from '../../packages/nn/dist/index.js';
import { Device, mean } from '../../packages/tensor-core/dist/index.js';
import { createWebGpuBackend } from '../../packages/tensor-core/dist/webgpu.js';
import { openNodeGpu } from '../../packages/tensor-core/dist/webgpu-node.js';
import { flagsOf } from '../figures/flags.mjs';
import { publish } from '../figures/publish.mjs';
import { endRecord, headOf, startRecord } from '../figures/record.mjs';
import { table } from '../figures/table.mjs';
import { matrixShare } from './matrix-share.mjs';

const VOCAB = 1024;
const WIDTH = 96;
const SEQ = 1024;
const LISTED = 24;
/**
 * How many steps are timed. The engine needs some fifty steps to compile all the code that a step
 * runs.
 */
const TIMED_STEPS = 200;

const flags = flagsOf({ layers: '12', report: undefined });
const layers = Number(flags.layers);
const record = await startRecord('bench/kernels/dispatches.mjs');
const units = await matrixShare();
const adapter = await openNodeGpu({ flags: ['backend=null'] }).requestAdapter();
const gpu = await adapter.requestDevice({
  requiredLimits: {
    maxBufferSize: adapter.limits.maxBufferSize,
    maxStorageBufferBindingSize: adapter.limits.maxStorageBufferBindingSize,
  },
});
const counts = new Map();
const stopCounting = countDispatches(gpu);
// Submits would follow the speed of a driver that computes nothing.
const maxFlops = 50e9;
const backend = await createWebGpuBackend({ device: gpu, kernelProfile: 'hardware', maxFlops });
const device = new Device(backend);
const model = new Gpt2(device, {
  vocab_size: VOCAB,
  n_positions: SEQ,
  n_embd: WIDTH,
  n_layer: layers,
  n_head: 12,
  embd_pdrop: 0,
  attn_pdrop: 0,
  resid_pdrop: 0,
});
packParameters(model);
const optimizer = new AdamW(model.parameters(), { lr: 1e-4 });
await step();
counts.clear();
const before = backend.statistics();
await step();
const after = backend.statistics();
stopCounting(); // it would take a fifth of the steps that are timed
const kernels = [...counts].sort(([, a], [, b]) => b - a);
const hostMs = [];
for (let i = 0; i < TIMED_STEPS; i++) {
  const start = performance.now();
  await step();
  hostMs.push(performance.now() - start);
}
hostMs.sort((a, b) => a - b);
await endRecord(record);
const total = kernels.reduce((sum, [, count]) => sum + count, 0);
Object.assign(record, {
  layers,
  dispatches: total,
  submits: after.submits - before.submits,
  bindGroups: after.bindGroups - before.bindGroups,
  hostMs,
  kernels,
  units,
});
publish(flags.report, report(), record);
process.exit(0);

async function step() {
  const ids = new Int32Array(SEQ);
  await device.scope(async () => {
    const [x, y] = [device.tensor(ids, [1, SEQ]), device.tensor(ids, [1, SEQ])];
    const loss = await device.scope(async () => mean(await model.call(x, { targets: y })));
    await loss.backward();
    await optimizer.step();
    optimizer.zeroGrad();
    await loss.item();
  });
}

/** Counts dispatches by the label of the pipeline that is set, until the result is called. */
function countDispatches(device) {
  const own = device.createCommandEncoder;
  const createEncoder = own.bind(device);
  device.createCommandEncoder = (descriptor) => {
    const encoder = createEncoder(descriptor);
    const begin = encoder.beginComputePass.bind(encoder);
    encoder.beginComputePass = (options) => {
      const pass = begin(options);
      const [set, dispatch] = [pass.setPipeline.bind(pass), pass.dispatchWorkgroups.bind(pass)];
      let label = '';
      pass.setPipeline = (pipeline) => {
        label = pipeline.label;
        set(pipeline);
      };
      pass.dispatchWorkgroups = (...grid) => {
        counts.set(label, (counts.get(label) ?? 0) + 1);
        dispatch(...grid);
      };
      return pass;
    };
    return encoder;
  };
  return () => {
    device.createCommandEncoder = own;
  };
}

function report() {
  return [
    headOf('Dispatches of a training step', record),
    `GPT-2 with ${layers} layers of ${WIDTH}, ${SEQ} tokens, f32, AdamW over packed parameters: ${total} dispatches, ${record.submits} submits and ${record.bindGroups} new bind groups in the second step. The host takes ${hostMs[0].toFixed(1)} ms for a step at least (median ${hostMs[TIMED_STEPS / 2].toFixed(1)} of ${TIMED_STEPS}; goal 5), Dawn's part and the reading of the loss included. The ${LISTED} kernels with most dispatches:`,
    table(['kernel', 'dispatches'], kernels.slice(0, LISTED)),
    `Matrix units, where a device has them and tuning chooses them, can take ${(100 * units.share).toFixed(0)} % of the products of a step of GPT-2 124M in f16, 8 x 1,024 tokens, mixed precision:`,
    table(
      ['layout and dtypes', 'TFLOP', 'by units'],
      units.classes.map(([name, { flops, isTaken }]) => [
        name,
        (flops / 1e12).toFixed(2),
        isTaken ? 'yes' : 'no',
      ]),
    ),
  ].join('\n\n');
}
