// If ranks use different parameters in a step, an error on every rank names them, or with
// findUnusedParameters the others count as zeros.

import type { ProcessGroup } from '@shardweave/collectives';
import {
  type FsdpOptions,
  type FsdpRanksDifferError,
  type FullyShardedDataParallel,
  setGradientDivideFactors,
} from '@shardweave/fsdp';
import { Module, Sgd } from '@shardweave/nn';
import { add, Device, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  expectAsAlone,
  expectClose,
  freeze,
  inputs,
  layer,
  lossOf,
  onRanks,
  type Rank,
  type Rows,
  rejectionOf,
  rowsOf,
  Stack,
  trainAlone,
  training,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { expectIdle, wrapIn } from './support/sharding.js';

/**
 * This module runs all its layers side by side in forward, and only the chosen ones are in the
 * result.
 */
class Choosing extends Module<[x: Tensor], Tensor> {
  chosen: readonly number[] = [0, 1, 2];
  /** Layers that don't run at all. */
  skipped: readonly number[] = [];

  constructor(device: Device, layers: readonly Module[]) {
    super(device);
    layers.forEach((part, i) => {
      this.child(String(i), part);
    });
  }

  async forward(x: Tensor): Promise<Tensor> {
    let sum = x;
    for (const [name, part] of this.children()) {
      if (this.skipped.includes(Number(name))) {
        continue;
      }
      const y = tanh((await part.call(x)) as Tensor);
      sum = add(sum, this.chosen.includes(Number(name)) ? y : y.detach());
    }
    return sum;
  }
}

interface Wrapped {
  readonly inner: Choosing;
  readonly model: FullyShardedDataParallel;
}

/** Returns three layers, each a unit of its own unless `isOne`. */
function wrapped(
  { device, group }: Rank,
  { isOne = false, ...options }: Partial<FsdpOptions> & { isOne?: boolean } = {},
): Wrapped {
  const wrap = wrapIn({ group }, options);
  const layers = [0, 1, 2].map((i) => (isOne ? layer(device) : wrap(layer(device), `layer ${i}`)));
  const inner = new Choosing(device, layers);
  return { inner, model: wrap(inner, 'root') };
}

async function trainStep(model: Module, rows: Rows, step = 0): Promise<number> {
  const { device } = model;
  return device.scope(async () => {
    const loss = lossOf((await model.call(inputs(device, rows, step))) as Tensor);
    await loss.backward();
    return loss.item();
  });
}

async function failure(running: Promise<unknown>): Promise<FsdpRanksDifferError> {
  return rejectionOf<FsdpRanksDifferError>(running);
}

/** Options that end a test which would otherwise wait for ten minutes. */
const IN_TIME = { timeout: 8000 };

describe('without findUnusedParameters every rank gets an error', () => {
  it.each([
    { what: 'a unit', options: {} },
    { what: 'a unit, not bucketed', options: { bucketCapMb: 0 } },
    { what: 'a unit, not resharding', options: { reshardAfterForward: false } },
    {
      what: 'a unit, not resharding nor bucketed',
      options: { reshardAfterForward: false, bucketCapMb: 0 },
    },
    { what: 'a parameter of one unit', options: { isOne: true } },
  ])(
    'the error names the parameters: backward of one leaves out $what',
    IN_TIME,
    async ({ options }) => {
      const prefix = 'isOne' in options ? 'root: 1.' : 'layer 1: ';
      for (const left of [0, 1]) {
        const messages = await onRanks(2, async (rank) => {
          const { inner, model } = wrapped(rank, options);
          await trainStep(model, rowsOf(rank));
          if (rank.rank === left) {
            inner.chosen = [0, 2];
          }
          const error = await failure(trainStep(model, rowsOf(rank)));
          expect(error).toMatchObject({ code: 'FSDP_RANKS_DIFFER' });
          model.assertState('idle');
          expect(rank.device.memory().live).toMatchObject({ gathered: 0, staging: 0 });
          return { message: error.message, parameters: error.parameters };
        });
        // Where one rank gathers a unit and the other doesn't, that error comes first.
        const isByUnit = !('isOne' in options) && !('reshardAfterForward' in options);
        for (const { message, parameters } of messages) {
          if (isByUnit && parameters.length === 0) {
            expect(message).toMatch(/'layer 1'/);
          } else {
            expect(parameters).toEqual([`${prefix}weight`, `${prefix}bias`]);
            expect(message).toContain(`'${prefix}weight' on rank ${1 - left} alone`);
          }
          expect(message).toMatch(/findUnusedParameters/);
        }
      }
    },
  );

  it.each([
    { what: 'in the middle', skipped: 1, options: {} },
    { what: 'at the end', skipped: 2, options: {} },
    { what: 'in the middle, not resharding', skipped: 1, options: { reshardAfterForward: false } },
    { what: 'at the end, not resharding', skipped: 2, options: { reshardAfterForward: false } },
  ])('the error names the unit: forward of one skips a module $what', IN_TIME, async (cell) => {
    for (const findUnusedParameters of [false, true]) {
      await onRanks(2, async (rank) => {
        const { inner, model } = wrapped(rank, { ...cell.options, findUnusedParameters });
        if (rank.rank === 1) {
          inner.skipped = [cell.skipped];
        }
        const error = await failure(trainStep(model, rowsOf(rank)));
        expect(error).toMatchObject({ code: 'FSDP_RANKS_DIFFER' });
        expect(error.message).toContain(
          `rank 0 at allGather f32 512 bytes 'layer ${cell.skipped}'`,
        );
        expect(error.message).toMatch(/skips in forward cannot be made up for/);
      });
    }
  });

  it('the error names the unit: backward of one passes through a frozen module last', IN_TIME, () =>
    onRanks(2, async (rank) => {
      const { device, group } = rank;
      const wrap = wrapIn({ group }, { gatherCapBytes: 0 });
      const frozen = layer(device);
      freeze(frozen);
      const inner = new Choosing(device, [
        wrap(frozen, 'frozen'),
        wrap(layer(device), 'layer 1'),
        wrap(layer(device), 'layer 2'),
      ]);
      const model = wrap(new Stack(device, [layer(device), inner]), 'root');
      await trainStep(model, rowsOf(rank));
      if (rank.rank === 1) {
        inner.chosen = [1, 2];
      }
      const error = await failure(trainStep(model, rowsOf(rank)));
      expect(error).toMatchObject({ code: 'FSDP_RANKS_DIFFER' });
      expect(error.message).toMatch(
        /rank 0 at allGather .*'frozen'.*, rank 1 at barrier 'the end of backward'/,
      );
    }),
  );

  it(
    'the error comes where nothing is trained, too: an all-frozen model that one rank goes deeper into',
    IN_TIME,
    () =>
      onRanks(2, async (rank) => {
        const { device, group } = rank;
        const wrap = (name: string) => {
          const module = layer(device);
          freeze(module);
          return wrapIn({ group }, { name, gatherCapBytes: 0 })(module);
        };
        const inner = new Choosing(device, [wrap('frozen 0'), wrap('frozen 1')]);
        const model = wrapIn({ group }, { name: 'root', gatherCapBytes: 0 })(inner);
        // Backward reaches the last layer first, and on rank 1 no other.
        if (rank.rank === 1) {
          inner.chosen = [1];
        }
        const x = inputs(device, rowsOf(rank)).keep();
        x.requiresGrad = true;
        const backward = device.scope(async () =>
          lossOf((await model.call(x)) as Tensor).backward(),
        );
        const error = await failure(backward);
        expect(error).toMatchObject({ code: 'FSDP_RANKS_DIFFER' });
        expect(error.message).toMatch(
          /rank 0 at allGather .*'frozen 0'.*, rank 1 at barrier 'the end of backward'/,
        );
      }),
  );

  it('no error comes where all leave out the same parameters', () =>
    onRanks(2, async (rank) => {
      const { inner, model } = wrapped(rank);
      inner.chosen = [2];
      inner.skipped = [0];
      await trainStep(model, rowsOf(rank));
      const has = model.units.concat(
        model
          .instances()
          .slice(1)
          .flatMap(({ units }) => units),
      );
      expect(has.map(({ flat }) => flat.grad !== undefined)).toEqual([false, false, true]);
    }));
});

describe('a step with findUnusedParameters', () => {
  /** The layers that each rank uses in each step. */
  const CHOSEN: readonly (readonly (readonly number[])[])[] = [
    [[0, 1, 2], [0, 2], [1]],
    [[2], [2], [2]],
    [[0], [1], [2]],
  ];

  it.each([
    {},
    { bucketCapMb: 0 },
    { reshardAfterForward: false },
    { bucketCapMb: 0, gatherCapBytes: 0 },
    { isOne: true },
    { flattenParameters: false },
  ])('%j: unused ones count as zeros, as in one process', async (options) => {
    const WORLD = 3;
    const plain = await trainAlone(
      training({
        build: (device) => new Choosing(device, [layer(device), layer(device), layer(device)]),
        steps: CHOSEN.length,
        // Each rank's rows are computed apart, each with the layers that the rank uses.
        run: async (model, _, step) => {
          let total = 0;
          for (let rank = 0; rank < WORLD; rank++) {
            (model as Choosing).chosen = CHOSEN[step]![rank]!;
            total += await model.device.scope(async () => {
              const x = inputs(model.device, { first: rank, count: 1 }, step);
              const loss = lossOf((await model.call(x)) as Tensor);
              await loss.backward({ gradient: model.device.full([], 1 / WORLD) });
              return loss.item();
            });
          }
          return total / WORLD;
        },
      }),
    );
    const perRank = await onRanks(WORLD, async (rank) => {
      const { inner, model } = wrapped(rank, { findUnusedParameters: true, ...options });
      const optimizer = new Sgd(model.parameters(), { lr: 0.5 });
      const losses: number[] = [];
      for (const [step, chosen] of CHOSEN.entries()) {
        inner.chosen = chosen[rank.rank]!;
        losses.push(await trainStep(model, rowsOf(rank), step));
        expectIdle(model);
        await optimizer.step();
        optimizer.zeroGrad();
        const { live } = rank.device.memory();
        expect(live).toMatchObject({ gathered: 0, gradient: 0, staging: 0 });
      }
      return { losses, weights: [await weightsOf(model)] };
    });
    expectAsAlone(perRank, plain);
  });

  it.each([
    { isHalfFrozen: false, options: {} },
    { isHalfFrozen: true, options: {} },
    { isHalfFrozen: false, options: { bucketCapMb: 0, gatherCapBytes: 0 } },
    { isHalfFrozen: true, options: { reshardAfterForward: false } },
  ])(
    'a unit used twice, where a rank comes to one of its uses: $isHalfFrozen, $options',
    IN_TIME,
    async (cell) => {
      /**
       * This module runs its first part, the second, and the first again. The choice says which
       * outputs count.
       */
      class Thrice extends Choosing {
        override async forward(x: Tensor): Promise<Tensor> {
          const [first, second] = [...this.children().values()] as [Module, Module];
          const call = async (part: Module, input: Tensor) =>
            tanh((await part.call(input)) as Tensor);
          const early = await call(first, x);
          const late = await call(first, await call(second, early));
          return this.chosen.length > 1 ? late : add(early, late.detach());
        }
      }
      const make = (device: Device, wrap: (module: Module, name: string) => Module) => {
        const twice = layer(device);
        twice.weight.requiresGrad = !cell.isHalfFrozen;
        const inner = new Thrice(device, [wrap(twice, 'twice'), wrap(layer(device), 'once')]);
        return { inner, model: wrap(inner, 'root') };
      };
      await onRanks(2, async ({ device, group, rank }) => {
        const plain = make(new Device(device.backend, { seed: 7 }), (module) => module);
        const sharded = make(device, (module, name) =>
          wrapIn({ group }, { name, findUnusedParameters: true, ...cell.options })(module),
        );
        const run = async ({ inner, model }: typeof plain, ranks: readonly number[]) => {
          const optimizer = new Sgd(model.parameters(), { lr: 0.5 / ranks.length });
          for (let step = 0; step < 2; step++) {
            for (const each of ranks) {
              inner.chosen = each === 1 ? [0] : [0, 1];
              await trainStep(model, { first: each, count: 1 }, step);
            }
            await optimizer.step();
            optimizer.zeroGrad();
          }
          return weightsOf(model);
        };
        const expected = await run(plain, [0, 1]); // A mean over two ranks is half of the sum.
        expectClose(await run(sharded, [rank]), expected, 5e-7);
        expect(device.memory().live).toMatchObject({ gathered: 0, staging: 0 });
      });
    },
  );

  it('reduces what any rank uses, and nothing that none does', () =>
    onRanks(2, async (rank) => {
      const reduceGroup = await rank.group.split(0);
      const { inner, model } = wrapped(rank, {
        findUnusedParameters: true,
        bucketCapMb: 0,
        processGroupReduceScatter: reduceGroup,
      });
      inner.chosen = rank.rank === 0 ? [0] : [2];
      const seen = tags(reduceGroup);
      await trainStep(model, rowsOf(rank));
      expect(seen).toEqual(['used', 'layer 2', 'layer 0']);
      const gradients = model
        .instances()
        .flatMap(({ units }) => units.map(({ flat }) => flat.grad));
      expect(gradients.map((gradient) => gradient !== undefined)).toEqual([true, false, true]);
    }));
});

function tags(group: ProcessGroup): string[] {
  const seen: string[] = [];
  group.onTrace = ({ tag }) => seen.push(tag ?? '');
  return seen;
}

describe('divide factors that one rank changes between steps', () => {
  it.each([
    { what: 'in all instances', options: {}, change: { predivide: 4, postdivide: 0.5 } },
    { what: 'with findUnusedParameters', options: { findUnusedParameters: true }, change: {} },
    {
      what: 'in the root alone',
      options: { isOne: true },
      change: { postdivide: 3, recursive: false },
    },
  ])('are an error that names the rank, $what', IN_TIME, async ({ options, change }) => {
    const given = { predivide: 1, postdivide: 1, ...change };
    const messages = await onRanks(2, async (rank) => {
      const { model } = wrapped(rank, options);
      await trainStep(model, rowsOf(rank));
      if (rank.rank === 1) {
        setGradientDivideFactors(model, given);
      }
      const error = await failure(trainStep(model, rowsOf(rank)));
      expect(error).toMatchObject({ code: 'FSDP_RANKS_DIFFER' });
      return error.message;
    });
    for (const message of messages) {
      expect(message).toContain(
        `got 2 and 1 on rank 0 and ${given.predivide} and ${given.postdivide} on rank 1`,
      );
    }
  });
});
