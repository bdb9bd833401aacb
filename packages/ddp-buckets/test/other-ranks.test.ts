// A job that goes on with other ranks: replicas come out of one wrapper and into another one, and
// whoever is new copies weights and optimizer state.

import { DdpConfigError, type DistributedDataParallel } from '@shardweave/ddp-buckets';
import { AdamW } from '@shardweave/nn';
import { expect, it, vi } from 'vitest';
import { groupCall, type Rank } from '../../../tooling/test-kit/index.ts';
import { Bag, onBags, onRanks, pull, tinyGpt2, weightsOf, wrap } from './support/ranks.js';

const GROUPED = { gradientAverage: false, gradientGroups: 4 };

/** Steps `first` to `end`, in groups of rows. */
async function train(
  model: DistributedDataParallel,
  optimizer: AdamW,
  [first, end]: readonly [number, number],
): Promise<void> {
  for (let step = first; step < end; step++) {
    for (const group of model.groupCalls) {
      await groupCall(model, model.device, { step, group });
    }
    await optimizer.step();
    optimizer.zeroGrad();
  }
}

async function trainOn(rank: Rank, steps: number) {
  const model = wrap(tinyGpt2(rank.device), rank, GROUPED);
  const optimizer = new AdamW(model.parameters(), { lr: 0.01 });
  await train(model, optimizer, [0, steps]);
  return weightsOf(model);
}

it('two ranks that take in a third one train on as if nothing had happened', async () => {
  const [undisturbed] = await onRanks(1, (rank) => trainOn(rank, 4));
  const found = await onRanks(3, async (rank) => {
    const isNew = rank.rank === 2;
    const group = await rank.group.split(Number(isNew));
    const gpt2 = tinyGpt2(rank.device);
    const optimizer = new AdamW(gpt2.parameters(), { lr: isNew ? 7 : 0.01 });
    const before = wrap(gpt2, { group }, GROUPED);
    await train(before, optimizer, isNew ? [7, 8] : [0, 2]);
    expect(before.unwrap()).toBe(gpt2);
    const write = vi.spyOn(optimizer, 'writeFlatState');
    const model = wrap(gpt2, rank, { ...GROUPED, initSync: false });
    await model.syncParameters();
    await model.syncOptimizers({ optimizers: [optimizer] });
    await train(model, optimizer, [2, 4]);
    return { weights: await weightsOf(model), wrote: write.mock.calls.length > 0 };
  });
  for (const [rank, { weights, wrote }] of found.entries()) {
    expect(weights).toEqual(undisturbed);
    expect(wrote, 'whoever has the state keeps it, should the others be lost').toBe(rank === 2);
  }
});

it('unwrap frees gradients and sums of groups, and leaves nothing else', async () => {
  await onRanks(2, async (rank) => {
    const gpt2 = tinyGpt2(rank.device);
    const atRest = rank.device.memory().live.total;
    const model = wrap(gpt2, rank, GROUPED);
    await groupCall(model, rank.device, { step: 0, group: model.groupCalls[0] });
    await groupCall(model, rank.device, { step: 0, group: model.groupCalls[1] });
    expect(rank.device.memory().live.gradient).toBeGreaterThan(0);
    model.unwrap();
    expect(rank.device.memory().live.total).toBe(atRest);
    expect(gpt2.parameters().every(({ gradSink }) => gradSink === undefined)).toBe(true);
  });
});

it('each rank keeps the values that it has without initSync', async () => {
  await onRanks(2, async (rank) => {
    const bag = new Bag(rank.device, { a: 1 });
    bag.get('a').storage.write(new Uint8Array(Float32Array.of(rank.rank).buffer), 0);
    const model = wrap(bag, rank, { initSync: false });
    await model.initialize();
    expect(await bag.get('a').item()).toBe(rank.rank);
    await model.syncParameters({ root: 1 });
    expect(await bag.get('a').item()).toBe(1);
  });
});

it('syncOptimizers asks for the optimizers of all that is trained', async () => {
  await onBags(2, { a: 1, b: 1 }, {}, async ({ bag, model }) => {
    await pull(model, 1);
    const optimizers = [new AdamW([bag.get('a')], { lr: 1 })];
    const refused = await model.syncOptimizers({ optimizers }).catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(DdpConfigError);
    expect((refused as Error).message).toContain('ddp.syncOptimizers: expected optimizers for all');
    expect((refused as Error).message).toContain('got none for b');
  });
});
