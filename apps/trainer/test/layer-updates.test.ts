// The share of its norm by which a step moves each group of layers, against loops over the weights
// before and after it.

import {
  type AdamOptions,
  AdamW,
  Linear,
  type Module,
  ParameterInit,
  type ParamGroup,
  Sequential,
  stateDict,
} from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { onRanks } from '../../../tooling/test-kit/ranks.js';
import { tellsLayers, tellsUpdates } from '../src/rank/step/layer-norms.js';
import { LayerUpdates } from '../src/rank/step/layer-updates.js';
import {
  backward,
  net,
  STRATEGIES,
  type Strategy,
  sharded,
  under,
} from './support/each-strategy.js';

type State = ReadonlyMap<string, Float32Array>;

async function weightsOf(model: Module): Promise<State> {
  const entries = [...(await stateDict(model))];
  return new Map(entries.map(([name, { data }]) => [name, new Float32Array(data.slice().buffer)]));
}

/** The ratios by layer in f64. */
function expected(before: State, after: State): [layer: string, ratio: number][] {
  return ['0', '1'].map((layer) => {
    let [moved, weights] = [0, 0];
    for (const [name, values] of before) {
      if (name.startsWith(layer)) {
        values.forEach((value, i) => {
          moved += (after.get(name)![i]! - value) ** 2;
          weights += value ** 2;
        });
      }
    }
    return [layer, Math.sqrt(moved / weights)];
  });
}

/** Matrices decay much, so that the decay is seen in what moves. */
function groupsOf(model: Module): ParamGroup<AdamOptions>[] {
  const all = model.parameters();
  const [matrices, others] = [all.filter(({ rank }) => rank > 1), all.filter((x) => x.rank < 2)];
  return [
    { params: matrices, weightDecay: 2 },
    { params: others, weightDecay: 0 },
  ];
}

describe('updates by layer', () => {
  it.each(STRATEGIES.filter(({ name }) => !/host|offload/.test(name)))(
    'ratios of $name are those of the weights before and after, and there are none without gradients',
    async (strategy) => {
      const backend = createReferenceBackend();
      await onRanks(
        strategy.numRanks,
        async (rank) => {
          const { device } = rank;
          const module = net(device);
          const wrapped = strategy.wrap(module, rank);
          const optimizer = new AdamW(groupsOf(wrapped.model), { lr: 0.02, eps: 0.01 });
          for (const step of [0, 1, 2, 3]) {
            await backward(wrapped, step);
            const before = await weightsOf(wrapped.model);
            const updates = new LayerUpdates({ device, module: wrapped.model, optimizer });
            await optimizer.step();
            const wanted = expected(before, await weightsOf(wrapped.model));
            if (step === 3) {
              optimizer.zeroGrad();
              expect([...(await updates.ratios())]).toEqual([]);
              continue;
            }
            const ratios = [...(await updates.ratios())];
            optimizer.zeroGrad();
            expect(wanted.every(([, ratio]) => ratio > 0.02)).toBe(true);
            expect(ratios.map(([layer]) => layer)).toEqual(['0', '1']);
            ratios.forEach(([, ratio], i) => {
              expect(Math.abs(ratio - wanted[i]![1])).toBeLessThanOrEqual(1e-5 * wanted[i]![1]);
            });
          }
          optimizer.dispose();
        },
        { backend },
      );
    },
  );

  it('have the same bits on any number of ranks, which cut layers anywhere', async () => {
    const wide = (device: Device) => {
      const init = new ParameterInit(device, { seed: 5 });
      return new Sequential(device, [
        new Linear(device, { inFeatures: 3, outFeatures: 700, init }),
        new Linear(device, { inFeatures: 700, outFeatures: 3, init }),
      ]);
    };
    const ratiosOn = (strategy: Strategy) =>
      under(
        strategy,
        async (wrapped) => {
          const { model } = wrapped;
          const optimizer = new AdamW(groupsOf(model), { lr: 0.02 });
          const updates = new LayerUpdates({ device: model.device, module: model, optimizer });
          await backward(wrapped, 0);
          await optimizer.step();
          return [...(await updates.ratios())];
        },
        wide,
      );
    const [alone] = STRATEGIES;
    const wanted = await ratiosOn(alone!);
    expect(wanted.length).toBe(2);
    for (const numRanks of [1, 2, 4]) {
      expect(await ratiosOn({ name: 'fsdp', numRanks, wrap: sharded({}) })).toEqual(wanted);
    }
  });

  it('are left out for weights that rest off the device', async () => {
    const strategy = STRATEGIES.find(({ name }) => name === 'offload')!;
    const backend = createReferenceBackend();
    await onRanks(
      1,
      async (rank) => {
        const { device } = rank;
        const wrapped = strategy.wrap(net(device), rank);
        const optimizer = new AdamW(wrapped.model.parameters());
        const updates = new LayerUpdates({ device, module: wrapped.model, optimizer });
        await backward(wrapped, 0);
        await optimizer.step();
        expect([...(await updates.ratios())]).toEqual([]);
      },
      { backend },
    );
  });

  it.each([1, 50, 51, 200, 201, 10_000])(
    'are told at most 51 times in %d steps, with norms',
    (steps) => {
      const all = Array.from({ length: steps }, (_, i) => i + 1);
      const told = all.filter((step) => tellsUpdates(step, steps));
      expect(told.every((step) => tellsLayers(step, steps))).toBe(true);
      expect(told[0]).toBe(1);
      expect(told.length).toBeLessThanOrEqual(51);
      expect(told.length).toBeGreaterThanOrEqual(Math.min(steps, 25));
    },
  );
});
