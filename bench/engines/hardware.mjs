// Our engine for bench/hardware.mjs: one WebGPU device with the built packages.

import { createMemoryGroup } from '../../packages/collectives/dist/index.js';
import { FullyShardedDataParallel } from '../../packages/fsdp/dist/index.js';
import {
  AdamW,
  GradScaler,
  makeModel,
  packParameters,
  parseModelConfig,
} from '../../packages/nn/dist/index.js';
import {
  affine,
  cast,
  Device,
  matmul,
  mean,
  randomNormal,
  scaledDotProductAttention,
} from '../../packages/tensor-core/dist/index.js';
import { createWebGpuBackend } from '../../packages/tensor-core/dist/webgpu.js';
import { fileTuningStore, openNodeGpu } from '../../packages/tensor-core/dist/webgpu-node.js';
import { serve } from './serve.mjs';

const DTYPES = { fp32: 'f32', fp16: 'f16', bf16: 'bf16' };

const { SHARDWEAVE_CACHE: cache } = process.env;
const backend = await createWebGpuBackend({
  gpu: openNodeGpu(),
  allowSoftware: true,
  ...(cache === undefined ? {} : { tuningStore: fileTuningStore(cache) }),
});
const device = new Device(backend, { seed: 1 });
let held = [];
let dispose;

serve(`shardweave webgpu (${backend.info.description})`, {
  async tune({ precision, shapes }) {
    const start = performance.now();
    const all = await backend.tuneMatmul({
      dtypes: [DTYPES[precision]],
      ...(shapes && { shapes }),
    });
    const isOfOperands = ([name]) => name.split(' ')[1] === DTYPES[precision];
    const tiles = Object.fromEntries(Object.entries(all).filter(isOfOperands));
    const seconds = (performance.now() - start) / 1000;
    return Object.assign(async () => {}, { says: { tiles, seconds } });
  },

  async product({ m, n, k, layout, precision }) {
    const a = hold(layout[0] === 'T' ? [k, m] : [m, k], precision);
    const b = hold(layout[1] === 'T' ? [n, k] : [k, n], precision);
    const options = { transposeA: layout[0] === 'T', transposeB: layout[1] === 'T' };
    return repeated(() => matmul(a, b, options));
  },

  async attention({ batch, heads, kvHeads, seq, dim, precision, isBackward }) {
    const q = hold([batch, seq, heads, dim], precision);
    const k = hold([batch, seq, kvHeads, dim], precision);
    const v = hold([batch, seq, kvHeads, dim], precision);
    if (!isBackward) {
      return repeated(() => scaledDotProductAttention(q, k, v, { isCausal: true }));
    }
    for (const tensor of [q, k, v]) {
      tensor.requiresGrad = true;
    }
    const seed = hold([batch, seq, heads, dim], precision);
    return repeated(async () => {
      const out = scaledDotProductAttention(q, k, v, { isCausal: true });
      await out.backward({ gradient: seed });
      for (const tensor of [q, k, v]) {
        tensor.grad = undefined;
      }
    });
  },

  async copy({ bytes }) {
    const x = hold([bytes / 4], 'fp32');
    return repeated(() => affine(x, 1, 0));
  },

  async train({ config, batch, seq, precision }) {
    drop();
    const model = makeModel(device, parseModelConfig(JSON.stringify(config)));
    const vocab = config.vocab_size;
    const at = (i) => (i * 7 + 3 * (i >> 4)) % vocab;
    const ids = Int32Array.from({ length: batch * seq }, (_, i) => at(i));
    const targets = Int32Array.from({ length: batch * seq }, (_, i) => at(i + 1));
    const net = precision === 'fp32' ? packed(model) : sharded(model, DTYPES[precision]);
    dispose = () => net.dispose();
    const optimizer = new AdamW(net.parameters(), { lr: 1e-4 });
    const scaler = precision === 'fp16' ? new GradScaler(net) : undefined;
    return async (repetitions) => {
      for (let i = 0; i < repetitions; i++) {
        await device.scope(async () => {
          const [x, y] = [device.tensor(ids, [batch, seq]), device.tensor(targets, [batch, seq])];
          const loss = await device.scope(async () => mean(await net.call(x, { targets: y })));
          const factor = scaler?.factor ?? 1;
          await (factor === 1 ? loss : affine(loss, factor, 0)).backward();
          await optimizer.step(factor === 1 ? {} : { gradScale: device.full([1], 1 / factor) });
          optimizer.zeroGrad();
          await loss.item();
        });
      }
    };
  },
});

function packed(model) {
  packParameters(model);
  return model;
}

/** Wraps a model for mixed precision, which on one device is sharding over one rank. */
function sharded(model, computeDType) {
  const [processGroup] = createMemoryGroup(1);
  const options = { processGroup, mixedPrecision: true, computeDType, bucketCapMb: 0 };
  for (const [i, block] of model.layers().slice(1, -1).entries()) {
    model.replaceChild(
      String(i + 1),
      new FullyShardedDataParallel(block, { ...options, name: `h.${i}` }),
    );
  }
  return new FullyShardedDataParallel(model, { ...options, name: 'root' });
}

/** Makes random values that stay until the next task. */
function hold(shape, precision) {
  const tensor = device.scope(() => cast(randomNormal(device, shape), DTYPES[precision]));
  held.push(tensor);
  return tensor;
}

function drop() {
  for (const tensor of held) {
    tensor.dispose();
  }
  held = [];
  dispose?.();
  dispose = undefined;
}

function repeated(body) {
  return async (repetitions) => {
    for (let i = 0; i < repetitions; i++) {
      await device.scope(body);
    }
    await device.synchronize();
  };
}
