// Batch normalization is compared with float64 values of PyTorch (tooling/reference), also under
// checkpointing.

import { readFileSync } from 'node:fs';
import {
  BatchNorm1d,
  type BatchNormOptions,
  checkpoint,
  isBatchNorm,
  LayerNorm,
  loadStateDict,
  type Module,
  NnConfigError,
  stateDict,
} from '@shardweave/nn';
import {
  type Backend,
  cast,
  Device,
  mean,
  mul,
  ShapeError,
  square,
  sum,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ResidualMlp } from '../../../tooling/test-kit/residual-mlp.ts';
import { noWebGpu, openWebGpu } from '../../../tooling/test-kit/webgpu-device.ts';
import { expectClose, expectGradients, makeDevice, read, values } from './support/support.js';

interface ReferenceStep {
  readonly shape: number[];
  readonly seed: number;
  readonly y: number[];
  readonly dx: number[];
  readonly dWeight?: number[];
  readonly dBias?: number[];
  readonly mean?: number[];
  readonly variance?: number[];
  readonly count?: number;
}

const EXPECTED = JSON.parse(
  readFileSync(
    new URL('../../../tooling/reference/data/batch-norm/expected.json', import.meta.url),
    'utf8',
  ),
) as Record<
  string,
  { options: Record<string, unknown>; train: ReferenceStep[]; eval: ReferenceStep }
>;

/** Returns the inputs of the reference, computed by the same formula as there. */
function inputs(shape: readonly number[], seed: number): Float32Array {
  return Float32Array.from(
    { length: shape.reduce((a, b) => a * b) },
    (_, i) => (1 + (i % 3)) * Math.sin(1.7 * i + seed) + 0.5 * (i % 3),
  );
}

function set(tensor: Tensor, data: Float32Array): void {
  tensor.storage.write(new Uint8Array(data.buffer));
}

const backends: Record<string, Backend> = {};
beforeAll(async () => {
  backends.reference = createReferenceBackend();
  backends.cpu = await createCpuBackend({ threads: 1 });
  if (noWebGpu === undefined) {
    backends.webgpu = await openWebGpu();
  }
});
afterAll(async () => {
  for (const backend of Object.values(backends)) {
    await backend.dispose();
  }
});

describe.each([
  { kind: 'reference', reason: undefined },
  { kind: 'cpu', reason: undefined },
  { kind: 'webgpu', reason: noWebGpu },
])('on the $kind backend', ({ kind, reason }) => {
  const why = reason === undefined ? '' : ` (${reason})`;
  const names = Object.keys(EXPECTED);
  it.skipIf(reason !== undefined).each(names)(
    `BatchNorm1d equals PyTorch: %s${why}`,
    async (name) => {
      const device = new Device(backends[kind]!);
      const { options, train, eval: evaluation } = EXPECTED[name]!;
      const norm = new BatchNorm1d(device, { numFeatures: 3, ...optionsOf(options) });
      if (norm.weight !== undefined) {
        set(norm.weight, inputs([3], 10));
      }
      if (norm.bias !== undefined) {
        set(norm.bias, inputs([3], 20));
      }
      for (const step of train) {
        await expectStep(norm, step);
      }
      norm.eval();
      await expectStep(norm, evaluation);
      norm.dispose();
      expect(device.memory().live.total).toBe(0);
    },
  );
});

function optionsOf(python: Record<string, unknown>): Omit<BatchNormOptions, 'numFeatures'> {
  const { eps, momentum, affine, track_running_stats: trackRunningStats } = python;
  return {
    ...(eps === undefined ? {} : { eps }),
    ...(momentum === undefined ? {} : { momentum: momentum ?? 'cumulative' }),
    ...(affine === undefined ? {} : { affine }),
    ...(trackRunningStats === undefined ? {} : { trackRunningStats }),
  } as Omit<BatchNormOptions, 'numFeatures'>;
}

async function expectStep(norm: BatchNorm1d, expected: ReferenceStep): Promise<void> {
  const { device } = norm;
  const { shape, seed } = expected;
  norm.zeroGrad();
  await device.scope(async () => {
    const x = device.tensor(inputs(shape, seed), shape, { requiresGrad: true });
    const y = await norm.call(x);
    expect(y.shape).toEqual(shape);
    expectClose(await read(y), expected.y);
    await sum(mul(y, device.tensor(inputs(shape, seed + 0.5), shape))).backward();
    expectClose(await read(x.grad!), expected.dx);
    x.grad!.dispose();
  });
  if (norm.weight !== undefined) {
    expectClose(await read(norm.weight.grad!), expected.dWeight!);
  }
  if (norm.bias !== undefined) {
    expectClose(await read(norm.bias.grad!), expected.dBias!);
  }
  expect(norm.runningMean === undefined).toBe(expected.mean === undefined);
  if (norm.runningMean === undefined) {
    return;
  }
  expectClose(await read(norm.runningMean), expected.mean!);
  expectClose(await read(norm.runningVar!), expected.variance!);
  expect(await read(norm.numBatchesTracked!)).toEqual([expected.count]);
}

describe('BatchNorm1d', () => {
  it('keeps statistics of 16-bit inputs in f32, and gives outputs and gradients in 16 bits', async () => {
    const device = makeDevice();
    const norm = new BatchNorm1d(device, { numFeatures: 2 });
    // In f16 the squares of these values would overflow.
    const rows = Float32Array.from([400, -300, 500, 100, 0, 200]);
    const x = device.tensor(rows, [3, 2], { requiresGrad: true });
    const narrow = cast(x, 'f16');
    const y = await norm.call(narrow);
    expect(y.dtype).toBe('f16');
    const expected = [400, -300, 500, 100, 0, 200].map((value, i) => {
      const column = i % 2 === 0 ? [400, 500, 0] : [-300, 100, 200];
      const middle = (column[0]! + column[1]! + column[2]!) / 3;
      const variance = column.reduce((a, v) => a + (v - middle) ** 2, 0) / 3;
      return (value - middle) / Math.sqrt(variance + 1e-5);
    });
    expectClose(await read(y), expected, 1e-3);
    await sum(mul(y, device.tensor(values(6), [3, 2], { dtype: 'f16' }))).backward();
    expect((await read(x.grad!)).every(Number.isFinite)).toBe(true);
    expect(norm.weight!.grad!.dtype).toBe('f32');
    expectClose(await read(norm.runningMean!), [30, 0], 1e-6);
  });

  it('evaluates with statistics that a later training forward does not change', async () => {
    const device = makeDevice();
    const norm = new BatchNorm1d(device, { numFeatures: 2 });
    const x = device.tensor(values(6), [3, 2], { requiresGrad: true });
    const gradient = async (isMoved: boolean) => {
      norm.zeroGrad();
      const y = await norm.eval().call(x);
      if (isMoved) {
        await norm.train().call(device.tensor([9, -5, 7, 3], [2, 2]));
      }
      await sum(square(y)).backward();
      const grads = await Promise.all([x, norm.weight!].map(({ grad }) => read(grad!)));
      x.grad!.dispose();
      x.grad = undefined;
      return grads;
    };
    const still = await gradient(false);
    expect(await gradient(true)).toEqual(still);
    expect(await gradient(false)).not.toEqual(still);
  });

  it('holds x and two numbers a channel for backward, nothing more', async () => {
    const device = makeDevice();
    const norm = new BatchNorm1d(device, { numFeatures: 4 });
    await device.scope(async () => {
      const x = device.zeros([100, 4], { requiresGrad: true });
      const before = device.memory().live.activation;
      await norm.call(x);
      // What stays is the output, the mean and the reciprocal deviation. The variance was freed at
      // the end of the call's scope.
      const held = device.memory().live.activation - before;
      expect(held).toBe((400 + 4 + 4) * 4);
    });
  });

  it('is saved and loaded with its statistics, bit for bit', async () => {
    const [first, second] = [makeDevice(), makeDevice()].map(
      (device) => new BatchNorm1d(device, { numFeatures: 3 }),
    ) as [BatchNorm1d, BatchNorm1d];
    for (const seed of [1, 2]) {
      await first.call(first.device.tensor(values(12, seed), [4, 3]));
    }
    const saved = await stateDict(first);
    expect([...saved].map(([name, { dtype, shape }]) => [name, dtype, shape])).toEqual([
      ['weight', 'f32', [3]],
      ['bias', 'f32', [3]],
      ['running_mean', 'f32', [3]],
      ['running_var', 'f32', [3]],
      ['num_batches_tracked', 'u32', []],
    ]);
    await loadStateDict(second, saved);
    expect(await stateDict(second)).toEqual(saved);
    expect(await read(second.numBatchesTracked!)).toEqual([2]);
  });

  it('goes on with whole batches where a part of one has failed', async () => {
    const norm = new BatchNorm1d(makeDevice(), { numFeatures: 2 });
    norm.beginBatch().abandon();
    await norm.call(norm.device.tensor(values(6), [3, 2]));
    expect(await read(norm.numBatchesTracked!)).toEqual([1]);
  });

  it('refuses shapes, single values and options that cannot work', async () => {
    const device = makeDevice();
    const norm = new BatchNorm1d(device, { numFeatures: 3 });
    for (const shape of [[3], [2, 4], [2, 3, 1, 1], [1, 3], [1, 3, 1], [0, 3]]) {
      await expect(norm.call(device.zeros(shape)), String(shape)).rejects.toThrow(ShapeError);
    }
    expect(await read(norm.numBatchesTracked!)).toEqual([0]);
    expect((await norm.eval().call(device.zeros([1, 3]))).shape).toEqual([1, 3]);
    for (const options of [{ numFeatures: 0 }, { numFeatures: 2, momentum: 1.5 }]) {
      expect(() => new BatchNorm1d(device, options)).toThrow(NnConfigError);
    }
    expect(isBatchNorm(norm)).toBe(true);
    expect(isBatchNorm(new LayerNorm(device, { normalizedShape: 3 }))).toBe(false);
  });
});

describe('checkpoint around BatchNorm1d', () => {
  it.each([1, 2])('counts each batch once, nested %i deep, bit for bit', async (depth) => {
    const run = async (isCheckpointed: boolean) => {
      const device = makeDevice();
      const norm = new BatchNorm1d(device, { numFeatures: 3 });
      let module: Module<[x: Tensor], Tensor> = norm;
      for (let i = 0; isCheckpointed && i < depth; i++) {
        module = checkpoint(module);
      }
      for (const seed of [1, 2, 3]) {
        await device.scope(async () => {
          const x = device.tensor(values(12, seed), [4, 3], { requiresGrad: true });
          await sum(square(tanh(await module.call(x)))).backward();
          x.grad!.dispose();
        });
      }
      // A forward without a backward counts as a batch too.
      await device.noGrad(() => module.call(device.tensor(values(6, 9), [2, 3])));
      expect(await read(norm.numBatchesTracked!)).toEqual([4]);
      const gradients = await Promise.all(norm.parameters().map(({ grad }) => read(grad!)));
      return { state: await stateDict(norm), gradients };
    };
    expect(await run(true)).toEqual(await run(false));
  });

  it('a checkpoint around the blocks of a residual network keeps losses and all buffers, bit for bit', async () => {
    const run = async (isCheckpointed: boolean) => {
      const device = makeDevice();
      const model = new ResidualMlp(device, {
        inFeatures: 3,
        width: 4,
        numBlocks: 2,
        numClasses: 2,
      });
      if (isCheckpointed) {
        for (const [name, layer] of model.children()) {
          model.replaceChild(name, checkpoint(layer));
        }
      }
      const losses: number[] = [];
      for (const seed of [1, 2]) {
        await device.scope(async () => {
          const loss = mean(square(await model.call(device.tensor(values(15, seed), [5, 3]))));
          await loss.backward();
          losses.push(await loss.item());
        });
      }
      return { losses, state: await stateDict(model) };
    };
    const plain = await run(false);
    expect(await run(true)).toEqual(plain);
    expect(plain.state.get('1.norm2.num_batches_tracked')!.data[0]).toBe(2);
  });
});

it('ResidualMlp has gradients of all its parameters', async () => {
  const device = makeDevice();
  const model = new ResidualMlp(device, { inFeatures: 3, width: 4, numBlocks: 1, numClasses: 2 });
  const x = device.tensor(values(18, 3), [6, 3], { requiresGrad: true });
  const weights = device.tensor(values(12, 4), [6, 2]);
  await expectGradients(
    [x, ...model.parameters()],
    async () => sum(mul(await model.call(x), weights)),
    { step: 2e-3, tolerance: 5e-3 },
  );
});

it('parts of a batch belong to the handle that began last, and leave no memory behind', async () => {
  const device = makeDevice();
  const norm = new BatchNorm1d(device, { numFeatures: 3 });
  const call = (seed: number) =>
    device.noGrad(() =>
      device.scope(async () => void (await norm.call(device.tensor(values(12, seed), [4, 3])))),
    );
  const tracked = async () => (await read(norm.numBatchesTracked!))[0];
  const live = device.ledger.live().total;
  const [former, batch] = [norm.beginBatch(), norm.beginBatch()];
  former.abandon();
  for (const seed of [1, 2, 3]) {
    batch.beginPart();
    await call(seed);
  }
  expect(await tracked()).toBe(0);
  batch.end();
  batch.abandon(); // does nothing
  expect(await tracked()).toBe(1);
  const whole = new BatchNorm1d(device, { numFeatures: 3 });
  const rows = [1, 2, 3].flatMap((seed) => values(12, seed));
  await device.noGrad(() =>
    device.scope(async () => void (await whole.call(device.tensor(rows, [12, 3])))),
  );
  expectClose(await read(norm.runningMean!), await read(whole.runningMean!), 1e-6);
  expectClose(await read(norm.runningVar!), await read(whole.runningVar!), 1e-6);
  await call(4);
  expect(await tracked()).toBe(2);
  whole.dispose();
  expect(device.ledger.live().total).toBe(live);
});

it.each(['f16', 'bf16'] as const)(
  'statistics in %s have results and gradients of their dtype',
  async (dtype) => {
    const device = makeDevice();
    const norm = new BatchNorm1d(device, { numFeatures: 3 }).to(dtype) as BatchNorm1d;
    const x = device.tensor(values(12), [4, 3], { dtype, requiresGrad: true });
    const out = await norm.call(x);
    await sum(out).backward();
    const found = [out, x.grad!, norm.weight!.grad!, norm.bias!.grad!];
    expect(found.map((tensor) => tensor.dtype)).toEqual([dtype, dtype, dtype, dtype]);
  },
);
