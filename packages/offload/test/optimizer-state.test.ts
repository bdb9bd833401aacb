// The optimizer's state is saved and loaded where it rests in a store, also before the first call.

import { type AdamW, loadStateDict, type OptimizerStateDict, stateDict } from '@shardweave/nn';
import type { OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { describe, expect, it } from 'vitest';
import { begin, losses, type Run, trainStep } from './support/training.js';

const adamW = ({ optimizer }: Run) => optimizer as AdamW;
const named = ({ model }: Run) => model.namedParameters();

/** Runs two steps, and returns the run and its states. */
async function trained(store = createHostStore()) {
  const run = begin({ offload: { store, numSlices: 3 } });
  await losses(run, 2);
  const model = await stateDict(run.model as OffloadModel);
  const optimizer = await adamW(run).stateDict(named(run));
  return { run, store, model, optimizer };
}

function sorted({ state }: OptimizerStateDict<object>) {
  return [...state].sort(([a], [b]) => (a < b ? -1 : 1));
}

describe('a model before its first call', () => {
  it('an optimizer takes a state over, and training goes on from it', async () => {
    const { run, model, optimizer } = await trained();
    const expected = [await trainStep(run, 2), await trainStep(run, 3)];
    const other = begin({ offload: { numSlices: 5 } });
    await adamW(other).loadStateDict(optimizer, named(other));
    await loadStateDict(other.model as OffloadModel, model);
    expect([await trainStep(other, 2), await trainStep(other, 3)]).toEqual(expected);
  });

  it('has the state that its store has', async () => {
    const { run, store, optimizer } = await trained();
    run.model.dispose();
    const resumed = begin({ offload: { store, resume: true } });
    const found = await adamW(resumed).stateDict(named(resumed));
    expect(found.state.size).toBeGreaterThan(0);
    expect(sorted(found)).toEqual(sorted(optimizer));
  });

  it('a store without values to resume from refuses it, each time', async () => {
    const { optimizer } = await trained();
    const run = begin({ offload: { resume: true } });
    for (let i = 0; i < 2; i++) {
      const loading = adamW(run).loadStateDict(optimizer, named(run));
      await expect(loading).rejects.toThrow(/^resume: expected/);
    }
  });
});

it('neither taking a state over nor reading one goes on beside a step', async () => {
  const { run, optimizer } = await trained();
  const { device, model } = run;
  await device.scope(async () => {
    const ids = device.tensor(new Int32Array(8), [1, 8]);
    await ((await model.call(ids)) as import('@shardweave/tensor-core').Tensor).backward({
      gradient: device.zeros([1, 8, 37]),
    });
  });
  const stepping = run.optimizer.step();
  await expect(adamW(run).stateDict(named(run))).rejects.toThrow(/optimizer.step under way/);
  await expect(adamW(run).loadStateDict(optimizer, named(run))).rejects.toThrow(
    /optimizer.step under way/,
  );
  await stepping;
  expect((await adamW(run).stateDict(named(run))).state.size).toBe(optimizer.state.size);
});

it('a state without entries starts afresh, as it does without offload', async () => {
  const run = async (offload: object | undefined) => {
    const run = begin(offload === undefined ? {} : { offload });
    const empty = await adamW(run).stateDict(named(run));
    expect(empty.state.size).toBe(0);
    const found = await losses(run, 3);
    await adamW(run).loadStateDict(empty, named(run));
    return [...found, ...(await losses(run, 3))];
  };
  expect(await run({ numSlices: 3 })).toEqual(await run(undefined));
});
