// Norms and clipping of all gradients are compared with float64 loops over those of an unsharded
// run. A further test checks the divisors of gradients.

import {
  FsdpConfigError,
  type FsdpOptions,
  FsdpStateError,
  FullyShardedDataParallel,
  setGradientDivideFactors,
} from '@shardweave/fsdp';
import {
  clipGradNorm,
  gradNorm,
  Linear,
  type Module,
  NnConfigError,
  Sgd,
  scaleGradients,
} from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  expectClose,
  onRanks,
  type Rank,
  Stack,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';

const BATCH = 12;

function net(device: Device, wrap: (module: Module, name: string) => Module = (module) => module) {
  const linear = (inFeatures: number, outFeatures: number) =>
    new Linear(device, { inFeatures, outFeatures });
  return wrap(new Stack(device, [linear(DIM, 31), wrap(linear(31, 17), 'inner')]), 'outer');
}

function sharded({ device, group }: Rank, options: Partial<FsdpOptions> = {}) {
  return net(
    device,
    (module, name) =>
      new FullyShardedDataParallel(module, { processGroup: group, name, ...options }),
  ) as FullyShardedDataParallel;
}

function rows({ rank, worldSize }: Rank) {
  return { first: (rank * BATCH) / worldSize, count: BATCH / worldSize };
}

/**
 * Returns all gradients of one process in float64, and the weights after an SGD step clipped by
 * their norm.
 */
async function reference(normType: number, maxNorm: number) {
  const [result] = await onRanks(1, async ({ device }) => {
    const model = net(device);
    await trainOnce(model, { first: 0, count: BATCH });
    const gradients: number[][] = [];
    for (const parameter of model.parameters()) {
      gradients.push([...((await parameter.grad!.toArray()) as Float32Array)]);
    }
    const norm = normOf(gradients.flat(), normType);
    const factor = Math.min(1, maxNorm / (norm + 1e-6));
    const weights = new Map<string, number[]>();
    for (const [i, [name, values]] of [...(await weightsOf(model))].entries()) {
      weights.set(
        name,
        [...values].map((value, k) => value - 0.5 * factor * gradients[i]![k]!),
      );
    }
    return { norm, weights };
  });
  return result!;
}

function normOf(values: readonly number[], normType: number): number {
  if (normType === Infinity) {
    return Math.max(...values.map(Math.abs));
  }
  return values.reduce((sum, value) => sum + Math.abs(value) ** normType, 0) ** (1 / normType);
}

describe.each([
  [1, true],
  [2, true],
  [3, true],
  [2, false],
] as const)('over %i ranks, flattened %s', (worldSize, flattenParameters) => {
  it.each([2, Infinity, 1, 3, 0.5])('norm %d and clipping are the dense ones', async (normType) => {
    const maxNorm = 0.02;
    const wanted = await reference(normType, maxNorm);
    expect(wanted.norm).toBeGreaterThan(maxNorm);
    for (const options of [{}, { moveParamsToCpu: true }]) {
      const perRank = await onRanks(worldSize, async (rank) => {
        const model = sharded(rank, { flattenParameters, ...options });
        const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
        await trainOnce(model, rows(rank));
        const { live } = rank.device.memory();
        const norm = await rank.device.scope(async () => {
          const clipped = await clipGradNorm(model, maxNorm, { normType });
          await scaleGradients(model, clipped.scale);
          return clipped.norm.item();
        });
        expect(rank.device.memory().live).toEqual(live);
        const after = await gradNorm(model, { normType });
        await optimizer.step();
        return { norm, after, weights: await weightsOf(model) };
      });
      for (const { norm, after, weights } of perRank) {
        expect(Math.abs(norm / wanted.norm - 1)).toBeLessThan(1e-5);
        expect(Math.abs(after / maxNorm - 1)).toBeLessThan(1e-4);
        expectClose(weights, wanted.weights, 1e-6);
      }
    }
  });
});

describe('a norm of the gradients', () => {
  it.each([2, Infinity, 1])(
    '%d without gradients is 0, with NaN on one rank NaN on all',
    (normType) =>
      onRanks(3, async (rank) => {
        const model = sharded(rank);
        expect(await gradNorm(model, { normType })).toBe(0);
        expect(await (await clipGradNorm(model, 1, { normType })).norm.item()).toBe(0);
        await trainOnce(model, rows(rank));
        for (const value of [Number.NaN, Infinity]) {
          const { flat } = model.units[0]!;
          if (rank.rank === 2) {
            rank.device.backend.run('fill', { out: flat.grad!.view(), value });
          }
          const norm = await gradNorm(model, { normType });
          expect(norm).toBe(value);
        }
      }),
  );

  it('is computed by the root alone, and needs a type above 0', () =>
    onRanks(2, async (rank) => {
      const model = sharded(rank);
      await model.initialize();
      const [, inner] = model.instances();
      await expect(gradNorm(inner!)).rejects.toBeInstanceOf(FsdpStateError);
      await expect(clipGradNorm(inner!, 1)).rejects.toBeInstanceOf(FsdpStateError);
      for (const normType of [0, -1, Number.NaN]) {
        await expect(gradNorm(model, { normType })).rejects.toBeInstanceOf(NnConfigError);
      }
    }));

  it.each([2, Infinity, 1])('%d counts each replica of shards once', async (normType) => {
    const wanted = await reference(normType, 1);
    await onRanks(4, async (rank) => {
      const processGroup = await rank.group.split(Math.floor(rank.rank / 2));
      const replicateGroup = await rank.group.split(rank.rank % 2);
      const model = sharded({ ...rank, group: processGroup }, { replicateGroup });
      await trainOnce(model, rows(rank));
      const norm = await gradNorm(model, { normType });
      expect(Math.abs(norm / wanted.norm - 1)).toBeLessThan(1e-5);
    });
  });
});

describe('setGradientDivideFactors', () => {
  const norms = (change: (model: FullyShardedDataParallel) => void) =>
    onRanks(2, async (rank) => {
      const model = sharded(rank);
      await model.initialize();
      change(model);
      await trainOnce(model, rows(rank));
      const [outer, inner] = model.instances();
      return {
        whole: await gradNorm(model),
        parts: await Promise.all(
          [outer!, inner!].map(async ({ units }) => {
            const values = (await units[0]!.flat.grad!.toArray()) as Float32Array;
            return normOf([...values], 2);
          }),
        ),
      };
    });

  it('divides by the product of both, nested instances too unless told not to', async () => {
    const [before] = await norms(() => undefined);
    const [sums] = await norms((model) => {
      setGradientDivideFactors(model, { predivide: 0.5, postdivide: 2 });
    });
    // The factor is 2 / (0.5 x 2).
    expect(Math.abs(sums!.whole / before!.whole / 2 - 1)).toBeLessThan(1e-5);
    const [own] = await norms((model) => {
      setGradientDivideFactors(model, { predivide: 4, postdivide: 2, recursive: false });
    });
    expect(Math.abs((own!.parts[0]! / before!.parts[0]!) * 4 - 1)).toBeLessThan(1e-5);
    expect(own!.parts[1]).toBe(before!.parts[1]);
  });

  it('refuses factors of 0 or less, and other states than idle', () =>
    onRanks(2, async (rank) => {
      const model = sharded(rank);
      for (const [predivide, postdivide] of [
        [0, 1],
        [1, -1],
        [Number.NaN, 1],
      ] as const) {
        expect(() => setGradientDivideFactors(model, { predivide, postdivide })).toThrow(
          FsdpConfigError,
        );
      }
      let error: unknown;
      const [, inner] = model.instances();
      inner!.module.aroundForward({
        before: () => {
          try {
            setGradientDivideFactors(model, { predivide: 1, postdivide: 2 });
          } catch (thrown) {
            error = thrown;
          }
        },
      });
      await trainOnce(model, rows(rank));
      expect(error).toBeInstanceOf(FsdpStateError);
      expect(model.divideFactors).toEqual({ predivide: 2, postdivide: 1 });
    }));
});
