// What a training step of GPT-2 124M computes and moves, dispatch by dispatch, and the range of ms
// that gpu-model.mjs predicts for it on an H100. The step is a dry run over the kernels for
// hardware, so every machine counts the same; nobody has run it on such a chip. It needs the built
// packages.
// Usage: node bench/kernels/h100-model.mjs [--batch 8] [--seq 1024] [--report FILE]

import '../relaxed-simd.mjs';
import { AdamW, Gpt2, packParameters } from '../../packages/nn/dist/index.js';
import { Device, mean } from '../../packages/tensor-core/dist/index.js';
import { createWebGpuBackend } from '../../packages/tensor-core/dist/webgpu.js';
import { openNodeGpu } from '../../packages/tensor-core/dist/webgpu-node.js';
import { flagsOf } from '../figures/flags.mjs';
import { modelText } from '../figures/gpu-block.mjs';
import { publish } from '../figures/publish.mjs';
import { endRecord, headOf, startRecord } from '../figures/record.mjs';
import { table } from '../figures/table.mjs';
import { bytesOf, CHIPS, GUESSES, MODEL, secondsOf } from './gpu-model.mjs';

/** The columns of ms: a chip, and which of the guesses about it. */
const PREDICTIONS = {
  likely: { chip: CHIPS.H100, guess: GUESSES.likely },
  best: { chip: CHIPS.H100, guess: GUESSES.best },
  worst: { chip: CHIPS.H100, guess: GUESSES.worst },
  h200: { chip: CHIPS.H200, guess: GUESSES.likely },
};
/**
 * The head consists of the kernels around the cross-entropy: from its logits to its two gradients.
 */
const HEAD = /crossEntropy/;

const flags = flagsOf({
  batch: '8',
  seq: '1024',
  report: undefined,
});
const [batch, seq] = [Number(flags.batch), Number(flags.seq)];
const record = await startRecord('bench/kernels/h100-model.mjs');
const dispatches = await countStep();
const families = new Map();
for (const dispatch of dispatches) {
  const name = familyOf(dispatch);
  families.set(name, sumsOf([families.get(name), countsOf(dispatch)]));
}
const total = sumsOf([...families.values()]);
await endRecord(record);
const kernels = new Map();
for (const { kernel } of dispatches) {
  kernels.set(kernel, (kernels.get(kernel) ?? 0) + 1);
}
Object.assign(record, { batch, seq, guesses: GUESSES, total });
record.families = Object.fromEntries(families);
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
  if (/^rowNorm/.test(kernel)) {
    return 'layer norms';
  }
  if (/^(unary|binary)/.test(kernel)) {
    return 'GELU and adds';
  }
  return 'embedding, optimizer and the rest';
}

function countsOf(dispatch) {
  const { bytes, tileBytes } = bytesOf(dispatch);
  const ms = Object.entries(PREDICTIONS).map(([name, { chip, guess }]) => [
    name,
    1e3 * secondsOf(dispatch, chip, guess),
  ]);
  return { dispatches: 1, flops: dispatch.flops ?? 0, bytes, tileBytes, ...Object.fromEntries(ms) };
}

/** Adds up records of numbers, of which some may be undefined. */
function sumsOf(records) {
  const sums = {};
  for (const record of records) {
    for (const [key, value] of Object.entries(record ?? {})) {
      sums[key] = (sums[key] ?? 0) + value;
    }
  }
  return sums;
}

function report() {
  const row = (name, sums) => [
    name,
    sums.dispatches,
    (sums.flops / 1e12).toFixed(2),
    (sums.bytes / 1e9).toFixed(1),
    (sums.tileBytes / 1e9).toFixed(1),
    ...Object.keys(PREDICTIONS).map((key) => sums[key].toFixed(1)),
  ];
  const sorted = [...families].sort(([, a], [, b]) => b.likely - a.likely);
  return [
    headOf('A step of GPT-2 124M, counted, and an H100 that is modeled', record),
    `f32, ${batch} x ${seq} tokens, AdamW over packed parameters, by a dry run over the kernels for hardware: ${total.dispatches} dispatches, ${(total.flops / 1e12).toFixed(2)} TFLOP that kernels estimate, ${(total.bytes / 1e9).toFixed(1)} GB of operands.`,
    modelText(record),
    table(
      [
        'family',
        'dispatches',
        'TFLOP',
        'GB, each operand once',
        'GB asked by tiles',
        ...Object.keys(PREDICTIONS).map((key) => `ms, ${key}`),
      ],
      [...sorted.map(([name, sums]) => row(name, sums)), row('all', total)],
    ),
    MODEL,
    table(['kernel', 'dispatches'], record.kernels),
  ].join('\n\n');
}
