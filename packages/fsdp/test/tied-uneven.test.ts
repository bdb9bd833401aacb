// Tied parameters in unevenly divided shards over 1 to 8 ranks equal those of one process, whatever
// is tied to what and however often the model runs before a backward.

import { type FsdpOptions, FullyShardedDataParallel } from '@shardweave/fsdp';
import { Linear, Module, Sgd } from '@shardweave/nn';
import { add, type Device, linear, type Tensor, tanh } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { onRanks } from './support/ranks.js';
import { inputs, lossOf, weightsOf } from './support/scenarios.js';

const IN = 6; // This is the width of the scenarios' inputs().
const HIDDEN = 23; // With the biases these are 3 blocks of 128 elements, over up to 8 ranks.
const STEPS = 4;

/** This module uses another module's weight transposed. */
class Transposed extends Module<[x: Tensor], Tensor> {
  constructor(device: Device, weight: Tensor) {
    super(device);
    this.sharedParameter('weight', weight);
  }
  forward(x: Tensor): Tensor {
    return linear(x, { weight: this.ownParameters().get('weight')! });
  }
}

/** This module maps up and down again with one weight. */
class Pair extends Module<[x: Tensor], Tensor> {
  constructor(device: Device, up: Linear) {
    super(device);
    this.child('up', up);
    this.child('down', new Transposed(device, up.ownParameters().get('weight')!));
  }
  async forward(x: Tensor): Promise<Tensor> {
    const { up, down } = Object.fromEntries(this.children());
    return (await down!.call(tanh((await up!.call(x)) as Tensor))) as Tensor;
  }
}

/**
 * This module has a pair with its own weight, then a pair at the root that shares its `up` with the
 * first. The head is used twice.
 */
class Tied extends Module<[x: Tensor], Tensor> {
  constructor(device: Device, parts: Readonly<Record<string, Module>>) {
    super(device);
    for (const [name, part] of Object.entries(parts)) {
      this.child(name, part);
    }
  }
  async forward(x: Tensor): Promise<Tensor> {
    const { inner, outer, head } = Object.fromEntries(this.children());
    const hidden = tanh((await inner!.call(x)) as Tensor);
    const again = add(hidden, (await outer!.call(hidden)) as Tensor);
    return (await head!.call(tanh((await head!.call(again)) as Tensor))) as Tensor;
  }
}

type Wrap = (module: Module, name: string) => Module;

function build(device: Device, wrap: Wrap): Module {
  const up = () => new Linear(device, { inFeatures: IN, outFeatures: HIDDEN });
  const shared = up();
  return wrap(
    new Tied(device, {
      inner: wrap(new Pair(device, up()), 'inner'),
      outer: new Pair(device, shared),
      head: new Pair(device, shared), // One weight is used four times in the root.
    }),
    'root',
  );
}

/** Trains with `numForwards` losses before one backward. Returns means over the rows. */
async function train(
  model: Module,
  rows: { readonly first: number; readonly count: number },
  numForwards: number,
) {
  const { device } = model;
  const optimizer = new Sgd(model.parameters(), { lr: 0.05, momentum: 0.5 });
  const losses: number[] = [];
  for (let step = 0; step < STEPS; step++) {
    const loss = await device.scope(async () => {
      let total: Tensor | undefined;
      for (let i = 0; i < numForwards; i++) {
        const one = lossOf((await model.call(inputs(device, rows, step + 50 * i))) as Tensor);
        total = total === undefined ? one : add(total, one);
      }
      await total!.backward();
      return total!.item();
    });
    losses.push(loss);
    await optimizer.step();
    optimizer.zeroGrad();
  }
  return { losses, weights: await weightsOf(model) };
}

describe.each([1, 2, 3, 4, 5, 6, 7, 8])('world size %i', (worldSize) => {
  it.each([
    { numForwards: 1, fsdp: {} },
    { numForwards: 2, fsdp: { reshardAfterForward: false } },
    { numForwards: 2, fsdp: { flattenParameters: false, bucketCapMb: 0 } },
  ] as readonly { numForwards: number; fsdp: Partial<FsdpOptions> }[])(
    'tied weights train as in one process: $numForwards forwards, $fsdp',
    async ({ numForwards, fsdp }) => {
      // The reference's products are rounded once, so only the order of the ranks' sums can differ.
      const backend = createReferenceBackend();
      const [plain] = await onRanks(
        1,
        ({ device }) =>
          train(
            build(device, (module) => module),
            { first: 0, count: worldSize },
            numForwards,
          ),
        { backend },
      );
      const perRank = await onRanks(
        worldSize,
        async ({ device, group, rank }) => {
          const wrap: Wrap = (module, name) =>
            new FullyShardedDataParallel(module, { processGroup: group, name, ...fsdp });
          return train(build(device, wrap), { first: rank, count: 1 }, numForwards);
        },
        { backend },
      );
      plain!.losses.forEach((loss, step) => {
        const sum = perRank.reduce((total, { losses }) => total + losses[step]!, 0);
        expect(Math.abs(sum / worldSize - loss)).toBeLessThanOrEqual(2e-6 * Math.abs(loss));
      });
      for (const { weights } of perRank) {
        expect([...weights.keys()]).toEqual([...plain!.weights.keys()]);
        for (const [name, values] of weights) {
          const wanted = plain!.weights.get(name)!;
          values.forEach((value, i) => {
            if (!(Math.abs(value - wanted[i]!) <= 1e-6)) {
              expect.fail(`${name}[${i}]: expected ${wanted[i]}, got ${value}`);
            }
          });
        }
      }
    },
  );
});
