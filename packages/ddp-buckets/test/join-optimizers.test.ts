// After ranks had unequal numbers of steps, they go on with the state of their optimizers and loss
// scalers. An epoch later the ranks' weights are still the same, bit for bit.

import type { DdpOptions } from '@shardweave/ddp-buckets';
import { Adam, AdamW, GradScaler, type Module, type Optimizer, Sgd } from '@shardweave/nn';
import { describe, expect, it } from 'vitest';
import { layer, Stack, trainOnce } from '../../../tooling/test-kit/index.ts';
import { onRanks, type Rank, weightsOf, wrap } from './support/ranks.js';

const STEPS = [1, 4, 3];

const net = ({ device }: Rank) => new Stack(device, [layer(device), layer(device)]);

const backward = (model: Module, { rank }: Rank, step: number) =>
  trainOnce(model, { first: 2 * rank, count: 2 }, step);

/** Returns step counts and state tensors of all parameters. */
async function stateOf(
  optimizer: Optimizer<object>,
): Promise<(readonly [name: string, step: number, tensors: unknown])[]> {
  const dict = await optimizer.stateDict(
    optimizer.parameters().map((parameter, i) => [String(i), parameter] as const),
  );
  return [...dict.state].map(([name, { step, tensors }]) => [name, step, [...tensors]] as const);
}

/** Joins, trains an epoch of equal lengths, and returns what each rank has. */
function epochAfterJoin(
  makeOptimizers: (model: Module) => readonly Optimizer<{ lr: number }>[],
  options: Partial<DdpOptions> & { readonly divideByInitialWorldSize?: boolean } = {},
) {
  const { divideByInitialWorldSize = true, ...ddp } = options;
  return onRanks(STEPS.length, async (rank) => {
    const model = wrap(net(rank), rank, ddp);
    const optimizers = makeOptimizers(model);
    const stepAll = async () => {
      for (const optimizer of optimizers) {
        await optimizer.step();
      }
      model.zeroGrad();
    };
    await model.join(
      async () => {
        for (let step = 0; step < STEPS[rank.rank]!; step++) {
          await backward(model, rank, step);
          for (const { groups } of optimizers) {
            for (const group of groups) {
              group.lr *= 0.9;
            }
          }
          await stepAll();
        }
      },
      { optimizers, divideByInitialWorldSize },
    );
    const states: Awaited<ReturnType<typeof stateOf>>[] = [];
    for (const optimizer of optimizers) {
      states.push(await stateOf(optimizer));
    }
    const joined = { weights: await weightsOf(model), states };
    for (let step = 0; step < 5; step++) {
      await backward(model, rank, 10 + step);
      await stepAll();
    }
    const rates = optimizers.flatMap(({ groups }) => groups.map(({ lr }) => lr));
    return { joined, rates, weights: await weightsOf(model) };
  });
}

describe('an epoch after join all ranks have the same weights', () => {
  const adamW = (model: Module) => [new AdamW(model.parameters(), { lr: 0.02 })];

  it.each<[string, Parameters<typeof epochAfterJoin>[1]]>([
    ['by default', {}],
    ['divided by the ranks that had inputs', { divideByInitialWorldSize: false }],
    ['with findUnusedParameters', { findUnusedParameters: true }],
    ['with delayAllreduce', { delayAllreduce: true }],
    ['with retained buffers', { retainAllreduceBuffers: true, messageSize: 1 }],
    ['with a predivide factor', { gradientPredivideFactor: 3, divideByInitialWorldSize: false }],
    ['with several streams', { numAllreduceStreams: 2, messageSize: 1 }],
  ])('weights are the same %s', async (_, options) => {
    const perRank = await epochAfterJoin(adamW, options);
    for (const one of perRank) {
      expect(one).toEqual(perRank[0]);
    }
    expect(perRank[0]!.joined.states[0]!.map(([, step]) => step)).toEqual([4, 4, 4, 4]);
  });

  it.each<[string, Parameters<typeof epochAfterJoin>[0]]>([
    ['of Adam', (model) => [new Adam(model.parameters(), { lr: 0.02 })]],
    ['of SGD with momentum', (model) => [new Sgd(model.parameters(), { lr: 0.1, momentum: 0.9 })]],
    ['of SGD', (model) => [new Sgd(model.parameters(), { lr: 0.1 })]],
    [
      'of two optimizers',
      (model) => {
        const parameters = model.parameters();
        return [
          new AdamW(
            parameters.filter(({ rank }) => rank === 2),
            { lr: 0.02 },
          ),
          new Sgd(
            parameters.filter(({ rank }) => rank === 1),
            { lr: 0.1, momentum: 0.9 },
          ),
        ];
      },
    ],
    [
      'of groups',
      (model) => {
        const [first, ...others] = model.parameters();
        return [new AdamW([{ params: [first!], lr: 0.01 }, { params: others }], { lr: 0.02 })];
      },
    ],
  ])('%s', async (_, make) => {
    const perRank = await epochAfterJoin(make);
    for (const one of perRank) {
      expect(one).toEqual(perRank[0]);
    }
    expect(perRank[0]!.weights).not.toEqual(perRank[0]!.joined.weights);
  });
});

it('join leaves the state of a rank that stepped last as it was', async () => {
  const states = await onRanks(2, async (rank) => {
    const model = wrap(net(rank), rank);
    const optimizer = new AdamW(model.parameters());
    let own: unknown;
    await model.join(
      async () => {
        for (let step = 0; step < 1 + 2 * rank.rank; step++) {
          await backward(model, rank, step);
          await optimizer.step();
          model.zeroGrad();
        }
        own = await stateOf(optimizer);
      },
      { optimizers: [optimizer] },
    );
    return { own, joined: await stateOf(optimizer) };
  });
  expect(states[1]!.joined).toEqual(states[1]!.own);
  expect(states[0]!.joined).toEqual(states[1]!.own);
  expect(states[0]!.own).not.toEqual(states[1]!.own);
});

it('join drops the state of what the rank that stepped last never stepped', async () => {
  const states = await onRanks(2, async (rank) => {
    const inner = net(rank);
    const model = wrap(inner, rank);
    const optimizers = [...inner.children().values()].map((layer) => new AdamW(layer.parameters()));
    const statesOf = () => Promise.all(optimizers.map(stateOf));
    let own: unknown;
    await model.join(
      async () => {
        for (let step = 0; step < 1 + 2 * rank.rank; step++) {
          await backward(model, rank, step);
          for (const optimizer of rank.rank === 0 ? optimizers : optimizers.slice(1)) {
            await optimizer.step();
          }
          model.zeroGrad();
        }
        own = await statesOf();
      },
      { optimizers },
    );
    return { own, joined: await statesOf() };
  });
  expect(states[0]!.own).not.toEqual(states[1]!.own);
  expect(states[0]!.joined).toEqual(states[1]!.own);
});

it('a loss scaler follows as well', async () => {
  const scales = await onRanks(2, async (rank) => {
    const model = wrap(net(rank), rank);
    const scaler = new GradScaler(model, { initScale: 8, growthInterval: 2 });
    await model.join(
      async () => {
        for (let step = 0; step < 1 + 2 * rank.rank; step++) {
          await backward(model, rank, step);
          scaler.update(false);
        }
      },
      { optimizers: [], scalers: [scaler] },
    );
    return scaler.stateDict();
  });
  expect(scales).toEqual([
    { scale: 16, growthTracker: 1 },
    { scale: 16, growthTracker: 1 },
  ]);
});

it('join wants all optimizers, and says which parameters are in none', async () => {
  await onRanks(2, async (rank) => {
    const inner = net(rank);
    const model = wrap(inner, rank);
    const body = () => Promise.reject(new Error('not reached'));
    const untyped = model as unknown as { join(body: () => unknown): Promise<void> };
    await expect(untyped.join(body)).rejects.toThrow(/expected the option optimizers, got none/);
    const optimizers = [new AdamW([inner.parameters()[0]!])];
    const refused = model.join(body, { optimizers });
    await expect(refused).rejects.toMatchObject({ code: 'DDP_CONFIG' });
    await expect(refused).rejects.toThrow(/got none for 0\.bias, 1\.weight, 1\.bias\./);
    for (const parameter of inner.parameters().slice(1)) {
      parameter.requiresGrad = false;
    }
    await model.join(async () => undefined, { optimizers }); // Frozen parameters need no state.
  });
});
