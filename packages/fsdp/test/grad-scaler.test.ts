// The loss is scaled, though each rank sees only its shards of the gradients.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { clipGradNorm, GradScaler, Linear, type Module, OptimizerError, Sgd } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  expectClose,
  inputs,
  lossOf,
  onRanks,
  type Rank,
  Stack,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';

const BATCH = 12;

function net(device: Device, wrap: (module: Module) => Module = (module) => module) {
  const linear = (inFeatures: number, outFeatures: number) =>
    new Linear(device, { inFeatures, outFeatures });
  return wrap(new Stack(device, [linear(DIM, 31), wrap(linear(31, 17))]));
}

function sharded({ device, group }: Rank, options: Partial<FsdpOptions> = {}) {
  return net(
    device,
    (module) => new FullyShardedDataParallel(module, { processGroup: group, ...options }),
  ) as FullyShardedDataParallel;
}

async function backward(model: Module, scaler: GradScaler, rank: Rank, step: number) {
  const count = BATCH / rank.worldSize;
  await rank.device.scope(async () => {
    const x = inputs(rank.device, { first: rank.rank * count, count }, step);
    await scaler.scale(lossOf(await model.call(x))).backward();
  });
}

describe.each([{}, { moveParamsToCpu: true }, { flattenParameters: false }] as const)(
  'with %j',
  (options) => {
    it.each([1, 2, 3])('%i ranks train as one process does without a scale', async (worldSize) => {
      const [plain] = await onRanks(1, async ({ device }) => {
        const model = net(device);
        const optimizer = new Sgd(model.parameters(), { lr: 0.5, momentum: 0.9 });
        for (let step = 0; step < 3; step++) {
          await trainOnce(model, { first: 0, count: BATCH }, step);
          await device.scope(async () => {
            const { scale } = await clipGradNorm(model, 0.05);
            await optimizer.step({ gradScale: scale });
          });
          optimizer.zeroGrad();
        }
        return weightsOf(model);
      });
      const perRank = await onRanks(worldSize, async (rank) => {
        const model = sharded(rank, options);
        const optimizer = new Sgd(model.parameters(), { lr: 0.5, momentum: 0.9 });
        const scaler = new GradScaler(model, { growthInterval: 2 });
        for (let step = 0; step < 3; step++) {
          await backward(model, scaler, rank, step);
          await scaler.unscale(optimizer);
          await rank.device.scope(async () => {
            const { norm, scale } = await clipGradNorm(model, 0.05);
            expect(await norm.item()).toBeGreaterThan(0.05);
            expect(await scaler.step(optimizer, { gradScale: scale })).toBe(true);
          });
          scaler.update();
          optimizer.zeroGrad();
        }
        expect(scaler.factor).toBe(2 ** 17);
        return weightsOf(model);
      });
      for (const weights of perRank) {
        expectClose(weights, plain!);
      }
    });
  },
);

describe('an overflow on one rank', () => {
  it.each([Infinity, Number.NaN])(
    '(%d) makes all skip together, and the factor halves',
    async (value) => {
      const perRank = await onRanks(3, async (rank) => {
        const model = sharded(rank);
        const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
        const scaler = new GradScaler(model);
        const before = await weightsOf(model);
        await backward(model, scaler, rank, 0);
        if (rank.rank === 1) {
          const { grad } = model.units[0]!.flat;
          rank.device.backend.run('fill', { out: grad!.storage.view(3, 1), value });
        }
        expect(await scaler.step(optimizer)).toBe(false);
        scaler.update();
        optimizer.zeroGrad();
        expect(scaler.factor).toBe(2 ** 15);
        expect(await weightsOf(model)).toEqual(before);
        // All ranks step again with the next gradients.
        await backward(model, scaler, rank, 1);
        expect(await scaler.step(optimizer)).toBe(true);
        scaler.update();
        expect(await weightsOf(model)).not.toEqual(before);
        return weightsOf(model);
      });
      expect(perRank[1]).toEqual(perRank[0]);
      expect(perRank[2]).toEqual(perRank[0]);
    },
  );

  it('is found in the values, not in their squares', () =>
    onRanks(2, async (rank) => {
      const model = sharded(rank);
      const optimizer = new Sgd(model.parameters(), { lr: 1e-30 });
      const scaler = new GradScaler(model);
      await backward(model, scaler, rank, 0);
      const { grad } = model.units[0]!.flat;
      rank.device.backend.run('fill', { out: grad!.view(), value: 1e30 });
      expect(await scaler.step(optimizer)).toBe(true);
    }));

  it('an overflow of one of two optimizers skips only that one, and halves the factor', () =>
    onRanks(2, async (rank) => {
      const model = sharded(rank);
      const [outer, inner] = model.instances();
      const optimizers = [outer!, inner!].map(
        ({ units }) =>
          new Sgd(
            units.flatMap((unit) => unit.parameters.map(({ tensor }) => tensor)),
            { lr: 0.5 },
          ),
      );
      const scaler = new GradScaler(model);
      await backward(model, scaler, rank, 0);
      if (rank.rank === 0) {
        rank.device.backend.run('fill', {
          out: inner!.units[0]!.flat.grad!.view(),
          value: Infinity,
        });
      }
      const stepped: boolean[] = [];
      for (const optimizer of optimizers) {
        stepped.push(await scaler.step(optimizer));
      }
      scaler.update();
      expect(stepped).toEqual([true, false]);
      expect(scaler.factor).toBe(2 ** 15);
    }));
});

describe('the stages of a step', () => {
  const prepared = async (rank: Rank) => {
    const model = sharded(rank);
    const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
    const scaler = new GradScaler(model);
    await backward(model, scaler, rank, 0);
    return { model, optimizer, scaler };
  };

  it('refuse calls that are out of order', () =>
    onRanks(2, async (rank) => {
      const { optimizer, scaler } = await prepared(rank);
      expect(() => scaler.update()).toThrow(OptimizerError); // No step was made.
      await scaler.unscale(optimizer);
      await expect(scaler.unscale(optimizer)).rejects.toThrow('unscaled');
      await scaler.step(optimizer);
      await expect(scaler.step(optimizer)).rejects.toBeInstanceOf(OptimizerError);
      await expect(scaler.unscale(optimizer)).rejects.toThrow('stepped');
      scaler.update();
      expect(() => scaler.update()).toThrow(OptimizerError);
      await scaler.unscale(optimizer); // This begins a new step.
      scaler.update();
    }));

  it('unscale once where step follows it, and keep the state', () =>
    onRanks(2, async (rank) => {
      const { model, optimizer, scaler } = await prepared(rank);
      const [flat] = optimizer.parameters().map(({ piece }) => piece!.flat);
      const scaled = (await flat!.grad!.toArray()) as Float32Array;
      await scaler.unscale(optimizer);
      await scaler.step(optimizer);
      expect(await flat!.grad!.toArray()).toEqual(scaled.map((value) => value / 65536));
      scaler.update();
      const other = new GradScaler(model, { initScale: 2 });
      other.loadStateDict(scaler.stateDict());
      expect(other.stateDict()).toEqual({ scale: 65536, growthTracker: 1 });
    }));
});
