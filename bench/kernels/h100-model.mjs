// What a training step of GPT-2 124M computes and moves, dispatch by dispatch, and how many ms a
// model of the H100 predicts for it. The step is a dry run over the kernels for hardware, so every
// machine counts the same. The rates below are published peaks times shares that nobody has
// measured here. With --measured, the ms of a step on such a chip, the report shows the prediction
// beside it. It needs the built packages.
// Usage: node bench/kernels/h100-model.mjs [--batch 8] [--seq 1024] [--measured MS] [--report FILE]

import '../relaxed-simd.mjs';
import { parseArgs } from 'node:util';
import { AdamW, Gpt2, packParameters } from '../../packages/nn/dist/index.js';
import { Device, mean } from '../../packages/tensor-core/dist/index.js';
import { createWebGpuBackend } from '../../packages/tensor-core/dist/webgpu.js';
import { openNodeGpu } from '../../packages/tensor-core/dist/webgpu-node.js';
import { publish } from '../figures/publish.mjs';
import { endRecord, headOf, startRecord } from '../figures/record.mjs';
import { table } from '../figures/table.mjs';

/** From NVIDIA's data sheet of the H100 SXM: f32 without matrix units, memory, processors. */
const PEAK_FLOPS = 66.9e12;
const PEAK_BYTES = 3.35e12;
const PROCESSORS = 132;
/** The assumed shares of the peak that a full tile of a product and a tile of attention reach. */
const PRODUCT_SHARE = 0.55;
const ATTENTION_SHARE = 0.35;
/** The share of the memory's peak that streaming kernels reach on earlier chips. */
const MEMORY_SHARE = 0.8;
/** Each invocation has one vector of 16 bytes under way, for as long as a load takes. */
const BYTES_IN_FLIGHT = 16;
const LOAD_SECONDS = 600e-9;
/** The time of a dispatch that depends on the one before it, besides its own work. */
const DISPATCH_SECONDS = 3e-6;
/** The shares that smaller tiles reach, as matmul-hardware.ts estimates them. */
const TILE_SHARES = [
  [/128x128x/, 1],
  [/128x64x/, 0.95],
  [/64x64x8\/8/, 0.85],
  [/64x64x16/, 0.6],
  [/32x32x/, 0.45],
];
/** Kernels that read their output before they write it. */
const READS_OUTPUT = /accumulate|=out|adam/;
/** The ms that were predicted for each part before the kernels were improved, of 330 in all. */
const PREDICTED = {
  'weight gradients': 89,
  'head, with cross-entropy': 62,
  'other products': 91,
  attention: 60,
  'bias sums': 12,
};
const GOALS = { dispatches: 330, gigabytes: 45 };
/**
 * The head consists of the kernels around the cross-entropy: from its logits to its two gradients.
 */
const HEAD = /crossEntropy/;

const { values: flags } = parseArgs({
  options: {
    batch: { type: 'string', default: '8' },
    seq: { type: 'string', default: '1024' },
    measured: { type: 'string' },
    report: { type: 'string' },
  },
});
const [batch, seq] = [Number(flags.batch), Number(flags.seq)];
const record = await startRecord('bench/kernels/h100-model.mjs');
const dispatches = await countStep();
const families = new Map();
for (const dispatch of dispatches) {
  const name = familyOf(dispatch);
  const sums = families.get(name) ?? { dispatches: 0, flops: 0, bytes: 0, tileBytes: 0, ms: 0 };
  const { bytes, tileBytes } = bytesOf(dispatch);
  families.set(name, {
    dispatches: sums.dispatches + 1,
    flops: sums.flops + (dispatch.flops ?? 0),
    bytes: sums.bytes + bytes,
    tileBytes: sums.tileBytes + tileBytes,
    ms: sums.ms + 1e3 * secondsOf(dispatch),
  });
}
const total = { dispatches: 0, flops: 0, bytes: 0, tileBytes: 0, ms: 0 };
for (const sums of families.values()) {
  for (const key of Object.keys(total)) {
    total[key] += sums[key];
  }
}
await endRecord(record);
const kernels = new Map();
for (const { kernel } of dispatches) {
  kernels.set(kernel, (kernels.get(kernel) ?? 0) + 1);
}
Object.assign(record, { batch, seq, total, families: Object.fromEntries(families) });
record.kernels = [...kernels].sort(([, a], [, b]) => b - a);
publish(flags.report, report(), record);
process.exit(0);

/** The dispatches of one step with f32 AdamW over packed parameters. */
async function countStep() {
  const adapter = await openNodeGpu({ flags: ['backend=null'] }).requestAdapter();
  const gpu = await adapter.requestDevice();
  // Nothing is allocated, so the null driver may claim the limits that Dawn offers on NVIDIA's
  // driver.
  const limits = { maxBufferSize: 2 ** 36, maxStorageBufferBindingSize: 2 ** 32 - 4 };
  const own = gpu.limits;
  Object.defineProperty(gpu, 'limits', {
    value: new Proxy(own, { get: (_, name) => limits[name] ?? own[name] }),
  });
  const backend = await createWebGpuBackend({ device: gpu, kernelProfile: 'hardware' });
  const device = new Device(backend);
  const found = [];
  await device.dryRun(async () => {
    const model = new Gpt2(device, { embd_pdrop: 0, attn_pdrop: 0, resid_pdrop: 0 });
    packParameters(model);
    const optimizer = new AdamW(model.parameters(), { lr: 1e-4 });
    const ids = new Int32Array(batch * seq);
    const step = () =>
      device.scope(async () => {
        const [x, y] = [device.tensor(ids, [batch, seq]), device.tensor(ids, [batch, seq])];
        const loss = await device.scope(async () => mean(await model.call(x, { targets: y })));
        await loss.backward();
        await optimizer.step();
        optimizer.zeroGrad();
      });
    await step();
    backend.onPlannedDispatch((dispatch) => found.push(dispatch));
    await step();
    backend.onPlannedDispatch(undefined);
  });
  await backend.dispose();
  const first = found.findIndex(({ kernel }) => HEAD.test(kernel));
  const last = found.findLastIndex(({ kernel }) => HEAD.test(kernel));
  // The head's products are next to the loss: the logits before it, two gradients after it.
  const isProduct = ({ kernel }) => /^(matmul|fill|cast|binary)/.test(kernel);
  let [from, to] = [first, last];
  while (
    from > 0 &&
    /^matmul/.test(found[from - 1].kernel) &&
    !/ bias/.test(found[from - 1].kernel)
  ) {
    from -= 1;
  }
  while (to + 1 < found.length && isProduct(found[to + 1])) {
    to += 1;
  }
  return found.map((dispatch, i) => ({ ...dispatch, isHead: i >= from && i <= to }));
}

function familyOf({ kernel, isHead }) {
  if (isHead) {
    return 'head, with cross-entropy';
  }
  if (/^matmul (TN|parts)/.test(kernel)) {
    return 'weight gradients';
  }
  if (/^matmul/.test(kernel)) {
    return 'other products';
  }
  if (/^attention/.test(kernel)) {
    return 'attention';
  }
  if (/^reduce sum/.test(kernel)) {
    return 'bias sums';
  }
  if (/^layerNorm/.test(kernel)) {
    return 'layer norms';
  }
  if (/^(unary|binary)/.test(kernel)) {
    return 'GELU and adds';
  }
  return 'embedding, optimizer and the rest';
}

/**
 * The bytes of a dispatch twice: each operand once, as memory sees it, and as the tiles of a
 * product request them from the caches.
 */
function bytesOf({ kernel, bytesRead, bytesWritten, flops }) {
  const bytes = bytesRead + bytesWritten * (READS_OUTPUT.test(kernel) ? 2 : 1);
  const tile = /shared (\d+)x(\d+)x/.exec(kernel);
  if (!/^matmul/.test(kernel) || tile === null || flops === undefined) {
    return { bytes, tileBytes: bytes };
  }
  const [m, n] = [Number(tile[1]), Number(tile[2])];
  return { bytes, tileBytes: bytesWritten + (flops / 2) * 4 * (1 / m + 1 / n) };
}

/** The longer one of computing and moving, plus the dispatch itself. */
function secondsOf(dispatch) {
  const { kernel, workgroups, invocations, flops = 0 } = dispatch;
  const share = /^attention/.test(kernel) ? ATTENTION_SHARE : PRODUCT_SHARE;
  const tile = TILE_SHARES.find(([name]) => name.test(kernel))?.[1] ?? 1;
  // The last round of workgroups may occupy only some of the processors.
  const full = workgroups / (PROCESSORS * Math.ceil(workgroups / PROCESSORS));
  const computing = flops / (PEAK_FLOPS * share * tile * full);
  const rate = Math.min(PEAK_BYTES * MEMORY_SHARE, (invocations * BYTES_IN_FLIGHT) / LOAD_SECONDS);
  const moving = bytesOf(dispatch).bytes / rate;
  return Math.max(computing, moving) + DISPATCH_SECONDS;
}

function report() {
  const row = (name, { dispatches: count, flops, bytes, tileBytes, ms }, predicted) => [
    name,
    count,
    (flops / 1e12).toFixed(2),
    (bytes / 1e9).toFixed(1),
    (tileBytes / 1e9).toFixed(1),
    ms.toFixed(1),
    predicted ?? '',
  ];
  const sorted = [...families].sort(([, a], [, b]) => b.ms - a.ms);
  const measured = flags.measured === undefined ? 'not measured: no GPU' : `${flags.measured} ms`;
  return [
    headOf('A step of GPT-2 124M, counted, and an H100 that is modeled', record),
    `f32, ${batch} x ${seq} tokens, AdamW over packed parameters, by a dry run over the kernels for hardware: ${total.dispatches} dispatches (goal ${GOALS.dispatches}), ${(total.flops / 1e12).toFixed(2)} TFLOP that kernels estimate, ${(total.bytes / 1e9).toFixed(1)} GB of operands (goal ${GOALS.gigabytes}). Predicted ${total.ms.toFixed(0)} ms; ${measured}. Before this work the audit predicted 330 (250 to 450).`,
    table(
      [
        'family',
        'dispatches',
        'TFLOP',
        'GB, each operand once',
        'GB asked by tiles',
        'ms',
        'audit',
      ],
      [...sorted.map(([name, sums]) => row(name, sums, PREDICTED[name])), row('all', total, 330)],
    ),
    `The model: a dispatch takes the longer of computing and moving, and ${DISPATCH_SECONDS * 1e6} us. Computing: ${PEAK_FLOPS / 1e12} TFLOP/s, of which a product's full tile reaches ${PRODUCT_SHARE} and smaller ones the share that the choice of tiles estimates, attention ${ATTENTION_SHARE}; less what the last round of workgroups leaves idle of ${PROCESSORS} processors. Moving: ${PEAK_BYTES / 1e12} TB/s times ${MEMORY_SHARE}, or ${BYTES_IN_FLIGHT} bytes an invocation in ${LOAD_SECONDS * 1e9} ns where they are few. The shares are guesses until somebody measures.`,
    table(['kernel', 'dispatches'], record.kernels),
  ].join('\n\n');
}
