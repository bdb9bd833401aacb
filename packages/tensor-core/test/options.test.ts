// These are options as plain JavaScript may give them. Unknown names and wrong kinds must be named
// at the call.

import * as core from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { describe, expect, test } from 'vitest';

const device = new core.Device(createReferenceBackend());
const x = device.zeros([2, 6]);
const ids = device.tensor(new Int32Array(2));
/** Passes a value that the types would not allow, as JavaScript can. */
const wrong = (value: unknown) => value as never;

const rows: readonly (readonly [message: RegExp, call: () => unknown])[] = [
  [/^Device: expected a backend .*, got a plain object\.$/, () => new core.Device(wrong({}))],
  [
    /^Device: expected a backend .*, got a promise\. Await it first\.$/,
    () => new core.Device(wrong(Promise.resolve())),
  ],
  [/^Device: .*options, got 'sead'. Did you mean seed\?/, () => withOptions({ sead: 1 })],
  [/^Device: expected seed to be a safe integer, got 0\.5/, () => withOptions({ seed: 0.5 })],
  [/^Device: expected trace to be a Trace, got true/, () => withOptions({ trace: true })],
  [/^Trace: expected rank to be a whole number/, () => new core.Trace(wrong({ rank: -1 }))],
  [
    /^empty: .*options, got 'type'. Did you mean dtype\?/,
    () => device.zeros([1], wrong({ type: 'f16' })),
  ],
  [/^empty: expected dtype among .*, got "float32"/, () => make({ dtype: 'float32' })],
  [/^empty: expected tag among .*, got "weights"/, () => make({ tag: 'weights' })],
  [
    /^tensor: .*got 'requires_grad'. Did you mean requiresGrad/,
    () => device.tensor([1], [1], wrong({ requires_grad: true })),
  ],
  [/^backward: .*got 'retain_graph'/, () => device.backward(x, wrong({ retain_graph: true }))],
  [
    /^gelu: expected approximate to be 'none' or 'tanh'/,
    () => core.gelu(x, wrong({ approximate: 1 })),
  ],
  [/^matmul: .*got 'transpose_b'/, () => core.matmul(x, x, wrong({ transpose_b: true }))],
  [/^linear: .*got 'weights'/, () => core.linear(x, wrong({ weights: x }))],
  [/^sum: .*got 'dim'. Use axis./, () => core.sum(x, wrong({ dim: 0 }))],
  [/^sum: expected an object of options .*, got 0/, () => core.sum(x, wrong(0))],
  [
    /^crossEntropy: expected divisor to be/,
    () => core.crossEntropy(x, ids, wrong({ divisor: 'ignored' })),
  ],
  [
    /^crossEntropy: expected reduction to be/,
    () => core.crossEntropy(x, ids, wrong({ reduction: 'avg' })),
  ],
  [
    /^crossEntropy: expected weights to be a tensor, got \[1, 2\]/,
    () => core.crossEntropy(x, ids, wrong({ weights: [1, 2] })),
  ],
  [/^layerNorm: .*got 'epsilon'/, () => core.layerNorm(x, wrong({ epsilon: 1 }))],
  [/^causalSelfAttention: .*got 'heads'/, () => core.causalSelfAttention(x, wrong({ heads: 2 }))],
  [/^slice: .*got 'stop'/, () => core.slice(x, wrong({ axis: 0, start: 0, stop: 1 }))],
  [/^split: .*got 'sizes'/, () => core.split(x, wrong({ axis: 0, lengths: [2], sizes: [2] }))],
  [/^cat: .*got 'dim'/, () => core.cat([x, x], wrong({ axis: 0, dim: 0 }))],
  [/^cast: .*got 'force'/, () => core.cast(x, 'f16', wrong({ force: true }))],
  [/^createCpuBackend: .*got 'workers'/, () => createCpuBackend(wrong({ workers: 2 }))],
  [
    /^createCpuBackend: expected threads to be a number, got "2"/,
    () => createCpuBackend(wrong({ threads: '2' })),
  ],
  [/^createCpuBackend: expected memoryBytes/, () => createCpuBackend({ memoryBytes: 0 })],
  [/^createCpuBackend: expected workerUrl/, () => createCpuBackend(wrong({ workerUrl: 1 }))],
  [/^createWebGpuBackend: .*got 'software'/, () => createWebGpuBackend(wrong({ software: true }))],
  [
    /^createWebGpuBackend: expected gpu to be a GPU object/,
    () => createWebGpuBackend(wrong({ gpu: {} })),
  ],
  [
    /^createWebGpuBackend: expected kernelProfile/,
    () => createWebGpuBackend(wrong({ kernelProfile: 'fast' })),
  ],
  [
    /^createWebGpuBackend: expected maxBindingBytes/,
    () => createWebGpuBackend({ maxBindingBytes: 2.5 }),
  ],
  [
    /^createWebGpuBackend: expected isPaced to be true or false/,
    () => createWebGpuBackend(wrong({ isPaced: 1 })),
  ],
  [
    /^openNodeGpu: expected flags to be an array of strings/,
    () => openNodeGpu(wrong({ flags: 'backend=null' })),
  ],
];

function withOptions(options: object): unknown {
  return new core.Device(createReferenceBackend(), options as never);
}

function make(options: object): unknown {
  return device.empty([1], options as never);
}

describe('a wrong option is refused by name', () => {
  test.each(rows)('%s', async (message, call) => {
    const error = await Promise.resolve()
      .then(call)
      .catch((reason: unknown) => reason);
    expect(error).toBeInstanceOf(core.OptionError);
    expect((error as core.OptionError).code).toBe('OPTION');
    expect((error as Error).message).toMatch(message);
  });
});

test('undefined is the default, as where an option was left out', () => {
  const quiet = new core.Device(
    createReferenceBackend(),
    wrong({ seed: undefined, trace: undefined }),
  );
  expect(quiet.zeros([2], wrong({ dtype: undefined, tag: undefined })).dtype).toBe('f32');
});

test('a device of a host that names no adapter opens, and may be told one', async () => {
  const adapter = await openNodeGpu({ flags: ['backend=null'] }).requestAdapter();
  const gpuDevice = await adapter!.requestDevice();
  const nameless = new Proxy(gpuDevice, {
    get(target, name) {
      if (name === 'adapterInfo') {
        return undefined;
      }
      const value = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  const backend = await createWebGpuBackend({ device: nameless });
  expect(backend.info).toMatchObject({ description: 'unknown adapter', isSoftware: false });
  await backend.dispose();
  const info = { ...adapter!.info, device: 'llvmpipe', description: '', isFallbackAdapter: true };
  const told = await createWebGpuBackend({ device: nameless, adapterInfo: info as GPUAdapterInfo });
  expect(told.info).toMatchObject({ description: 'llvmpipe', isSoftware: true });
  await told.dispose();
  gpuDevice.destroy();
});
