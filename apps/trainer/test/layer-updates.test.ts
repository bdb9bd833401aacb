// The share of its norm by which a step moves each group of layers, against loops over the weights
// before and after it.

import { type AdamOptions, AdamW, type Module, type ParamGroup, stateDict } from '@shardweave/nn';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { onRanks } from '../../../tooling/test-kit/ranks.js';
import { tellsLayers, tellsUpdates } from '../src/rank/step/layer-norms.js';
import { LayerUpdates } from '../src/rank/step/layer-updates.js';
import { backward, net, STRATEGIES } from './support/each-strategy.js';

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
    'ratios of $name are those of the weights before and after, with and without gradients',
    async (strategy) => {
      const backend = createReferenceBackend();
      await onRanks(
        strategy.numRanks,
        async (rank) => {
          const { device, group } = rank;
          const module = net(device);
          const wrapped = strategy.wrap(module, rank);
          const optimizer = new AdamW(groupsOf(wrapped.model), { lr: 0.02, eps: 0.01 });
          for (const step of [0, 1, 2, 3]) {
            await backward(wrapped, step);
            const before = await weightsOf(wrapped.model);
            const updates = new LayerUpdates({ device, group, module: wrapped.model, optimizer });
            if (step === 3) {
              optimizer.zeroGrad(); // nothing moves then
            }
            await optimizer.step();
            optimizer.zeroGrad();
            const ratios = [...(await updates.ratios())];
            const wanted = expected(before, await weightsOf(wrapped.model));
            expect(wanted.every(([, ratio]) => (step === 3 ? ratio === 0 : ratio > 0.02))).toBe(
              true,
            );
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

  it('are left out for weights that rest off the device', async () => {
    const strategy = STRATEGIES.find(({ name }) => name === 'offload')!;
    const backend = createReferenceBackend();
    await onRanks(
      1,
      async (rank) => {
        const { device, group } = rank;
        const wrapped = strategy.wrap(net(device), rank);
        const optimizer = new AdamW(wrapped.model.parameters());
        const updates = new LayerUpdates({ device, group, module: wrapped.model, optimizer });
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
