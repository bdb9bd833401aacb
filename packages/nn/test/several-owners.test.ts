// Several optimizers and modules share packed parameters, and each handles its part of the flat as
// its own. Results are compared with those of the same program without packing.

import { AdamW, Linear, Module, type Optimizer, packParameters, Sgd } from '@shardweave/nn';
import { type Device, mean, square, type Tensor, tanh } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { expectClose, makeDevice, read, values } from './support/support.js';

class Net extends Module<[x: Tensor], Tensor> {
  readonly first: Linear;
  readonly second: Linear;

  constructor(device: Device) {
    super(device);
    this.first = this.child('first', new Linear(device, { inFeatures: 4, outFeatures: 4 }));
    this.second = this.child('second', new Linear(device, { inFeatures: 4, outFeatures: 4 }));
  }

  async forward(x: Tensor): Promise<Tensor> {
    return this.second.call(tanh(await this.first.call(x)));
  }
}

interface Owners {
  readonly net: Net;
  /** Runs forward and backward of one step. */
  backward(step: number): Promise<void>;
}

type Program = (owners: Owners) => Promise<void>;

const STEPS = 3;

async function weightsAfter(program: Program, isPacked: boolean): Promise<number[]> {
  const device = makeDevice({ seed: 5 });
  const net = new Net(device);
  if (isPacked) {
    packParameters(net);
  }
  const backward = (step: number) =>
    device.scope(async () => {
      const x = device.tensor(values(8, step + 1), [2, 4]);
      await mean(square(await net.call(x))).backward();
    });
  await program({ net, backward });
  return (await Promise.all(net.parameters().map(read))).flat();
}

async function expectAsUnpacked(program: Program): Promise<void> {
  expectClose(await weightsAfter(program, true), await weightsAfter(program, false), 1e-6);
}

function optimizersOf(net: Net): Optimizer<object>[] {
  const [matrices, vectors] = [2, 1].map((rank) =>
    net.parameters().filter((tensor) => tensor.rank === rank),
  );
  return [new AdamW(matrices!, { lr: 1e-1 }), new Sgd(vectors!, { lr: 1 })];
}

it('one optimizer after another steps, then all zero their gradients', async () => {
  await expectAsUnpacked(async ({ net, backward }) => {
    const optimizers = optimizersOf(net);
    for (let step = 0; step < STEPS; step++) {
      await backward(step);
      for (const optimizer of optimizers) {
        await optimizer.step();
      }
      for (const optimizer of optimizers) {
        optimizer.zeroGrad();
      }
    }
  });
});

it('each optimizer steps and zeroes its own gradients in turn', async () => {
  await expectAsUnpacked(async ({ net, backward }) => {
    const optimizers = optimizersOf(net);
    for (let step = 0; step < STEPS; step++) {
      await backward(step);
      for (const optimizer of optimizers) {
        await optimizer.step();
        optimizer.zeroGrad();
      }
    }
  });
});

it("a submodule's zeroGrad leaves the other gradients", async () => {
  await expectAsUnpacked(async ({ net, backward }) => {
    const optimizer = new Sgd(net.parameters(), { lr: 1 });
    for (let step = 0; step < STEPS; step++) {
      await backward(step);
      net.first.zeroGrad();
      await optimizer.step();
      optimizer.zeroGrad();
    }
  });
});

it('a gradient set to undefined is dropped', async () => {
  await expectAsUnpacked(async ({ net, backward }) => {
    const optimizer = new Sgd(net.parameters(), { lr: 1 });
    for (let step = 0; step < STEPS; step++) {
      await backward(step);
      net.first.weight.grad?.dispose();
      net.first.weight.grad = undefined;
      await optimizer.step();
      optimizer.zeroGrad();
    }
  });
});

it('a parameter frozen after packing and thawed later counts its own steps', async () => {
  await expectAsUnpacked(async ({ net, backward }) => {
    const optimizer = new AdamW(net.parameters(), { lr: 1e-1, weightDecay: 0 });
    const { weight } = net.first;
    weight.requiresGrad = false;
    for (let step = 0; step < 4; step++) {
      if (step === 2) {
        weight.requiresGrad = true;
      }
      await backward(step);
      await optimizer.step();
      optimizer.zeroGrad();
    }
  });
});

it('AdamW leaves what a used flat has without a gradient, frozen or not', async () => {
  await expectAsUnpacked(async ({ net }) => {
    const { first, second } = net;
    second.bias!.requiresGrad = false;
    const optimizer = new AdamW(net.parameters(), { lr: 0.1, weightDecay: 0.5 });
    const x = net.device.tensor(values(8), [2, 4]);
    await net.device.scope(async () => mean(square(await first.call(x))).backward());
    await optimizer.step();
    expect(optimizer.stateOf(first.weight.piece?.flat ?? first.weight)!.runs).toHaveLength(1);
    await optimizer.step(); // This steps again with the same gradients.
  });
});
