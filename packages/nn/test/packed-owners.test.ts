// One flat gradient with several owners: a gradient, a loss scale and a count of steps belong to the
// parameters that an optimizer or a module was given, not to all that share the flat.

import { Adam, AdamW, Linear, Module, packParameters, Sgd } from '@shardweave/nn';
import type { Device, Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { expectClose, makeDevice, read, values } from './support.js';

class Pair extends Module<[x: Tensor], Tensor> {
  readonly first: Linear;
  readonly second: Linear;

  constructor(device: Device) {
    super(device);
    this.first = this.child('first', new Linear(device, { inFeatures: 3, outFeatures: 4 }));
    this.second = this.child('second', new Linear(device, { inFeatures: 4, outFeatures: 2 }));
  }

  async forward(x: Tensor): Promise<Tensor> {
    return this.second.call(await this.first.call(x));
  }
}

async function backward(model: Pair): Promise<void> {
  const { device } = model;
  await device.scope(async () => {
    const out = await model.call(device.tensor(values(6), [2, 3]));
    await out.backward({ gradient: device.full([2, 2], 1) });
  });
}

/** The same run with and without packing, which must end in the same weights. */
async function packedAndPlain(run: (model: Pair) => Promise<void>) {
  const results: number[][][] = [];
  for (const isPacked of [false, true]) {
    const device = makeDevice({ seed: 3 });
    const model = new Pair(device);
    if (isPacked) packParameters(model);
    await run(model);
    results.push(await Promise.all(model.parameters().map(read)));
    device.dispose();
  }
  return { plain: results[0]!, packed: results[1]! };
}

function expectEqual({ plain, packed }: { plain: number[][]; packed: number[][] }): void {
  for (const [i, tensor] of plain.entries()) expectClose(packed[i]!, tensor, 1e-6);
}

// The gradient of a flat belongs to everybody, so the first zeroGrad takes the second one's away.
it.fails('two optimizers over one flat: each steps, whoever clears first', async () => {
  const result = await packedAndPlain(async (model) => {
    const optimizers = [model.first, model.second].map(
      (layer) => new Sgd(layer.parameters(), { lr: 0.1 }),
    );
    await backward(model);
    for (const optimizer of optimizers) {
      await optimizer.step();
      optimizer.zeroGrad();
    }
  });
  expectEqual(result);
});

// Clearing a part disposes the whole flat's gradient.
it.fails('zeroGrad of a sub-module leaves the gradients of the others', async () => {
  const result = await packedAndPlain(async (model) => {
    const optimizer = new Sgd(model.parameters(), { lr: 0.1 });
    await backward(model);
    model.first.zeroGrad();
    await optimizer.step();
  });
  expectEqual(result);
});

// The count of steps is the flat's, so a parameter's first step is corrected as if it were the third.
it.fails('a parameter that was frozen for two steps begins with a first one', async () => {
  const result = await packedAndPlain(async (model) => {
    const optimizer = new Adam(model.parameters(), { lr: 0.1 });
    for (let step = 0; step < 3; step++) {
      for (const parameter of model.first.parameters()) parameter.requiresGrad = step === 2;
      await backward(model);
      await optimizer.step();
      optimizer.zeroGrad();
    }
  });
  expectEqual(result);
});

it('one optimizer over the flat steps as over plain parameters', async () => {
  const result = await packedAndPlain(async (model) => {
    const optimizer = new Adam(model.parameters(), { lr: 0.1 });
    for (let step = 0; step < 3; step++) {
      await backward(model);
      await optimizer.step();
      optimizer.zeroGrad();
    }
  });
  expectEqual(result);
});

it('AdamW decays what a used flat has without a gradient, and leaves what is frozen', async () => {
  const { plain, packed } = await packedAndPlain(async (model) => {
    const { weight } = model.second;
    if (model.first.weight.piece !== undefined) model.second.bias!.requiresGrad = false;
    const optimizer = new AdamW(model.parameters(), { lr: 0.1, weightDecay: 0.5 });
    await model.device.scope(async () => {
      const out = await model.first.call(model.device.tensor(values(6), [2, 3]));
      await out.backward({ gradient: model.device.full([2, 4], 1) });
    });
    expect(weight.grad).toBeUndefined();
    await optimizer.step();
  });
  const decayed = plain[2]!.map((value) => value * (1 - 0.1 * 0.5));
  expectClose(packed[2]!, decayed, 1e-6); // a plain one without a gradient stays
  expect(packed[3]).toEqual(plain[3]);
  for (const i of [0, 1]) expectClose(packed[i]!, plain[i]!, 1e-6);
});
