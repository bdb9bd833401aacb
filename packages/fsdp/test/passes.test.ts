// These tests mix several forwards and backwards, evaluate, and check the states of instances
// meanwhile.

import {
  type FsdpOptions,
  FsdpStateError,
  type FullyShardedDataParallel,
  type TrainingState,
} from '@shardweave/fsdp';
import { loadLocalStateDict, localStateDict } from '@shardweave/fsdp/fairscale';
import { castInPlace, checkpoint, Dropout, gradNorm, Module } from '@shardweave/nn';
import { cast, type Device, isFloat, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  freeze,
  inputs,
  layer,
  lossOf,
  moduleOf,
  onRanks,
  type Rank,
  rowsOf,
  Stack,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { expectIdle, wrapIn } from './support/sharding.js';

function twoUnits(rank: Rank, options: Partial<FsdpOptions> = {}) {
  const { device } = rank;
  const wrap = wrapIn(rank, options);
  const inner = wrap(layer(device), 'inner');
  const model = wrap(new Stack(device, [layer(device), inner]), 'root');
  return { model, inner };
}

/** Returns the shard gradients of all units. */
async function gradients(model: FullyShardedDataParallel): Promise<number[][]> {
  const flats = model.instances().flatMap(({ units }) => units.map(({ flat }) => flat));
  return Promise.all(flats.map(async ({ grad }) => Array.from(await grad!.toArray(), Number)));
}

describe.each([
  {},
  { reshardAfterForward: false },
  { flattenParameters: false, bucketCapMb: 0 },
  { computeDType: 'f16' }, // Parameters are f16 too, so this is pure 16 bits.
] as const)('with %j', (fsdp) => {
  it('three forwards, then their backwards, the first two without reduction', () =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const make = () => {
        const wrap = wrapIn(rank, fsdp);
        const bare = new Stack(device, [layer(device), layer(device)]);
        const isHalf = 'computeDType' in fsdp;
        if (isHalf) {
          for (const tensor of bare.parameters()) {
            castInPlace(tensor, 'f16');
          }
        }
        bare.replaceChild('1', wrap(bare.children().get('1')!, 'inner'));
        const model = wrap(bare, 'root');
        const lossAt = async (step: number) => {
          const x = inputs(device, rowsOf(rank), step);
          return lossOf(await model.call(isHalf ? cast(x, 'f16') : x));
        };
        return { model, lossAt };
      };
      const mixed = make();
      await device.scope(async () => {
        const losses = [await mixed.lossAt(0), await mixed.lossAt(1), await mixed.lossAt(2)];
        await mixed.model.noSync(async () => {
          await losses[0]!.backward();
          await losses[1]!.backward();
        });
        await losses[2]!.backward();
      });
      expectIdle(mixed.model);
      expect(device.memory().live).toMatchObject({ gathered: 0, staging: 0, activation: 0 });
      const summed = await gradients(mixed.model);
      mixed.model.zeroGrad();
      for (const step of [0, 1, 2]) {
        await device.scope(async () => (await mixed.lossAt(step)).backward());
      }
      const apart = await gradients(mixed.model);
      const tolerance = 'computeDType' in fsdp ? 2e-3 : 1e-6; // The limits are for values below 1.
      summed.forEach((values, unit) => {
        values.forEach((value, i) => {
          expect(Math.abs(value - apart[unit]![i]!)).toBeLessThan(tolerance);
        });
      });
      // Rank 0's shards hold values in every layout.
      const largest = Math.max(...summed.flat().map(Math.abs));
      if (rank.rank === 0) {
        expect(largest).toBeGreaterThan(0.01);
      }
    }));
});

describe.each(
  [true, false].flatMap((reshardAfterForward) =>
    [true, false].flatMap((mixedPrecision) =>
      [true, false].map((flattenParameters) => ({
        reshardAfterForward,
        mixedPrecision,
        flattenParameters,
      })),
    ),
  ),
)('with %j', (fsdp) => {
  it('an evaluation gives the same with and without noGrad, and keeps nothing', () =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const wrap = wrapIn(rank, fsdp);
      const part = new Stack(device, [layer(device), new Dropout(device, { p: 0.5 })]);
      const model = wrap(new Stack(device, [wrap(part, 'inner'), layer(device)]), 'root');
      model.eval();
      const run = () =>
        device.scope(async () => (await model.call(inputs(device, rowsOf(rank)))).toArray());
      const recorded = await run();
      const bare = await device.noGrad(run);
      expect(bare).toEqual(recorded);
      expect(await run()).toEqual(recorded);
      expectIdle(model);
      expect(device.memory().live).toMatchObject({ activation: 0, staging: 0 });
    }));
});

describe('the ranks that reduce', () => {
  it('are as many as those that gather, in a sequence of their own unless told otherwise', () =>
    onRanks(3, async (rank) => {
      const { group } = rank;
      const own = await group.split(0);
      for (const [choice, isOwn] of [
        [undefined, true],
        ['reduceScatter', true],
        ['default', false],
        [own, true],
      ] as const) {
        const options = choice === undefined ? {} : { processGroupReduceScatter: choice };
        const { model } = twoUnits(rank, options);
        await model.initialize();
        for (const { units } of model.instances()) {
          const { reduceGroup } = units[0]!.links!;
          expect(reduceGroup.worldSize).toBe(group.worldSize);
          expect(reduceGroup !== group).toBe(isOwn);
        }
      }
    }));
});

describe('what an instance hooks onto its output', () => {
  /** Counts the hooks set and run on a device since the last look. */
  function watched(device: Device) {
    const count = { set: 0, run: 0 };
    const { beforeGradientOf } = device;
    device.beforeGradientOf = (outputs, hook) => {
      count.set += 1;
      return beforeGradientOf.call(device, outputs, async (pass) => {
        count.run += 1;
        await hook(pass);
      });
    };
    return () => {
      const { set, run } = count;
      Object.assign(count, { set: 0, run: 0 });
      return { set, run };
    };
  }

  it('is one hook a forward, which every backward through it runs once', () =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const { model } = twoUnits(rank);
      const look = watched(device);
      const forward = async () =>
        lossOf((await model.call(inputs(device, rowsOf(rank)))) as Tensor);
      for (let round = 0; round < 2; round++) {
        await device.scope(async () => {
          const loss = await forward();
          // The hooks are the root's and the inner instance's.
          expect(look()).toEqual({ set: 2, run: 0 });
          await loss.backward({ retainGraph: true });
          expect(look()).toEqual({ set: 0, run: 2 });
          await loss.backward();
          expect(look()).toEqual({ set: 0, run: 2 });
        });
        await device.noGrad(() => device.scope(async () => void (await forward())));
        expect(look()).toEqual({ set: 0, run: 0 });
        // The counts stay the same after local shards were saved and loaded.
        await loadLocalStateDict(model, await localStateDict(model));
      }
    }));
});

describe('with a checkpoint inside or around', () => {
  it.each(['inside', 'around'])(
    'a checkpoint %s: between phases there are shards alone: train, eval, train',
    (place) =>
      onRanks(2, async (rank) => {
        const { device } = rank;
        const wrap = wrapIn(rank);
        const part = () => new Stack(device, [layer(device)]);
        const unit = place === 'inside' ? wrap(checkpoint(part()), 'unit') : undefined;
        const inner = unit ?? checkpoint(wrap(part(), 'unit'));
        const model = wrap(new Stack(device, [layer(device), inner]), 'root');
        const full = ({ units }: FullyShardedDataParallel) => units[0]!.full.storage.isFilled;
        const shardBytes = () =>
          model
            .instances()
            .flatMap(({ units }) => units.map(({ layout }) => 4 * layout.shardLength))
            .reduce((sum, bytes) => sum + bytes);
        const expectShards = (kept: readonly boolean[]) => {
          expect(model.instances().map(full)).toEqual(kept);
          const { parameter, gathered } = device.memory().live;
          expect(parameter).toBe(shardBytes());
          expect(gathered).toBe(kept[0] ? 2 * 4 * model.units[0]!.layout.shardLength : 0);
        };
        await trainOnce(model, rowsOf(rank));
        expectShards([false, false]);
        model.eval();
        await device.noGrad(() =>
          device.scope(async () => void (await model.call(inputs(device, rowsOf(rank))))),
        );
        expectShards([true, false]); // The root stays gathered for the next forward.
        model.train();
        await trainOnce(model, rowsOf(rank));
        expectShards([false, false]);
      }),
  );
});

describe('states', () => {
  /** This module notes the states of instances whenever it runs, and throws if it is told to. */
  class Watching extends Module<[x: Tensor], Tensor> {
    readonly seen: TrainingState[][] = [];
    watched: readonly FullyShardedDataParallel[] = [];
    isFailing = false;
    constructor(device: Device, part: Module) {
      super(device);
      this.child('part', part);
    }
    note(): void {
      this.seen.push(this.watched.map(({ trainingState }) => trainingState));
    }
    async forward(x: Tensor): Promise<Tensor> {
      this.note();
      if (this.isFailing) {
        throw new Error('as told');
      }
      const y = (await this.children().get('part')!.call(x)) as Tensor;
      // This runs after the instance's own hook.
      this.device.beforeGradientOf(y, () => this.note());
      return tanh(y);
    }
  }

  function watched(rank: Rank, isCheckpointing = false) {
    const { device } = rank;
    const wrap = wrapIn(rank);
    const watching = new Watching(device, layer(device));
    const inner = wrap(isCheckpointing ? checkpoint(watching) : watching, 'inner');
    const below = wrap(layer(device), 'below');
    const model = wrap(new Stack(device, [below, inner, layer(device)]), 'root');
    watching.watched = [model, inner, below];
    return { model, inner, below, watching };
  }

  it('idle, forward, idle, backwardPre, backwardPost, idle', () =>
    onRanks(2, async (rank) => {
      const { model, inner, below, watching } = watched(rank);
      const states = () => watching.watched.map(({ trainingState }) => trainingState);
      const atEnds: TrainingState[][] = [];
      rank.device.autograd.onGradientFinal(inner.parameters()[0]!, () => {
        atEnds.push(states());
      });
      expect(states()).toEqual(['idle', 'idle', 'idle']);
      await rank.device.scope(async () => {
        const loss = lossOf(await model.call(inputs(rank.device, rowsOf(rank))));
        expect(states()).toEqual(['idle', 'idle', 'idle']);
        await loss.backward();
      });
      expect(watching.seen).toEqual([
        ['forward', 'forward', 'idle'],
        // The root's own layer is above: its gradients have come, and the inner instance's have
        // not.
        ['backwardPost', 'backwardPre', 'idle'],
      ]);
      expect(atEnds).toEqual([['backwardPost', 'backwardPost', 'idle']]);
      expect(states()).toEqual(['idle', 'idle', 'idle']);
      expect(below.units[0]!.flat.grad).toBeDefined();
    }));

  it('the states of a second run are forward again, and back to backwardPre', async () => {
    await onRanks(2, async (rank) => {
      const { model, watching } = watched(rank, true);
      await trainOnce(model, rowsOf(rank));
      expect(watching.seen).toEqual([
        ['forward', 'forward', 'idle'],
        // A checkpoint inside the module runs again as part of backward.
        ['backwardPost', 'backwardPre', 'idle'],
        ['backwardPost', 'backwardPre', 'idle'],
      ]);
    });
    await onRanks(2, async (rank) => {
      const { device } = rank;
      const wrap = wrapIn(rank);
      const watching = new Watching(device, layer(device));
      const inner = wrap(watching, 'inner');
      const model = wrap(new Stack(device, [checkpoint(inner), layer(device)]), 'root');
      watching.watched = [model, inner];
      await trainOnce(model, rowsOf(rank));
      expect(watching.seen).toEqual([
        ['forward', 'forward'],
        // A checkpoint around the module runs its forward again.
        ['backwardPost', 'forward'],
        ['backwardPost', 'backwardPre'],
      ]);
      expectIdle(model);
    });
  });

  it('a second run after gradients have come ends in backwardPre', () =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const wrap = wrapIn(rank);
      const inner = wrap(layer(device), 'inner');
      const around = checkpoint(inner);
      const twice = moduleOf(device, {}, async (_, x: Tensor) =>
        around.call(tanh(await around.call(x))),
      );
      const model = wrap(new Stack(device, [layer(device), around, twice]), 'root');
      const seen: TrainingState[] = [];
      inner.aroundForward({ afterScope: () => void seen.push(inner.trainingState) });
      await trainOnce(model, rowsOf(rank));
      expect(seen).toEqual(['idle', 'idle', 'idle', 'idle', 'backwardPre', 'backwardPre']);
      model.assertState('idle');
    }));

  it('a root without parameters and frozen children end idle', () =>
    onRanks(2, async (rank) => {
      const { device } = rank;
      const wrap = wrapIn(rank);
      const frozen = layer(device);
      freeze(frozen);
      const children = [wrap(layer(device), 'trained'), wrap(frozen, 'frozen')] as const;
      const model = wrap(new Stack(device, children), 'root');
      const seen: TrainingState[] = [];
      rank.device.autograd.onGradientFinal(children[0].parameters()[0]!, () => {
        seen.push(...model.instances().map(({ trainingState }) => trainingState));
      });
      await trainOnce(model, rowsOf(rank));
      expect(seen).toEqual(['backwardPre', 'backwardPost', 'backwardPre']);
      expectIdle(model);
    }));

  it.each(['forward', 'backward'])(
    'an error thrown in %s comes through, and the next step is as if it had not been',
    (where) =>
      onRanks(2, async (rank) => {
        const { device } = rank;
        const { model, watching } = watched(rank, true);
        await trainOnce(model, rowsOf(rank));
        const norm = await gradNorm(model);
        model.zeroGrad();
        const atRest = device.memory().live;
        await expect(
          device.scope(async () => {
            watching.isFailing = where === 'forward';
            const loss = lossOf(await model.call(inputs(device, rowsOf(rank))));
            watching.isFailing = true; // The second run fails.
            await loss.backward();
          }),
        ).rejects.toThrow('as told');
        expectIdle(model);
        expect(device.memory().live).toEqual(atRest);
        watching.isFailing = false;
        await trainOnce(model, rowsOf(rank));
        expect(await gradNorm(model)).toBe(norm);
      }),
  );

  it('assertState names rank, operation, instance and state', () =>
    onRanks(2, async (rank) => {
      const { inner } = watched(rank);
      expect(() => inner.assertState('forward', 'backwardPre')).toThrow(FsdpStateError);
      expect(() => inner.assertState('forward', 'backwardPre')).toThrow(
        `rank ${rank.rank}/2 assertState: expected state forward or backwardPre, got inner instance 'inner' in state idle`,
      );
      inner.assertState('idle', 'forward');
    }));
});

it('a gradient zeroed in place counts like no gradient', () =>
  onRanks(2, async (rank) => {
    const { model } = twoUnits(rank);
    await trainOnce(model, rowsOf(rank), 1);
    const once = await gradients(model);
    await trainOnce(model, rowsOf(rank), 0);
    for (const { units } of model.instances()) {
      for (const { flat } of units) {
        const { grad } = flat;
        expect(isFloat(grad!.dtype)).toBe(true);
        rank.device.backend.run('fill', { out: grad!.view(), value: 0 });
      }
    }
    await trainOnce(model, rowsOf(rank), 1);
    expect(await gradients(model)).toEqual(once);
  }));
