// The share of the products of a step of GPT-2 124M in f16 that matrix units can take, by
// operations. The step is a dry run with mixed precision on a device that claims such units, with
// the choices that tuning could make, so every machine counts the same.

import { createMemoryGroup } from '../../packages/collectives/dist/index.js';
import { FullyShardedDataParallel } from '../../packages/fsdp/dist/index.js';
import { Gpt2 } from '../../packages/nn/dist/index.js';
import { Device, mean } from '../../packages/tensor-core/dist/index.js';
import { createWebGpuBackend } from '../../packages/tensor-core/dist/webgpu.js';
import { openNodeGpu } from '../../packages/tensor-core/dist/webgpu-node.js';

const TILE = 'matrix 128x128x32/16x16x16';
const ADAPTER_INFO = {
  ...{ vendor: '', architecture: '', device: '', description: 'units', isFallbackAdapter: false },
  ...{ subgroupMinSize: 32, subgroupMaxSize: 32 },
  subgroupMatrixConfigs: [
    { componentType: 'f16', resultComponentType: 'f32', ...{ M: 16, N: 16, K: 16 } },
  ],
};
const FEATURES = ['shader-f16', 'subgroups', 'chromium-experimental-subgroup-matrix'];
const LIMITS = {
  ...{ maxBufferSize: 2 ** 36, maxStorageBufferBindingSize: 2 ** 32 - 4 },
  ...{ maxComputeWorkgroupStorageSize: 32768, maxComputeInvocationsPerWorkgroup: 1024 },
};

/**
 * @param {{ batch?: number, seq?: number }} options
 * @returns {Promise<{ share: number,
 * classes: [string, { flops: number, isTaken: boolean }][] }>} the products by their dtypes, the
 * largest first
 */
export async function matrixShare({ batch = 8, seq = 1024 } = {}) {
  const gpu = openNodeGpu({ flags: ['backend=null'] });
  const device = await claimedDevice(gpu);
  const backend = await createWebGpuBackend({
    ...{ device, adapterInfo: ADAPTER_INFO, kernelProfile: 'hardware' },
    matmulChoices: choices(),
  });
  const classes = new Map();
  await eachDispatch(backend, { batch, seq }, ({ kernel, flops = 0 }) => {
    const name = /^matmul (.. \w+ \w+ to \w+)/.exec(kernel)?.[1];
    if (name === undefined) {
      return;
    }
    const isTaken = kernel.includes('matrix');
    const key = `${name}${isTaken ? '' : ', no units'}`;
    classes.set(key, { flops: (classes.get(key)?.flops ?? 0) + flops, isTaken });
  });
  await backend.dispose();
  const all = [...classes].sort(([, a], [, b]) => b.flops - a.flops);
  const sumOf = (list) => list.reduce((sum, [, { flops }]) => sum + flops, 0);
  return { share: sumOf(all.filter(([, { isTaken }]) => isTaken)) / sumOf(all), classes: all };
}

/** What tuning measures for f16: outputs of f16 and of f32. */
function choices() {
  const sizes = ['flat', 'small', 'medium', 'large', 'huge'];
  const names = ['NN', 'NT', 'TN'].flatMap((letters) =>
    ['f16', 'f32'].flatMap((out) => sizes.map((size) => `${letters} f16 f16 ${out} ${size}`)),
  );
  return Object.fromEntries(names.map((name) => [name, TILE]));
}

/** The null driver's device, which nothing runs on, with what the device claims to have. */
async function claimedDevice(gpu) {
  const device = await (await gpu.requestAdapter()).requestDevice();
  const own = device.limits;
  const limits = new Proxy(own, { get: (_, name) => LIMITS[name] ?? own[name] });
  Object.defineProperty(device, 'limits', { value: limits });
  Object.defineProperty(device, 'features', { value: new Set(FEATURES) });
  return device;
}

/** Runs a step dry, twice, and tells of the second one. */
async function eachDispatch(backend, { batch, seq }, told) {
  const device = new Device(backend);
  await device.dryRun(async () => {
    const model = new Gpt2(device, { embd_pdrop: 0, attn_pdrop: 0, resid_pdrop: 0 });
    const [processGroup] = createMemoryGroup(1);
    const options = { processGroup, mixedPrecision: true, computeDType: 'f16', bucketCapMb: 0 };
    for (const [i, block] of model.layers().slice(1, -1).entries()) {
      const wrapped = new FullyShardedDataParallel(block, { ...options, name: `h.${i}` });
      model.replaceChild(String(i + 1), wrapped);
    }
    const net = new FullyShardedDataParallel(model, { ...options, name: 'root' });
    const ids = new Int32Array(batch * seq);
    const step = () =>
      device.scope(async () => {
        const [x, y] = [device.tensor(ids, [batch, seq]), device.tensor(ids, [batch, seq])];
        const loss = await device.scope(async () => mean(await net.call(x, { targets: y })));
        await loss.backward();
        for (const parameter of net.parameters()) {
          parameter.grad = undefined;
        }
      });
    await step();
    backend.onPlannedDispatch(told);
    await step();
    backend.onPlannedDispatch(undefined);
  });
}
