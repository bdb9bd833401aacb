// Parameters may be written to while they are gathered, outside summonFullParams. The writes are
// taken over into the shards, or the next use is an error. None is lost.

import { type FsdpOptions, FsdpStateError, type FullyShardedDataParallel } from '@shardweave/fsdp';
import { localStateDict } from '@shardweave/fsdp/fairscale';
import { gradNorm, type Module, Sgd, saveCheckpoint, stateDict } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  expectClose,
  inputs,
  layer,
  onRanks,
  type Rank,
  rejectionOf,
  rowsOf,
  Stack,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { place } from './support/saved-models.js';
import { wrapIn } from './support/sharding.js';

const KEPT = { reshardAfterForward: false };

function made({ device, group }: Rank, options: Partial<FsdpOptions> = KEPT) {
  const wrap = wrapIn({ group }, options);
  return wrap(new Stack(device, [wrap(layer(device), 'inner'), layer(device)]), 'root');
}

async function evaluate(model: Module): Promise<void> {
  const { device } = model;
  await device.noGrad(() =>
    device.scope(async () => void (await model.call(inputs(device, { first: 0, count: 1 })))),
  );
}

/** Halves a parameter's values by a write. */
async function halve(parameter: Tensor): Promise<void> {
  const { device, dtype } = parameter;
  const values = (await parameter.toArray()) as Float32Array;
  device.noGrad(() =>
    device.scope(() => {
      const half = device.tensor(
        values.map((value) => value / 2),
        parameter.shape,
        { dtype },
      );
      device.copyInto(parameter, half);
    }),
  );
}

describe.each([1, 2, 3])('world size %i', (worldSize) => {
  it('what is written between an evaluation and a step is trained on', async () => {
    const trained = async (ranks: number) => {
      const [weights] = await onRanks(ranks, async (rank) => {
        const model = made(rank);
        const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
        const rows = { first: (rank.rank * 6) / ranks, count: 6 / ranks };
        for (let step = 0; step < 2; step++) {
          await evaluate(model);
          for (const parameter of model.parameters()) {
            await halve(parameter);
          }
          await trainOnce(model, rows, step);
          await optimizer.step();
          optimizer.zeroGrad();
        }
        return weightsOf(model);
      });
      return weights!;
    };
    const expected = await trained(1);
    expectClose(await trained(worldSize), expected);
  });

  it('what is written is in every save', async () => {
    const saves: Record<string, (model: FullyShardedDataParallel) => Promise<unknown>> = {
      stateDict: (model) => stateDict(model),
      localStateDict: (model) => localStateDict(model),
      saveCheckpoint: (model) => saveCheckpoint(model, place()),
    };
    for (const save of Object.values(saves)) {
      await onRanks(worldSize, async (rank) => {
        const model = made(rank);
        const before = await weightsOf(model);
        await evaluate(model);
        for (const parameter of model.parameters()) {
          await halve(parameter);
        }
        await save(model);
        for (const [name, values] of await weightsOf(model)) {
          expect(values, name).toEqual(before.get(name)!.map((value) => value / 2));
        }
      });
    }
  });

  it('what is written in forward is kept, resharding or not', async () => {
    for (const options of [{}, KEPT, { disableReshardOnRoot: false }]) {
      await onRanks(worldSize, async (rank) => {
        const model = made(rank, options);
        const before = await weightsOf(model);
        const [inner] = [...model.module.children().values()] as FullyShardedDataParallel[];
        const stop = inner!.module.aroundForward({
          before: async () => {
            for (const parameter of inner!.parameters()) {
              await halve(parameter);
            }
          },
        });
        await trainOnce(model, rowsOf(rank));
        stop();
        const after = await weightsOf(model);
        for (const name of ['0.weight', '0.bias']) {
          expect(after.get(name)).toEqual(before.get(name)!.map((value) => value / 2));
        }
        expect(after.get('1.weight')).toEqual(before.get('1.weight'));
      });
    }
  });

  it.each([
    ['a forward', (model: Module) => evaluate(model)],
    ['stateDict', (model: FullyShardedDataParallel) => stateDict(model)],
    ['gradNorm', (model: FullyShardedDataParallel) => gradNorm(model)],
  ])('nothing is kept of a 16-bit copy of f32 masters: %s says so', (_, use) =>
    onRanks(worldSize, async (rank) => {
      const model = made(rank, { ...KEPT, mixedPrecision: true, computeDType: 'bf16' });
      const before = await weightsOf(model);
      await evaluate(model);
      await halve(model.parameters()[0]!);
      const error = await rejectionOf(use(model as never));
      expect(error).toBeInstanceOf(FsdpStateError);
      expect((error as Error).message).toMatch(/'inner' .*bf16 copy .*summonFullParams/);
      expect(await weightsOf(model)).toEqual(before); // The model goes on.
      await evaluate(model);
    }),
  );
});

it('what is written before a step of the optimizer, and used after it, is an error', () =>
  onRanks(2, async (rank) => {
    const model = made(rank);
    const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
    await trainOnce(model, rowsOf(rank));
    await evaluate(model);
    await halve(model.parameters()[0]!);
    await optimizer.step();
    await expect(evaluate(model)).rejects.toThrow(/copy that a step or load has passed/);
    await evaluate(model);
  }));

it(
  'a rank that writes alone is named where the others do not gather',
  {
    timeout: 8000,
  },
  () =>
    onRanks(2, async (rank) => {
      const model = made(rank);
      await evaluate(model);
      if (rank.rank === 0) {
        await halve(model.parameters()[0]!);
      }
      await expect(trainOnce(model, rowsOf(rank))).rejects.toMatchObject({
        code: 'FSDP_RANKS_DIFFER',
      });
    }),
);
