// These tests check what the scheduler does when the order of units changes, a unit runs twice, or
// a step fails.

import { gradNorm } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import {
  expectClose,
  forwardBackward,
  layer,
  onRanks,
  type Rank,
  Stack,
  trainOnce,
} from '../../../tooling/test-kit/index.ts';
import { expectIdle, shardedGpt2, wrapIn } from './support/sharding.js';

const ORDERS = ['012', '012', '210', '110', '02', '012'].map((order) => [...order]);

it('follows a change of order between steps: skipped, repeated and reversed units', async () => {
  const [plain] = await onRanks(1, async ({ device }) => {
    const model = new Stack(device, [layer(device), layer(device), layer(device)]);
    const norms: number[] = [];
    for (const order of ORDERS) {
      model.order = order;
      await trainOnce(model, { first: 0, count: 4 });
      norms.push(await gradNorm(model));
      model.zeroGrad();
    }
    return norms;
  });
  const sharded = await onRanks(2, async ({ device, group, rank }) => {
    const wrap = wrapIn({ group });
    const layers = [0, 1, 2].map((i) => wrap(layer(device), `layer ${i}`));
    const inner = new Stack(device, layers);
    const model = wrap(inner);
    const norms: number[] = [];
    for (const order of ORDERS) {
      inner.order = order;
      await trainOnce(model, { first: 2 * rank, count: 2 });
      norms.push(await gradNorm(model));
      model.zeroGrad();
      expect(device.ledger.live()).toMatchObject({ gathered: 0, gradient: 0, staging: 0 });
    }
    return norms;
  });
  for (const norms of sharded) {
    expectClose(norms, plain!, 5e-7);
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

  it('rejects on every rank when one aborts, and leaves shards and memory as at rest', () =>
    onRanks(2, async (rank) => {
      const { model, run } = await prepared(rank);
      const atRest = rank.device.ledger.live();
      const failing = run(1);
      if (rank.rank === 1) {
        rank.group.abort('the test says so');
      }
      await expect(failing).rejects.toThrow(/the test says so/);
      expectIdle(model);
      expect(rank.device.ledger.live()).toEqual(atRest);
    }));

  it('rejects with the error of a hook inside backward, and trains on afterwards', () =>
    onRanks(2, async (rank) => {
      const { model, run } = await prepared(rank);
      const atRest = rank.device.ledger.live();
      const hook = () => Promise.reject(new Error('hook'));
      const remove = rank.device.autograd.onGradientFinal(model.parameters()[0]!, hook);
      await expect(run(1)).rejects.toThrow('hook');
      remove();
      expect(rank.device.ledger.live()).toEqual(atRest);
      expectIdle(model);
      expect(Number.isFinite(await run(1))).toBe(true);
    }));
});
