// A flat parameter may have several owners: optimizers, scalers and modules that each treat a part
// of it as their own. They are compared with the bare module, where each parameter has a gradient
// of its own.

import { commitOffload, type FsdpOptions } from '@shardweave/fsdp';
import { AdamW, GradScaler, type Module, type Optimizer, Sgd, stateDict } from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import { mean, square, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import {
  expectClose,
  inputs,
  layer,
  onRanks,
  type Rank,
  Stack,
  stepped,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { failingStore } from './support/failing-store.js';
import { bitsOf, storedTraining } from './support/offload-training.js';
import { wrapIn } from './support/sharding.js';

interface Owners {
  readonly model: Module;
  readonly stack: Stack;
  /** The two layers of the bare module. */
  readonly layers: readonly Module[];
  readonly rank: Rank;
  /** Runs forward and backward of one step. */
  backward(step: number): Promise<void>;
}

type Program = (owners: Owners) => Promise<void>;

const STEPS = 3;
/** Where gradients rest. */
const RESTS = [
  ['on the device', {}],
  ['in a store', { moveGradsToCpu: true }],
  ['in a store with all else', { moveParamsToCpu: true }],
] as const satisfies readonly (readonly [string, Partial<FsdpOptions>])[];

async function run(program: Program, worldSize: number, fsdp?: Partial<FsdpOptions>) {
  const [weights] = await onRanks(worldSize, async (rank) => {
    const { device } = rank;
    const layers = [layer(device), layer(device)];
    const stack = new Stack(device, layers);
    const model = fsdp === undefined ? stack : wrapIn(rank, fsdp)(stack);
    const rows = { first: (rank.rank * 4) / worldSize, count: 4 / worldSize };
    const backward = async (step: number) => void (await trainOnce(model, rows, step));
    await program({ model, stack, layers, rank, backward });
    return weightsOf(model);
  });
  return weights!;
}

/** Expects that the program leaves the sharded module with the same weights as the bare one. */
async function expectAsBare(
  program: Program,
  worldSize: number,
  fsdp: Partial<FsdpOptions> = {},
): Promise<void> {
  const bare = await run(program, 1);
  const sharded = await run(program, worldSize, fsdp);
  expectClose(sharded, bare);
}

function matricesAndVectors(model: Module): Tensor[][] {
  return [2, 1].map((rank) => model.parameters().filter((tensor) => tensor.rank === rank));
}

function byRank(model: Module): Optimizer<object>[] {
  const [matrices, vectors] = matricesAndVectors(model);
  return [new AdamW(matrices!, { lr: 1e-2 }), new Sgd(vectors!, { lr: 1 })];
}

/** Runs steps whose losses are scaled. Each optimizer steps, and then all zero their gradients. */
async function scaled({ model, rank }: Owners, optimizers: readonly Optimizer<object>[]) {
  const { device } = rank;
  const count = 4 / rank.worldSize;
  const scaler = new GradScaler(model, { initScale: 8 });
  for (let step = 0; step < STEPS; step++) {
    await device.scope(async () => {
      const x = inputs(device, { first: rank.rank * count, count }, step);
      await scaler.scale(mean(square((await model.call(x)) as Tensor))).backward();
    });
    for (const optimizer of optimizers) {
      await scaler.step(optimizer);
    }
    scaler.update();
    for (const optimizer of optimizers) {
      optimizer.zeroGrad();
    }
  }
}

/** Runs backward of each step, then steps each optimizer and zeroes its gradients in turn. */
async function inTurn({ backward }: Owners, optimizers: readonly Optimizer<object>[]) {
  for (let step = 0; step < STEPS; step++) {
    await backward(step);
    for (const optimizer of optimizers) {
      await optimizer.step();
      optimizer.zeroGrad();
    }
  }
}

describe.each([1, 2])('world size %i', (worldSize) => {
  describe.each(RESTS)('gradients %s', (_, fsdp) => {
    const compare = (program: Program) => expectAsBare(program, worldSize, fsdp);

    it('each optimizer steps and zeroes its own gradients in turn', () =>
      compare((owners) => inTurn(owners, byRank(owners.model))));

    it('an optimizer for each submodule steps and zeroes in turn', () =>
      compare((owners) =>
        inTurn(
          owners,
          owners.layers.map((each) => new Sgd(each.parameters(), { lr: 1 })),
        ),
      ));

    it("a submodule's zeroGrad leaves the other gradients of its unit", () =>
      compare(async ({ model, layers, backward }) => {
        await stepped(new Sgd(model.parameters(), { lr: 1 }), STEPS, async (step) => {
          await backward(step);
          layers[0]!.zeroGrad();
        });
      }));
  });

  const compare = (program: Program) => expectAsBare(program, worldSize);

  it('one optimizer after another steps, then all zero their gradients', () =>
    compare(async ({ model, backward }) => {
      const optimizers = byRank(model);
      for (let step = 0; step < STEPS; step++) {
        await backward(step);
        for (const optimizer of optimizers) {
          await optimizer.step();
        }
        for (const optimizer of optimizers) {
          optimizer.zeroGrad();
        }
      }
    }));

  it('a scaler with two optimizers divides each gradient by the scale once', () =>
    compare((owners) =>
      scaled(
        owners,
        matricesAndVectors(owners.model).map((part) => new Sgd(part, { lr: 1 })),
      ),
    ));

  it('a scaler with one optimizer of two groups divides each gradient once', () =>
    compare((owners) => {
      const groups = matricesAndVectors(owners.model).map((params) => ({ params }));
      return scaled(owners, [new Sgd(groups, { lr: 1 })]);
    }));

  it('a gradient set to undefined is dropped', () =>
    compare(async ({ model, backward }) => {
      const [first] = model.parameters();
      await stepped(new Sgd(model.parameters(), { lr: 1 }), STEPS, async (step) => {
        await backward(step);
        first!.grad?.dispose();
        first!.grad = undefined;
      });
    }));

  it.each([
    [
      'frozen after wrapping and thawed later counts its own steps',
      (step: number) => step >= 2,
      { weightDecay: 0 },
    ],
    ['frozen and thawed in turn keeps its own count', (step: number) => step % 2 === 0, {}],
  ])('a parameter %s', (_, isTrained, options) =>
    compare(async ({ model, layers, backward }) => {
      // With two ranks, each holds one of these biases.
      const frozen = layers.flatMap((each) => each.parameters().slice(1));
      const optimizer = new AdamW(model.parameters(), { lr: 1e-2, ...options });
      await stepped(optimizer, 5, async (step) => {
        for (const tensor of frozen) {
          tensor.requiresGrad = isTrained(step);
        }
        await backward(step);
      });
    }),
  );

  it('a parameter that no backward reaches is not stepped', () =>
    compare(async ({ model, stack, backward }) => {
      stack.order = ['0'];
      const optimizer = new AdamW(model.parameters(), { lr: 1e-2, weightDecay: 0.5 });
      await stepped(optimizer, STEPS, backward);
    }));
});

describe('over a store', () => {
  async function uninterrupted() {
    const [expected] = await onRanks(1, async (rank) => {
      const { model, step } = storedTraining(rank, createHostStore());
      await step(0);
      await step(1);
      return bitsOf(await stateDict(model));
    });
    return expected;
  }

  const refused = (operation: string) => operation === 'write';
  const unread = (operation: string, key: string) =>
    operation === 'read' && key.endsWith('block 2/expAvgSq');

  it.each([
    ['a full disk refused is applied once', 'FULL', refused],
    ['a failed read stopped is finished, not repeated,', 'IO', unread],
  ] as const)('a step that %s by a retry', async (_, code, fails) => {
    const expected = await uninterrupted();
    await onRanks(1, async (rank) => {
      let isFailing = false;
      const store = failingStore(code, (...call) => isFailing && fails(...call));
      const { model, optimizer, step, backward } = storedTraining(rank, store);
      await step(0);
      await backward(1);
      isFailing = true;
      await expect(optimizer.step()).rejects.toMatchObject({ code });
      isFailing = false;
      await optimizer.step();
      expect(bitsOf(await stateDict(model))).toEqual(expected);
    });
  });

  it('a step that a failed read stopped is committed whole or not at all', async () => {
    const expected = await uninterrupted();
    await onRanks(1, async (rank) => {
      let isFailing = false;
      const store = failingStore('IO', (...call) => isFailing && unread(...call));
      const { model, optimizer, step, backward } = storedTraining(rank, store);
      await step(0);
      await backward(1);
      isFailing = true;
      await expect(optimizer.step()).rejects.toMatchObject({ code: 'IO' });
      const { generation } = store;
      await expect(commitOffload(model)).rejects.toMatchObject({ code: 'IO' });
      await expect(stateDict(model)).rejects.toMatchObject({ code: 'IO' });
      expect(store.generation).toBe(generation);
      isFailing = false;
      await commitOffload(model);
      // The step and the commit make a generation each.
      expect(store.generation).toBe(generation + 2);
      expect(bitsOf(await stateDict(model))).toEqual(expected);
      await optimizer.step(); // This repeats a step that is finished.
      expect(bitsOf(await stateDict(model))).toEqual(expected);
    });
  });
});
