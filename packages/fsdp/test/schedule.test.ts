// These tests check what the scheduler does when the order of units changes, a unit runs twice, or
// a step fails.

import type { ProcessGroup } from '@shardweave/collectives';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { gradNorm, Linear, Module } from '@shardweave/nn';
import { type Device, mean, square, type Tensor, tanh } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { forwardBackward, onRanks, type Rank } from '../../../tooling/test-kit/index.ts';
import { expectIdle, shardedGpt2 } from './support/sharding.js';

const DIM = 6;

/** This module runs its layers in a chosen order. */
class Reordered extends Module<[x: Tensor], Tensor> {
  order: readonly number[] = [0, 1, 2];

  constructor(device: Device, group?: ProcessGroup) {
    super(device);
    for (let i = 0; i < 3; i++) {
      const layer = new Linear(device, { inFeatures: DIM, outFeatures: DIM });
      this.child(
        String(i),
        group === undefined
          ? layer
          : new FullyShardedDataParallel(layer, { processGroup: group, name: `layer ${i}` }),
      );
    }
  }

  async forward(x: Tensor): Promise<Tensor> {
    let hidden = x;
    for (const i of this.order) {
      hidden = tanh(await this.children().get(String(i))!.call(hidden));
    }
    return hidden;
  }
}

function input(device: Device, rank: number, rows: number): Tensor {
  const values = Float32Array.from({ length: rows * DIM }, (_, i) =>
    Math.sin(i + 1 + rank * rows * DIM),
  );
  return device.tensor(values, [rows, DIM]);
}

/** Runs one step in the given order and returns the loss; gradients add up over steps. */
function step(device: Device, model: Module, rank: number, rows: number): Promise<number> {
  return device.scope(async () => {
    const loss = mean(square(await model.call(input(device, rank, rows))));
    await loss.backward();
    return loss.item();
  });
}

const ORDERS = [
  [0, 1, 2],
  [0, 1, 2],
  [2, 1, 0],
  [1, 1, 0],
  [0, 2],
  [0, 1, 2],
];

it('follows a change of order between steps: skipped, repeated and reversed units', async () => {
  const [plain] = await onRanks(1, async ({ device }) => {
    const model = new Reordered(device);
    const norms: number[] = [];
    for (const order of ORDERS) {
      model.order = order;
      await step(device, model, 0, 4);
      let squared = 0;
      for (const parameter of model.parameters()) {
        const gradient = await parameter.grad?.toArray();
        for (const value of gradient ?? []) {
          squared += value ** 2;
        }
      }
      norms.push(Math.sqrt(squared));
      model.zeroGrad();
    }
    return norms;
  });
  const sharded = await onRanks(2, async ({ device, group, rank }) => {
    const inner = new Reordered(device, group);
    const model = new FullyShardedDataParallel(inner, { processGroup: group });
    const norms: number[] = [];
    for (const order of ORDERS) {
      inner.order = order;
      await step(device, model, rank, 2);
      norms.push(await gradNorm(model));
      model.zeroGrad();
      expect(device.ledger.live()).toMatchObject({ gathered: 0, gradient: 0, staging: 0 });
    }
    return norms;
  });
  for (const norms of sharded) {
    norms.forEach((norm, i) => {
      expect(norm).toBeCloseTo(plain![i]!, 6);
    });
  }
});

describe('a step that fails', () => {
  async function prepared(rank: Rank) {
    const { model } = shardedGpt2(rank);
    const rows = { batch: 2, first: rank.rank, count: 1 };
    await forwardBackward(rank.device, model, 0, rows);
    model.zeroGrad();
    return { model, run: (number: number) => forwardBackward(rank.device, model, number, rows) };
  }

  it('rejects on every rank when one aborts, and leaves shards and memory as at rest', async () => {
    await onRanks(2, async (rank) => {
      const { model, run } = await prepared(rank);
      const atRest = rank.device.ledger.live();
      const failing = run(1);
      if (rank.rank === 1) {
        rank.group.abort('the test says so');
      }
      await expect(failing).rejects.toThrow(/the test says so/);
      expectIdle(model);
      expect(rank.device.ledger.live()).toEqual(atRest);
    });
  });

  it('rejects with the error of a hook inside backward, and trains on afterwards', async () => {
    await onRanks(2, async (rank) => {
      const { model, run } = await prepared(rank);
      const atRest = rank.device.ledger.live();
      const hook = () => Promise.reject(new Error('hook'));
      const remove = rank.device.autograd.onGradientFinal(model.parameters()[0]!, hook);
      await expect(run(1)).rejects.toThrow('hook');
      remove();
      expect(rank.device.ledger.live()).toEqual(atRest);
      expectIdle(model);
      expect(Number.isFinite(await run(1))).toBe(true);
    });
  });
});
