// These tests check the dtypes of inputs, parameters, results, buffers and reductions under each
// combination of options, and training with 16-bit masters.

import type { ProcessGroup } from '@shardweave/collectives';
import { FsdpConfigError, type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { localStateDict } from '@shardweave/fsdp/fairscale';
import { Module, Sgd } from '@shardweave/nn';
import { type Device, type DType, linear, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  inputs,
  layer,
  lossOf,
  moduleOf,
  onRanks,
  type Rank,
  Stack,
} from '../../../tooling/test-kit/index.ts';
import { wrapIn } from './support/sharding.js';

/** This module notes the dtypes that its forward sees. */
class Probe extends Module<[batch: { x: Tensor }], Tensor> {
  readonly weight: Tensor;
  readonly scale: Tensor;
  readonly count: Tensor;
  seen: Record<string, DType> = {};

  constructor(device: Device) {
    super(device);
    this.weight = this.parameter('weight', device.full([DIM, DIM], 0.125));
    this.scale = this.buffer('scale', device.full([DIM], 0.3));
    this.count = this.buffer('count', device.tensor(Int32Array.of(3), [1]));
  }

  forward({ x }: { x: Tensor }): Tensor {
    const output = linear(x, { weight: this.weight });
    const { weight, scale, count } = this;
    this.seen = {
      input: x.dtype,
      parameter: weight.dtype,
      output: output.dtype,
      buffer: scale.dtype,
      count: count.dtype,
    };
    return output;
  }
}

/** Returns the group, with the dtypes of its reductions noted in `seen`. */
function watched(group: ProcessGroup, seen: Set<string>): ProcessGroup {
  return new Proxy(group, {
    get(target, key) {
      const value: unknown = Reflect.get(target, key, target);
      if (typeof value !== 'function') {
        return value;
      }
      return (...args: unknown[]) => {
        if (key === 'reduceScatter') {
          seen.add((args[2] as { dtype: string }).dtype);
        }
        return (value as (...all: unknown[]) => unknown).apply(target, args);
      };
    },
  });
}

async function dtypesUnder(rank: Rank, options: Partial<FsdpOptions>, inputDType: DType = 'f32') {
  const { device, group } = rank;
  const reduced = new Set<string>();
  const reduceGroup = watched(await group.split(0), reduced);
  const probe = new Probe(device);
  if (options.mixedPrecision !== true && options.computeDType !== undefined) {
    probe.to(options.computeDType);
  }
  const model = wrapIn({ group }, { processGroupReduceScatter: reduceGroup, ...options })(probe);
  await device.scope(async () => {
    const x = device.full([2, DIM], 1, { dtype: inputDType });
    await lossOf(await model.call({ x })).backward();
  });
  expect(model.trainingState).toBe('idle');
  return { ...probe.seen, master: model.units[0]!.flat.dtype, reduce: [...reduced].join() };
}

describe('dtypes of', () => {
  const f32 = {
    input: 'f32',
    parameter: 'f32',
    output: 'f32',
    buffer: 'f32',
    count: 'i32',
    master: 'f32',
    reduce: 'f32',
  };
  const in16 = (dtype: DType) => ({
    ...f32,
    input: dtype,
    parameter: dtype,
    output: dtype,
    buffer: dtype,
    reduce: dtype,
  });

  it.each<{ name: string; options: Partial<FsdpOptions>; expected: object }>([
    { name: 'full precision', options: {}, expected: f32 },
    { name: 'mixed', options: { mixedPrecision: true }, expected: in16('bf16') },
    {
      name: 'mixed in f16',
      options: { mixedPrecision: true, computeDType: 'f16' },
      expected: in16('f16'),
    },
    {
      name: 'mixed with compute in f32',
      options: { mixedPrecision: true, computeDType: 'f32' },
      expected: f32,
    },
    {
      name: 'mixed with reductions in f32',
      options: { mixedPrecision: true, fp32ReduceScatter: true },
      expected: { ...in16('bf16'), reduce: 'f32' },
    },
    {
      name: 'mixed with buffers in f32',
      options: { mixedPrecision: true, bufferDType: 'f32' },
      expected: { ...in16('bf16'), buffer: 'f32' },
    },
    {
      name: 'pure f16',
      options: { computeDType: 'f16', bufferDType: 'f32' },
      expected: { ...in16('f16'), master: 'f16', buffer: 'f32', input: 'f32', output: 'f32' },
    },
  ])('$name', async ({ options, expected }) => {
    const perRank = await onRanks(2, (rank) => dtypesUnder(rank, options));
    for (const seen of perRank) {
      expect(seen).toEqual(expected);
    }
  });

  it('forceInputToFp32: a 16-bit input of an f32 instance, with its gradient', () =>
    onRanks(2, async (rank) => {
      expect(await dtypesUnder(rank, {}, 'bf16')).toMatchObject({ input: 'bf16' });
      const options = { forceInputToFp32: true };
      expect(await dtypesUnder(rank, options, 'bf16')).toMatchObject({ input: 'f32' });

      const { device, group } = rank;
      const island = wrapIn({ group }, { forceInputToFp32: true })(layer(device));
      await device.scope(async () => {
        const x = device.full([2, DIM], 1, { dtype: 'f16', requiresGrad: true });
        await lossOf(await island.call(x)).backward();
        expect(x.grad?.dtype).toBe('f16');
        expect((await x.grad!.toArray()).some((value) => value !== 0)).toBe(true);
        x.grad!.dispose();
      });
    }));

  it('a nested instance keeps its own setting of buffers', () =>
    onRanks(1, async ({ device, group }) => {
      const [inner, outer] = [new Probe(device), new Probe(device)];
      const island = wrapIn({ group }, { mixedPrecision: true, bufferDType: 'f32' })(inner);
      const both = moduleOf(device, { island, outer }, async (parts, batch: { x: Tensor }) =>
        parts.outer.call({ x: await parts.island.call(batch) }),
      );
      const model = wrapIn({ group }, { mixedPrecision: true })(both);
      await device.scope(() => model.call({ x: device.full([2, DIM], 1) }));
      expect([inner.seen.buffer, outer.seen.buffer]).toEqual(['f32', 'bf16']);
    }));

  it('refuses combinations that contradict one another', () =>
    onRanks(1, async ({ device, group }) => {
      const wrap = (options: object) => () =>
        new FullyShardedDataParallel(layer(device), { processGroup: group, ...options });
      expect(wrap({ computeDType: 'f16' })).toThrow(/expected f16 parameters/);
      expect(wrap({ mixedPrecision: true, forceInputToFp32: true })).toThrow(FsdpConfigError);
    }));
});

describe('pure 16-bit training', () => {
  it.each(['f16', 'bf16'] as const)(
    'training in %s over 2 ranks follows one process',
    async (dtype) => {
      const ROWS = 4;
      const run = async (model: Module, rank: { rank: number; worldSize: number }) => {
        const { device } = model;
        const optimizer = new Sgd(model.parameters(), { lr: 0.5, momentum: 0.9 });
        const losses: number[] = [];
        for (let step = 0; step < 6; step++) {
          const loss = await device.scope(async () => {
            const count = ROWS / rank.worldSize;
            const x = inputs(device, { first: rank.rank * count, count });
            const result = lossOf(await model.call(x));
            await result.backward();
            return result.item();
          });
          losses.push(loss);
          await optimizer.step();
          optimizer.zeroGrad();
        }
        optimizer.dispose();
        return losses;
      };
      const stack = (device: Device) => new Stack(device, [layer(device), layer(device)]).to(dtype);
      const [plain] = await onRanks(1, ({ device }) =>
        run(stack(device), { rank: 0, worldSize: 1 }),
      );
      const sharded = await onRanks(2, async ({ device, group, rank, worldSize }) => {
        const model = wrapIn({ group }, { computeDType: dtype })(stack(device));
        const losses = await run(model, { rank, worldSize });
        const local = await localStateDict(model);
        expect([...local.values()].map((entry) => entry.dtype)).toEqual([dtype]);
        return losses;
      });
      const tolerance = dtype === 'f16' ? 2e-3 : 2e-2; // The limit is a few roundings of the weights.
      plain!.forEach((loss, step) => {
        const mean = (sharded[0]![step]! + sharded[1]![step]!) / 2;
        expect(Math.abs(mean - loss) / loss, `step ${step}`).toBeLessThan(tolerance);
      });
      expect(plain!.at(-1)!).toBeLessThan(0.8 * plain![0]!);
    },
  );
});
