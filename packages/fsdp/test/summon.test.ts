// Parameters are whole for the duration of a callback.

import type { FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { summonFullParams } from '@shardweave/fsdp/fairscale';
import { Linear, type Module, stateDict } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import {
  DIM,
  forwardBackward,
  inputs,
  lossOf,
  onRanks,
  type Rank,
  rowsOf,
  Stack,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { shardedGpt2, wrapIn } from './support/sharding.js';

/** Returns two layers, of which the second is an instance of its own. */
function sharded({ device, group }: Rank, options: Partial<FsdpOptions> = {}) {
  const wrap = wrapIn({ group }, options);
  const linear = (inFeatures: number, outFeatures: number) =>
    new Linear(device, { inFeatures, outFeatures });
  return wrap(new Stack(device, [linear(DIM, 31), wrap(linear(31, 17), 'inner')]), 'outer');
}

function inner(model: FullyShardedDataParallel): FullyShardedDataParallel {
  return model.instances()[1]!;
}

function fill(model: FullyShardedDataParallel, value: number): void {
  for (const parameter of model.parameters()) {
    model.device.backend.run('fill', { out: parameter.view(), value });
  }
}

describe('summonFullParams', () => {
  it("keeps of each rank's writes its own shard: a patchwork", () =>
    onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank);
      await summonFullParams(model, () => {
        for (const parameter of model.parameters()) {
          rank.device.backend.run('fill', { out: parameter.view(), value: rank.rank + 1 });
        }
      });
      const [, { data }] = [...(await stateDict(model))][0]!;
      const values = new Float32Array(data.slice().buffer);
      expect(values[0]).toBe(1);
      expect(new Set(values)).toEqual(new Set([1])); // wte lies in rank 0's half of the root.
      const last = [...(await stateDict(model)).values()].at(-1)!;
      expect(new Set(new Float32Array(last.data.slice().buffer))).toEqual(new Set([2]));
    }));

  it('drops writes when volatile, restores memory, and restores when the body throws', () =>
    onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank);
      const before = await stateDict(model);
      const bytes = rank.device.memory().live;
      await summonFullParams(
        model,
        () => {
          const [parameter] = model.parameters();
          rank.device.backend.run('fill', { out: parameter!.view(), value: 9 });
        },
        { volatile: true },
      );
      await expect(
        summonFullParams(model, () => {
          throw new Error('body');
        }),
      ).rejects.toThrow('body');
      expect(rank.device.memory().live).toEqual(bytes);
      expect(await stateDict(model)).toEqual(before);
      await forwardBackward(rank.device, model, 0, { batch: 2, first: rank.rank, count: 1 });
    }));

  it('a write inside is seen by a graph that saved the parameter, and by no other', () =>
    onRanks(2, async (rank) => {
      const model = sharded(rank);
      const x = inputs(rank.device, rowsOf(rank));
      await rank.device.scope(async () => {
        const loss = lossOf(await model.call(x));
        await summonFullParams(model, () => {
          const [weight] = inner(model).parameters();
          rank.device.addInPlace(weight!, rank.device.full(weight!.shape, 1));
        });
        await expect(loss.backward()).rejects.toThrow('a write inside summonFullParams');
        await lossOf(await model.call(x)).backward();
      });
    }));

  it('refuses to nest', () =>
    onRanks(2, async (rank) => {
      const { model } = shardedGpt2(rank);
      await expect(
        summonFullParams(model, () => summonFullParams(model, () => undefined)),
      ).rejects.toMatchObject({ code: 'FSDP_STATE' });
    }));

  it.each([
    [true, true],
    [true, false],
    [false, true],
    [false, false],
  ])(
    'memory is that before it, volatile %s, flattened %s, with a state dict inside',
    (isVolatile, flattenParameters) =>
      onRanks(2, async (rank) => {
        const model = sharded(rank, { flattenParameters });
        await trainOnce(model, { first: 6 * rank.rank, count: 6 });
        const { live } = rank.device.memory();
        const expected = await stateDict(model);
        const inside = await summonFullParams(
          model,
          async () => {
            const whole = model.units.concat(inner(model).units);
            const bytes = whole.reduce((sum, { full }) => sum + 4 * full.storage.elementCount, 0);
            expect(rank.device.memory().live).toEqual({
              ...live,
              gathered: bytes,
              total: live.total + bytes,
            });
            return stateDict(model);
          },
          { volatile: isVolatile },
        );
        expect(inside).toEqual(expected);
        expect(rank.device.memory().live).toEqual(live);
        expect(await stateDict(model)).toEqual(expected);
      }),
  );

  it('summonFullParams without recurse leaves inner instances alone', () =>
    onRanks(2, async (rank) => {
      const model = sharded(rank);
      await summonFullParams(
        model,
        async () => {
          expect(model.trainingState).toBe('summonFullParams');
          expect(inner(model).trainingState).toBe('idle');
          const [weight, , innerWeight] = model.parameters();
          expect(await weight!.toArray()).toHaveLength(DIM * 31);
          await expect(innerWeight!.toArray()).rejects.toThrow('summonFullParams');
        },
        { recurse: false },
      );
      expect(model.trainingState).toBe('idle');
    }));

  it('what is written is used at once, also where full parameters were kept or published', () =>
    onRanks(2, async (rank) => {
      const model = sharded(rank, { reshardAfterForward: false });
      const rows = { first: 6 * rank.rank, count: 6 };
      const output = () =>
        rank.device.noGrad(() =>
          rank.device.scope(async () => [
            ...(await (await model.call(inputs(rank.device, rows))).toArray()),
          ]),
        );
      const before = await output();
      expect(inner(model).units[0]!.full.isPresent).toBe(true);
      await summonFullParams(model, () => fill(model, 0));
      expect(new Set(await output())).toEqual(new Set([0]));
      await summonFullParams(model, () => fill(model, 3), { volatile: true });
      expect(new Set(await output())).toEqual(new Set([0]));
      expect(before).not.toContain(0);
    }));

  it('refuses a forward and a backward inside, and trains on after it', () =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const model = sharded(rank);
      const rows = { first: 6 * rank.rank, count: 6 };
      const before = await stateDict(model);
      await device.scope(async () => {
        const loss = lossOf(await model.call(inputs(device, rows)));
        await summonFullParams(model, async () => {
          await expect(model.call(inputs(device, rows))).rejects.toMatchObject({
            code: 'FSDP_STATE',
          });
          await expect(loss.backward()).rejects.toMatchObject({ code: 'FSDP_STATE' });
          // A refused backward resets the tree, but not the summoned parameters.
          await expect(model.call(inputs(device, rows))).rejects.toMatchObject({
            code: 'FSDP_STATE',
          });
          expect(await model.parameters()[0]!.toArray()).toHaveLength(DIM * 31);
        });
      });
      expect(await stateDict(model)).toEqual(before);
      expect(model.trainingState).toBe('idle');
      await trainOnce(model, rows);
    }));

  it('releases what it has summoned where a later unit cannot be gathered', () =>
    onRanks(2, async (rank) => {
      const model = sharded(rank);
      const before = await stateDict(model);
      const { live } = rank.device.memory();
      const [unit] = inner(model).units;
      const gather = unit!.gatherMaster;
      unit!.gatherMaster = async () => {
        throw new Error('no memory');
      };
      await expect(summonFullParams(model, () => undefined)).rejects.toThrow('no memory');
      unit!.gatherMaster = gather;
      expect(rank.device.memory().live).toEqual(live);
      expect(await stateDict(model)).toEqual(before);
    }));
});

describe('names under summonFullParams', () => {
  it.each([true, false])(
    'are those of the bare module, flattened %s, in and out of summon',
    (flattenParameters) =>
      onRanks(2, async (rank) => {
        const bare = new Stack(rank.device, [
          new Linear(rank.device, { inFeatures: DIM, outFeatures: 31 }),
          new Linear(rank.device, { inFeatures: 31, outFeatures: 17 }),
        ]);
        const list = (module: Module) =>
          module.namedParameters().map(([name, { shape }]) => [name, shape]);
        const model = sharded(rank, { flattenParameters });
        expect(list(model)).toEqual(list(bare));
        await trainOnce(model, { first: 6 * rank.rank, count: 6 });
        expect(list(model)).toEqual(list(bare));
        await summonFullParams(model, () => {
          expect(list(model)).toEqual(list(bare));
          for (const tensor of model.parameters()) {
            expect(tensor.view().size).toBe(tensor.size);
          }
        });
        // Flat parameters have names of their own.
        expect(model.units.map(({ flat }) => flat.name)).toEqual(
          flattenParameters ? ['outer.flat'] : ['outer.0.weight.flat', 'outer.0.bias.flat'],
        );
      }),
  );
});
