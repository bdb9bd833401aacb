// Sharded training is compared with its naive twin. The bits are equal where both cut the
// parameters alike: in one unit, over any number of ranks. With several units, each of which is cut
// by itself, they are equal up to the rounding of f32.

import { AdamW, type Module } from '@shardweave/nn';
import type { Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import {
  expectClose,
  layer,
  onRanks,
  type Rank,
  Stack,
  stepped,
  trainOnce,
  weightsOf,
} from '../../../tooling/test-kit/index.ts';
import { NaiveTwin } from './support/naive-twin.js';
import { wrapIn } from './support/sharding.js';

const STEPS = [0, 1, 2];
const ROWS = 12;

interface Outcome {
  readonly losses: readonly number[];
  readonly weights: ReadonlyMap<string, Float32Array>;
}

function stackOf({ device }: Rank): Stack {
  return new Stack(device, [layer(device), layer(device), layer(device)]);
}

function backwardOf(model: Module, { rank, worldSize }: Rank) {
  const count = ROWS / worldSize;
  return (step: number) => trainOnce(model, { first: rank * count, count }, step);
}

async function sharded(rank: Rank, areNested: boolean): Promise<Outcome & { predivide: number }> {
  const wrap = wrapIn(rank);
  const stack = stackOf(rank);
  if (areNested) {
    for (const [name, child] of stack.children()) {
      stack.replaceChild(name, wrap(child));
    }
  }
  const model = wrap(stack);
  const optimizer = new AdamW(model.parameters(), { lr: 1e-2 });
  const backward = backwardOf(model, rank);
  const losses = await stepped(optimizer, STEPS, backward);
  return { losses, weights: await weightsOf(model), predivide: model.divideFactors.predivide };
}

async function naive(rank: Rank, predivide: number): Promise<Outcome> {
  const stack = stackOf(rank);
  const optimizer = (shard: Tensor) => new AdamW([shard], { lr: 1e-2 });
  const twin = await NaiveTwin.create(stack, { group: rank.group, predivide, optimizer });
  const backward = backwardOf(stack, rank);
  const losses: number[] = [];
  for (const step of STEPS) {
    losses.push(await twin.step(() => backward(step)));
  }
  const whole = await twin.gather();
  const entries = stack
    .namedParameters()
    .map(([name], i) => [name, twin.valuesOf(whole, i)] as const);
  return { losses, weights: new Map(entries) };
}

it.each([1, 2, 3, 4])(
  'one unit over %i ranks has the bits of the naive twin',
  async (worldSize) => {
    const fast = await onRanks(worldSize, (rank) => sharded(rank, false));
    const slow = await onRanks(worldSize, (rank) => naive(rank, fast[0]!.predivide));
    for (const [rank, { losses, weights }] of fast.entries()) {
      expect({ losses, weights }, `rank ${rank}`).toEqual(slow[rank]);
    }
  },
);

it.each([2, 3])('units of their own over %i ranks follow it', async (worldSize) => {
  const fast = await onRanks(worldSize, (rank) => sharded(rank, true));
  const slow = await onRanks(worldSize, (rank) => naive(rank, fast[0]!.predivide));
  expectClose(fast[0]!.weights, slow[0]!.weights);
});
