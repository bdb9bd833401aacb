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

function byRank(model: Module): Optimizer<object>[] {
  const [matrices, vectors] = [2, 1].map((rank) =>
    model.parameters().filter((tensor) => tensor.rank === rank),
  );
  return [new AdamW(matrices!, { lr: 1e-2 }), new Sgd(vectors!, { lr: 1 })];
}

async function scaledBackward({ model, rank }: Owners, scaler: GradScaler, step: number) {
  const { device } = rank;
  const count = 4 / rank.worldSize;
  await device.scope(async () => {
    const output = (await model.call(
      inputs(device, { first: rank.rank * count, count }, step),
    )) as Tensor;
    await scaler.scale(mean(square(output))).backward();
  });
}

describe.each([1, 2])('world size %i', (worldSize) => {
  it('one optimizer after another steps, then all zero their gradients', async () => {
    await expectAsBare(async ({ model, backward }) => {
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
    }, worldSize);
  });

  it.each(RESTS)(
    'each optimizer steps and zeroes its own gradients in turn, gradients %s',
    async (_, fsdp) => {
      await expectAsBare(
        async ({ model, backward }) => {
          const optimizers = byRank(model);
          for (let step = 0; step < STEPS; step++) {
            await backward(step);
            for (const optimizer of optimizers) {
              await optimizer.step();
              optimizer.zeroGrad();
            }
          }
        },
        worldSize,
        fsdp,
      );
    },
  );

  it.each(RESTS)(
    'an optimizer for each submodule steps and zeroes in turn, gradients %s',
    async (_, fsdp) => {
      await expectAsBare(
        async ({ layers, backward }) => {
          const optimizers = layers.map((each) => new Sgd(each.parameters(), { lr: 1 }));
          for (let step = 0; step < STEPS; step++) {
            await backward(step);
            for (const optimizer of optimizers) {
              await optimizer.step();
              optimizer.zeroGrad();
            }
          }
        },
        worldSize,
        fsdp,
      );
    },
  );

  it('a scaler with two optimizers divides each gradient by the scale once', async () => {
    await expectAsBare(async (owners) => {
      const optimizers = [2, 1].map(
        (rank) =>
          new Sgd(
            owners.model.parameters().filter((each) => each.rank === rank),
            { lr: 1 },
          ),
      );
      const scaler = new GradScaler(owners.model, { initScale: 8 });
      for (let step = 0; step < STEPS; step++) {
        await scaledBackward(owners, scaler, step);
        for (const optimizer of optimizers) {
          await scaler.step(optimizer);
        }
        scaler.update();
        for (const optimizer of optimizers) {
          optimizer.zeroGrad();
        }
      }
    }, worldSize);
  });

  it('a scaler with one optimizer of two groups divides each gradient once', async () => {
    await expectAsBare(async (owners) => {
      const groups = [2, 1].map((rank) => ({
        params: owners.model.parameters().filter((each) => each.rank === rank),
      }));
      const optimizer = new Sgd(groups, { lr: 1 });
      const scaler = new GradScaler(owners.model, { initScale: 8 });
      for (let step = 0; step < STEPS; step++) {
        await scaledBackward(owners, scaler, step);
        await scaler.step(optimizer);
        scaler.update();
        optimizer.zeroGrad();
      }
    }, worldSize);
  });

  it.each(RESTS)(
    "a submodule's zeroGrad leaves the other gradients of its unit, gradients %s",
    async (_, fsdp) => {
      await expectAsBare(
        async ({ model, layers, backward }) => {
          const optimizer = new Sgd(model.parameters(), { lr: 1 });
          for (let step = 0; step < STEPS; step++) {
            await backward(step);
            layers[0]!.zeroGrad();
            await optimizer.step();
            optimizer.zeroGrad();
          }
        },
        worldSize,
        fsdp,
      );
    },
  );

  it('a gradient set to undefined is dropped', async () => {
    await expectAsBare(async ({ model, backward }) => {
      const [first] = model.parameters();
      const optimizer = new Sgd(model.parameters(), { lr: 1 });
      for (let step = 0; step < STEPS; step++) {
        await backward(step);
        first!.grad?.dispose();
        first!.grad = undefined;
        await optimizer.step();
        optimizer.zeroGrad();
      }
    }, worldSize);
  });

  it('a parameter frozen after wrapping and thawed later counts its own steps', async () => {
    await expectAsBare(async ({ model, layers, backward }) => {
      // With two ranks, each holds one of these biases.
      const frozen = layers.flatMap((each) => each.parameters().slice(1));
      const optimizer = new AdamW(model.parameters(), { lr: 1e-2, weightDecay: 0 });
      for (const tensor of frozen) {
        tensor.requiresGrad = false;
      }
      for (let step = 0; step < 4; step++) {
        if (step === 2) {
          for (const tensor of frozen) {
            tensor.requiresGrad = true;
          }
        }
        await backward(step);
        await optimizer.step();
        optimizer.zeroGrad();
      }
    }, worldSize);
  });

  it('a parameter frozen and thawed in turn keeps its own count', async () => {
    await expectAsBare(async ({ model, layers, backward }) => {
      // With two ranks, each holds one of these biases.
      const frozen = layers.flatMap((each) => each.parameters().slice(1));
      const optimizer = new AdamW(model.parameters(), { lr: 1e-2 });
      for (let step = 0; step < 5; step++) {
        for (const tensor of frozen) {
          tensor.requiresGrad = step % 2 === 0;
        }
        await backward(step);
        await optimizer.step();
        optimizer.zeroGrad();
      }
    }, worldSize);
  });

  it('a parameter that no backward reaches is not stepped', async () => {
    await expectAsBare(async ({ model, stack, backward }) => {
      const optimizer = new AdamW(model.parameters(), { lr: 1e-2, weightDecay: 0.5 });
      stack.order = ['0'];
      for (let step = 0; step < STEPS; step++) {
        await backward(step);
        await optimizer.step();
        optimizer.zeroGrad();
      }
    }, worldSize);
  });
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

  it('a step that a full disk refused is applied once by a retry', async () => {
    const expected = await uninterrupted();
    await onRanks(1, async (rank) => {
      let isFull = false;
      const store = failingStore('FULL', (operation) => isFull && operation === 'write');
      const { model, optimizer, step, backward } = storedTraining(rank, store);
      await step(0);
      await backward(1);
      isFull = true;
      await expect(optimizer.step()).rejects.toMatchObject({ code: 'FULL' });
      isFull = false;
      await optimizer.step();
      expect(bitsOf(await stateDict(model))).toEqual(expected);
    });
  });

  it('a step that a failed read stopped is finished, not repeated, by a retry', async () => {
    const expected = await uninterrupted();
    await onRanks(1, async (rank) => {
      let isFailing = false;
      const store = failingStore('IO', (operation, key) => {
        return isFailing && operation === 'read' && key.endsWith('block 2/expAvgSq');
      });
      const { model, optimizer, step, backward } = storedTraining(rank, store);
      await step(0);
      await backward(1);
      isFailing = true;
      await expect(optimizer.step()).rejects.toMatchObject({ code: 'IO' });
      isFailing = false;
      await optimizer.step();
      expect(bitsOf(await stateDict(model))).toEqual(expected);
    });
  });

  it('a step that a failed read stopped is committed whole or not at all', async () => {
    const expected = await uninterrupted();
    await onRanks(1, async (rank) => {
      let isFailing = false;
      const store = failingStore('IO', (operation, key) => {
        return isFailing && operation === 'read' && key.endsWith('block 2/expAvgSq');
      });
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
