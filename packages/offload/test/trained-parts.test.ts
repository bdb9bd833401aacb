// Which parameters a step moves: frozen ones stay, thawed ones begin, and those that no backward reached
// are passed over, as in a model on its device.

import { AdamW, Linear, Module, Sequential, Sgd } from '@shardweave/nn';
import { OffloadModel, stateDict } from '@shardweave/offload';
import { Device, mean, square, type Tensor } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';

const DIM = 4;
const STEPS = 6;

/** Layers of their own, of which step `step` uses all but the middle one where `isSkipping`. */
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

/** Parameters after the steps; `before` says what each trains. */
async function trained(
  isOffloaded: boolean,
  before: (step: number, parameters: readonly Tensor[], state: { isSkipping: boolean }) => void,
  optimizerName: keyof typeof OPTIMIZERS = 'AdamW',
): Promise<Map<string, number[]>> {
  const device = new Device(createReferenceBackend(), { seed: 8 });
  const state = { isSkipping: false };
  const bare = new Sequential(device, [linear(device), new Branch(device, state), linear(device)]);
  const model: Module = isOffloaded ? new OffloadModel(bare, { numSlices: 3 }) : bare;
  const optimizer = OPTIMIZERS[optimizerName](model.parameters());
  for (let step = 0; step < STEPS; step++) {
    before(step, model.parameters(), state);
    await device.scope(async () => {
      const data = Float32Array.from({ length: 2 * DIM }, (_, i) => Math.sin(i + step));
      await mean(square((await model.call(device.tensor(data, [2, DIM]))) as Tensor)).backward();
    });
    await optimizer.step();
    optimizer.zeroGrad();
  }
  const values = new Map<string, number[]>();
  if (model instanceof OffloadModel) {
    for (const [name, { data }] of await stateDict(model)) {
      values.set(name, [...new Float32Array(data.slice().buffer)]);
    }
  } else {
    for (const [name, tensor] of bare.namedParameters()) {
      values.set(name, [...(await tensor.toArray())]);
    }
  }
  return values;
}

const NAMES = Object.keys(OPTIMIZERS) as (keyof typeof OPTIMIZERS)[];

describe.each(NAMES)('under %s', (name) => {
  const same = async (before: Parameters<typeof trained>[1]) => {
    expect(await trained(true, before, name)).toEqual(await trained(false, before, name));
  };

  it('a part of a layer that is frozen from the start stays', async () => {
    await same((step, [weight]) => {
      if (step === 0) {
        weight!.requiresGrad = false;
      }
    });
  });

  it('a whole layer may be frozen and thawed', async () => {
    await same((step, parameters) => {
      for (const parameter of parameters.slice(0, 2)) {
        parameter.requiresGrad = step % 3 !== 1;
      }
    });
  });

  it('a part of a layer may be frozen for good', async () => {
    await same((step, [weight]) => {
      if (step === 3) {
        weight!.requiresGrad = false;
      }
    });
  });
});

it('plain SGD passes over what a step does not reach', async () => {
  const before: Parameters<typeof trained>[1] = (step, _, state) => {
    state.isSkipping = step % 2 === 1;
  };
  expect(await trained(true, before, 'plain SGD')).toEqual(
    await trained(false, before, 'plain SGD'),
  );
});

it('AdamW begins with a part of a layer that is thawed later', async () => {
  const before: Parameters<typeof trained>[1] = (step, [weight]) => {
    weight!.requiresGrad = step >= 3;
  };
  expect(await trained(true, before)).toEqual(await trained(false, before));
});

it.each(['AdamW', 'SGD'] as const)('%s passes over what a step does not reach', async (name) => {
  const before: Parameters<typeof trained>[1] = (step, _, state) => {
    state.isSkipping = step % 2 === 1;
  };
  expect(await trained(true, before, name)).toEqual(await trained(false, before, name));
});
