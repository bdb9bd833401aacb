// A step leaves out what no backward reached, and frozen parameters rest apart.

import { AdamW, Linear, loadStateDict, Module, Sequential, Sgd, stateDict } from '@shardweave/nn';
import { type OffloadBudgetError, OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { expect, it } from 'vitest';
import { weightsOf } from '../../../tooling/test-kit/index.ts';

const DIM = 4;
const STEPS = 6;

/** This branch has two layers. With `isSkipping` it runs only the first. */
class Branch extends Module<[x: Tensor], Tensor> {
  readonly #state: { isSkipping: boolean };
  readonly always = this.child('always', linear(this.device));
  readonly sometimes = this.child('sometimes', linear(this.device));

  constructor(device: Device, state: { isSkipping: boolean }) {
    super(device);
    this.#state = state;
  }

  async forward(x: Tensor): Promise<Tensor> {
    const y = await this.always.call(x);
    return this.#state.isSkipping ? y : this.sometimes.call(y);
  }
}

function linear(device: Device): Linear {
  return new Linear(device, { inFeatures: DIM, outFeatures: DIM });
}

const OPTIMIZERS = {
  AdamW: (parameters: Tensor[]) => new AdamW(parameters, { lr: 0.05, weightDecay: 0.1 }),
  SGD: (parameters: Tensor[]) => new Sgd(parameters, { lr: 0.1, momentum: 0.9 }),
  'plain SGD': (parameters: Tensor[]) => new Sgd(parameters, { lr: 0.1 }),
} as const;

/** Returns the parameters after the steps, of which every other one skips a layer. */
async function trained(isOffloaded: boolean, optimizerName: keyof typeof OPTIMIZERS) {
  const device = new Device(createReferenceBackend(), { seed: 8 });
  const state = { isSkipping: false };
  const bare = new Sequential(device, [linear(device), new Branch(device, state), linear(device)]);
  const model: Module = isOffloaded ? new OffloadModel(bare, { numSlices: 3 }) : bare;
  const optimizer = OPTIMIZERS[optimizerName](model.parameters());
  for (let step = 0; step < STEPS; step++) {
    state.isSkipping = step % 2 === 1;
    await device.scope(async () => {
      const data = Float32Array.from({ length: 2 * DIM }, (_, i) => Math.sin(i + step));
      await mean(square((await model.call(device.tensor(data, [2, DIM]))) as Tensor)).backward();
    });
    await optimizer.step();
    optimizer.zeroGrad();
  }
  return weightsOf(model);
}

it.each(Object.keys(OPTIMIZERS) as (keyof typeof OPTIMIZERS)[])(
  '%s passes over what a step does not reach',
  async (name) => {
    expect(await trained(true, name)).toEqual(await trained(false, name));
  },
);

it.each([
  ['f32', 4],
  ['bf16', 2],
] as const)('frozen ones rest without a gradient or state, in %s', async (dtype, elementBytes) => {
  const device = new Device(createReferenceBackend(), { seed: 8 });
  const bare = new Sequential(device, [new Branch(device, { isSkipping: false }), linear(device)]);
  const [[, branch]] = bare.children() as unknown as [[string, Branch]];
  for (const parameter of branch.always.to(dtype).parameters()) {
    parameter.requiresGrad = false;
  }
  const store = createHostStore();
  const model = new OffloadModel(bare, { store, numSlices: 2 });
  const optimizer = new AdamW(model.parameters(), { lr: 0.05 });
  await device.scope(async () => {
    const x = device.tensor(new Float32Array(2 * DIM).fill(0.5), [2, DIM]);
    await mean(square((await model.call(x)) as Tensor)).backward();
  });
  await optimizer.step();
  optimizer.zeroGrad();
  const names = model.flats.map(({ name, flat }) => [
    name.split('.').slice(1).join('.'),
    flat.dtype,
  ]);
  expect(names).toEqual([
    [dtype === 'f32' ? '0.frozen' : '0.frozen.bf16', dtype],
    ['0', 'f32'],
    ['1', 'f32'],
  ]);
  const bytesOf = (part: string): number =>
    store
      .keys()
      .filter((key) => key.includes(part))
      .reduce((total, key) => total + store.byteLength(key)!, 0);
  const elements = 256; // There are a weight and a bias, padded to multiples of 128.
  expect(bytesOf('0.frozen')).toBe(elements * elementBytes);
});

it.each(['f32', 'bf16'] as const)(
  'frozen ones in 16 bits load from %s, odd sizes too',
  async (dtype) => {
    const device = new Device(createReferenceBackend(), { seed: 8 });
    const make = () => {
      const layer = new Linear(device, { inFeatures: 3, outFeatures: 5 }).to('bf16');
      for (const parameter of layer.parameters()) {
        parameter.requiresGrad = false;
      }
      return new Sequential(device, [layer, new Linear(device, { inFeatures: 5, outFeatures: 2 })]);
    };
    const [from, to] = [make(), make()];
    const state = await stateDict(from);
    const given = await stateDict(from.to(dtype));
    const model = new OffloadModel(to, { numSlices: 2 });
    await loadStateDict(
      model,
      new Map([...state, ...[...given].filter(([name]) => name[0] === '0')]),
    );
    expect(await stateDict(model)).toEqual(state);
  },
);

it('a budget counts the backward through frozen layers to an input that wants its gradient', async () => {
  class Square extends Module<[x: Tensor], Tensor> {
    forward(x: Tensor): Tensor {
      return square(x);
    }
  }
  const run = async (deviceBudgetBytes: number) => {
    const device = new Device(createReferenceBackend(), { seed: 1 });
    const layers = [0, 1].map(() => new Sequential(device, [linear(device), new Square(device)]));
    for (const parameter of layers.flatMap((layer) => layer.parameters())) {
      parameter.requiresGrad = false;
    }
    const model = new OffloadModel(layers, { deviceBudgetBytes });
    const x = device.tensor(new Float32Array(1024 * DIM), [1024, DIM], { requiresGrad: true });
    await device.scope(async () => (await model.call(x)).backward({ gradient: x.detach() }));
    return { hasGradient: x.grad !== undefined, reservedBytes: device.memory().reservedBytes };
  };
  const error = await run(1000).catch((reason: unknown) => reason);
  const { requiredBytes } = error as OffloadBudgetError;
  const { hasGradient, reservedBytes } = await run(requiredBytes);
  expect(hasGradient).toBe(true);
  expect(reservedBytes).toBeLessThanOrEqual(requiredBytes);
});
