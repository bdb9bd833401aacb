// Our engine, which runs the built packages. `plain` leaves Node's flags alone, as a program does
// that imports the packages. With a base type the task lora computes in bf16, beside a base that
// rests in it. Usage: node shardweave.mjs cpu|webgpu [THREADS] [wasm|native|plain] [BASE TYPE]

import {
  AdamW,
  applyLora,
  Gpt2,
  makeModel,
  packParameters,
  parseModelConfig,
  quantizeBase,
} from '../../packages/nn/dist/index.js';
import { Device, matmul, mean } from '../../packages/tensor-core/dist/index.js';
import { GPT, tokens } from '../gpt-shape.mjs';
import { serve } from './serve.mjs';

const [kind, threads = '2', products = 'wasm', baseType] = process.argv.slice(2);
if (products !== 'plain') {
  await import('../relaxed-simd.mjs');
}
const backend = await open();
const device = new Device(backend);

serve(`shardweave ${kind} (${backend.info.description})`, {
  async matmul(layout, n) {
    const make = (seed) =>
      device.tensor(
        Float32Array.from({ length: n * n }, (_, i) => Math.sin(i * seed)),
        [n, n],
      );
    const [a, b] = [make(0.7), make(1.3)];
    return async (repetitions) => {
      for (let i = 0; i < repetitions; i++) {
        device.scope(() => {
          matmul(a, b, { transposeA: layout === 'TN', transposeB: layout === 'NT' });
        });
      }
      await device.synchronize();
    };
  },

  async step() {
    const model = new Gpt2(device, {
      vocab_size: GPT.vocab,
      n_positions: GPT.seq,
      n_embd: GPT.width,
      n_layer: GPT.layers,
      n_head: GPT.heads,
      embd_pdrop: 0,
      attn_pdrop: 0,
      resid_pdrop: 0,
    });
    const { ids, targets } = tokens();
    return stepsOf(model, { ids, targets, shape: [GPT.batch, GPT.seq], lr: GPT.lr });
  },

  async lora({ config, rank, shape, lr }) {
    const model = makeModel(device, parseModelConfig(JSON.stringify(config)));
    const computeDType = baseType === undefined ? 'f32' : 'bf16';
    applyLora(model, { rank, baseDType: computeDType });
    if (baseType !== undefined && baseType !== 'bf16') {
      await quantizeBase(model, { type: baseType });
    }
    const count = shape[0] * shape[1];
    const at = (i) => (i * 7 + 3 * (i >> 4)) % config.vocab_size;
    const ids = Int32Array.from({ length: count }, (_, i) => at(i));
    const targets = Int32Array.from({ length: count }, (_, i) => at(i + 1));
    return stepsOf(model, { ids, targets, shape, lr, computeDType });
  },
});

function stepsOf(model, { ids, targets, shape, lr, computeDType = 'f32' }) {
  packParameters(model, { computeDType });
  const trained = model.parameters().filter(({ requiresGrad }) => requiresGrad);
  const optimizer = new AdamW(trained, { lr });
  return async (repetitions) => {
    for (let i = 0; i < repetitions; i++) {
      await device.scope(async () => {
        const [x, y] = [device.tensor(ids, shape), device.tensor(targets, shape)];
        const loss = await device.scope(async () => mean(await model.call(x, { targets: y })));
        await loss.backward();
        await optimizer.step();
        optimizer.zeroGrad();
        await loss.item();
        await device.synchronize();
      });
    }
  };
}

async function open() {
  if (kind === 'cpu') {
    const { createCpuBackend } = await import('../../packages/tensor-core/dist/cpu.js');
    const isNative = products === 'native';
    return createCpuBackend({
      threads: Number(threads),
      products: isNative ? 'native' : 'wasm',
    });
  }
  const { createWebGpuBackend } = await import('../../packages/tensor-core/dist/webgpu.js');
  const { openNodeGpu } = await import('../../packages/tensor-core/dist/webgpu-node.js');
  const opened = await createWebGpuBackend({ gpu: openNodeGpu(), allowSoftware: true });
  await opened.tuneMatmul?.();
  return opened;
}
