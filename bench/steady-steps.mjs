// Whether many steps stay as fast and as small as the first. It runs a thousand steps of a small
// Llama with adapters, and reports the processor time of each hundred, and what the process, its
// heap and the device hold after them. It needs the built packages.
// Usage: node bench/steady-steps.mjs [--steps 1000] [--width 96] [--layers 4] [--threads 1]
//   [--report FILE]

import './relaxed-simd.mjs';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import {
  AdamW,
  applyLora,
  makeModel,
  packParameters,
  parseModelConfig,
} from '../packages/nn/dist/index.js';
import { createCpuBackend } from '../packages/tensor-core/dist/cpu.js';
import { Device, mean } from '../packages/tensor-core/dist/index.js';
import { flagsOf } from './figures/flags.mjs';
import { publish } from './figures/publish.mjs';
import { endRecord, headOf, startRecord } from './figures/record.mjs';
import { table } from './figures/table.mjs';

const SHAPE = [4, 64]; // rows and tokens
const VOCABULARY = 512;
const WARM_UP_STEPS = 100; // until the code is compiled and pools are full
const PARTS = 10;

const flags = flagsOf({
  steps: '1000',
  width: '96',
  layers: '4',
  threads: '1',
  report: undefined,
});
setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc');
const [numSteps, width] = [Number(flags.steps), Number(flags.width)];
const record = await startRecord('bench/steady-steps.mjs');
const backend = await createCpuBackend({ threads: Number(flags.threads) });
const device = new Device(backend);
const model = makeModel(
  device,
  parseModelConfig(
    JSON.stringify({
      model_type: 'llama',
      vocab_size: VOCABULARY,
      hidden_size: width,
      intermediate_size: 3 * width,
      num_hidden_layers: Number(flags.layers),
      num_attention_heads: width / 32,
      num_key_value_heads: 1,
      max_position_embeddings: SHAPE[1],
    }),
  ),
);
applyLora(model, { rank: 8, baseDType: 'bf16' });
packParameters(model);
const optimizer = new AdamW(
  model.parameters().filter(({ requiresGrad }) => requiresGrad),
  { lr: 1e-3 },
);
await steps(WARM_UP_STEPS, 0);
const rows = [];
for (let part = 0; part < PARTS; part++) {
  const before = process.cpuUsage();
  await steps(numSteps / PARTS, WARM_UP_STEPS + (part * numSteps) / PARTS);
  const { user, system } = process.cpuUsage(before);
  collectGarbage();
  const { rss, heapUsed, external } = process.memoryUsage();
  const { live, reservedBytes } = device.memory();
  const processorMs = (user + system) / 1000 / (numSteps / PARTS);
  rows.push({ processorMs, rss, heapUsed, external, live: live.total, reservedBytes });
}
device.dispose();
await backend.dispose();
await endRecord(record);
const ratio = rows.at(-1).processorMs / rows[0].processorMs;
Object.assign(record, { flags, rows, ratio });
publish(flags.report, report(), record);

async function steps(count, first) {
  for (let step = first; step < first + count; step++) {
    await device.scope(async () => {
      const tokens = (shift) => {
        const ids = Int32Array.from(
          { length: SHAPE[0] * SHAPE[1] },
          (_, i) => ((i + shift) * 7 + step * 3) % VOCABULARY,
        );
        return device.tensor(ids, SHAPE);
      };
      const loss = mean(await model.call(tokens(0), { targets: tokens(1) }));
      await loss.backward();
      await optimizer.step();
      await loss.item();
    });
    optimizer.zeroGrad();
  }
}

function report() {
  const each = numSteps / PARTS;
  const body = rows.map(({ processorMs, rss, heapUsed, external, live, reservedBytes }, i) => [
    `${i * each + 1} to ${(i + 1) * each}`,
    processorMs.toFixed(2),
    live.toLocaleString('en-US'),
    reservedBytes.toLocaleString('en-US'),
    (rss / 2 ** 20).toFixed(1),
    (heapUsed / 2 ** 20).toFixed(1),
    (external / 2 ** 20).toFixed(1),
  ]);
  return [
    headOf(`${numSteps} steps of adapters`, record),
    `A Llama of ${flags.layers} layers, width ${width}, frozen in bf16, adapters of rank 8 on all linear layers, ${SHAPE.join(' x ')} tokens, on the CPU device with ${flags.threads} threads; ${WARM_UP_STEPS} steps before are not counted.`,
    table(
      [
        'steps',
        'processor time, ms a step',
        'live bytes',
        'of the pool',
        'RSS, MiB',
        'heap, MiB',
        'external, MiB',
      ],
      body,
    ),
    `The last ${each} steps took ${ratio.toFixed(3)} times the processor time of the first ${each}.`,
  ].join('\n\n');
}
