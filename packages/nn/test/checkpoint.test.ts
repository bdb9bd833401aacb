import {
  ActivationCheckpointError,
  BatchNorm1d,
  checkpoint,
  Dropout,
  Gpt2,
  Gpt2Block,
  Linear,
  Module,
  packParameters,
  Sequential,
} from '@shardweave/nn';
import {
  add,
  crossEntropy,
  type Device,
  mul,
  sum,
  type Tensor,
  tanh,
  tensorsIn,
} from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { moduleOf } from '../../../tooling/test-kit/index.ts';
import { makeDevice, read, values } from './support/support.js';

const CONFIG = {
  vocab_size: 13,
  n_positions: 8,
  n_embd: 16,
  n_layer: 4,
  n_head: 2,
  embd_pdrop: 0.2,
  attn_pdrop: 0.2,
  resid_pdrop: 0.2,
  initializer_range: 0.2,
};

function wrapBlocks(model: Gpt2): void {
  for (const [name, layer] of model.children()) {
    if (layer instanceof Gpt2Block) {
      model.replaceChild(name, checkpoint(layer));
    }
  }
}

/**
 * Runs one step of a small GPT-2. Returns its loss, its gradients by name, and the bytes that
 * forward left alive.
 */
async function step(options: { isCheckpointed: boolean; isPacked?: boolean }) {
  const device = makeDevice({ seed: 11 });
  const model = new Gpt2(device, CONFIG, { seed: 2 });
  const names = model.namedParameters().map(([name]) => name);
  if (options.isCheckpointed) {
    wrapBlocks(model);
  }
  expect(model.namedParameters().map(([name]) => name)).toEqual(names);
  const packed = options.isPacked === true ? packParameters(model) : undefined;
  const finals = new Map<string, number>();
  for (const [name, parameter] of model.namedParameters()) {
    device.autograd.onGradientFinal(parameter, () => {
      finals.set(name, (finals.get(name) ?? 0) + 1);
    });
  }
  const ids = Int32Array.from({ length: 16 }, (_, i) => (i * 5) % 13);
  device.random.begin({ step: 3, rowOffset: 0 });
  let liveBytes = 0;
  const loss = await device.scope(async () => {
    const input = device.tensor(ids, [2, 8]);
    const logits = await model.call(input);
    const result = crossEntropy(logits, device.tensor(ids.toReversed(), [2, 8]));
    liveBytes = device.ledger.live().activation;
    const before = device.random.state();
    await result.backward();
    expect(device.random.state()).toEqual(before);
    return result.item();
  });
  expect(device.ledger.live().activation).toBe(0);
  const gradients = packed
    ? [await read(packed.flats[0]!.grad!)]
    : await Promise.all(model.parameters().map(({ grad }) => read(grad!)));
  model.dispose();
  packed?.dispose();
  expect(device.ledger.live().total).toBe(0);
  return { loss, gradients, liveBytes, finals };
}

describe('checkpoint', () => {
  it('gives the same loss and gradients bit for bit with dropout, in fewer bytes', async () => {
    const plain = await step({ isCheckpointed: false });
    const wrapped = await step({ isCheckpointed: true });
    expect(wrapped.loss).toBe(plain.loss);
    expect(wrapped.gradients).toEqual(plain.gradients);
    // Without checkpointing a block keeps about 18 times its input, attention weights not counted.
    expect(wrapped.liveBytes).toBeLessThan(plain.liveBytes / 4);
  });

  it('fires the final event of each parameter once', async () => {
    const { finals } = await step({ isCheckpointed: true });
    expect(finals.size).toBe(4 * 12 + 4);
    expect([...finals.values()].every((count) => count === 1)).toBe(true);
  });

  it('feeds the gradients of packed parameters', async () => {
    const plain = await step({ isCheckpointed: false, isPacked: true });
    const wrapped = await step({ isCheckpointed: true, isPacked: true });
    expect(wrapped.gradients).toEqual(plain.gradients);
  });

  it('takes and returns several tensors, among values that are none', async () => {
    const run = async (isWrapped: boolean) => {
      const device = makeDevice();
      const pair = new Pair(device);
      const module: Module<
        Parameters<Pair['forward']>,
        Awaited<ReturnType<Pair['forward']>>
      > = isWrapped ? checkpoint(pair) : pair;
      const [a, b] = [3, 4].map((seed) =>
        device.tensor(values(6, seed), [2, 3], { requiresGrad: true }),
      ) as [Tensor, Tensor];
      const ids = device.tensor(Int32Array.of(1, 2));
      const { left, rest, same, note } = await module.call(a, { b, ids, factor: 2 });
      expect(note).toBe('factor 2');
      expect(await read(rest[1]!)).toEqual([1, 2]);
      expect(rest[1]!.requiresGrad).toBe(false);
      await sum(add(mul(left, rest[0]!), mul(same, 3))).backward();
      const leaves = [a, b, ...pair.parameters()];
      expect(leaves.every(({ origin }) => origin === undefined)).toBe(true);
      const gradients = await Promise.all(leaves.map(({ grad }) => read(grad!)));
      return { gradients, left: await read(left) };
    };
    expect(await run(true)).toEqual(await run(false));
  });

  it('accumulates over two uses of one module in a graph', async () => {
    const run = async (isWrapped: boolean) => {
      const device = makeDevice();
      const linear = new Linear(device, { inFeatures: 3, outFeatures: 3 });
      const module = isWrapped ? checkpoint(linear) : linear;
      let finals = 0;
      device.autograd.onGradientFinal(linear.weight, () => {
        finals += 1;
      });
      const x = device.tensor(values(6), [2, 3], { requiresGrad: true });
      await sum(tanh(await module.call(tanh(await module.call(x))))).backward();
      expect(finals).toBe(1);
      return Promise.all([x, ...linear.parameters()].map(({ grad }) => read(grad!)));
    };
    expect(await run(true)).toEqual(await run(false));
  });

  it('may be nested', async () => {
    const run = async (wrap: (module: Linear) => Module<[Tensor], Tensor>) => {
      const device = makeDevice();
      const linear = new Linear(device, { inFeatures: 3, outFeatures: 3 });
      await sum(await wrap(linear).call(device.tensor(values(6), [2, 3]))).backward();
      return read(linear.weight.grad!);
    };
    const twice = await run((linear) => checkpoint(checkpoint(linear)));
    expect(twice).toEqual(await run((linear) => linear));
  });

  it('holds at its peak the inputs of all segments and the inside of one', async () => {
    const ROWS = 64;
    const DIM = 16;
    const NUM_SEGMENTS = 6;
    const peak = async (isWrapped: boolean) => {
      const device = makeDevice();
      const segments = Array.from({ length: NUM_SEGMENTS }, () => {
        const bare = segment(device, DIM);
        return isWrapped ? checkpoint(bare) : bare;
      });
      const model = new Sequential<[x: Tensor]>(device, segments);
      await device.scope(async () => {
        const x = device.tensor(values(ROWS * DIM), [ROWS, DIM]);
        device.ledger.resetPeak();
        await sum(await model.call(x)).backward();
      });
      return device.ledger.peak().activation / (ROWS * DIM * 4);
    };
    // Peaks are in units of one activation. A plain segment keeps four, and a checkpointed one
    // keeps its input only.
    const [plain, wrapped] = [await peak(false), await peak(true)];
    expect(plain).toBeGreaterThan(4 * NUM_SEGMENTS);
    expect(wrapped).toBeLessThan(NUM_SEGMENTS + 2 * 4 + 2);
  });

  it('offloadToCpu holds nothing on the device between forward and backward', async () => {
    const run = async (options: { readonly offloadToCpu: boolean }) => {
      const device = makeDevice({ seed: 4 });
      const segments = [0, 1, 2].map(() =>
        checkpoint(
          new Sequential<[x: Tensor]>(device, [
            new Dropout(device, { p: 0.3 }),
            segment(device, 3),
          ]),
          options,
        ),
      );
      const model = new Sequential<[x: Tensor]>(device, segments);
      const x = device.tensor(values(30), [10, 3], { requiresGrad: true });
      const before = device.ledger.live().activation;
      const held = await device.scope(async () => {
        const output = await model.call(x);
        const inside = device.ledger.live().activation - before;
        await sum(output).backward();
        return inside;
      });
      const gradients = [x, ...model.parameters()].map(({ grad }) => read(grad!));
      return { held, gradients: await Promise.all(gradients) };
    };
    const [kept, offloaded] = [
      await run({ offloadToCpu: false }),
      await run({ offloadToCpu: true }),
    ];
    expect(offloaded.gradients).toEqual(kept.gradients);
    // With offloading only the output is held. Without it the inputs of the second and the third
    // segment are held too.
    expect([offloaded.held, kept.held]).toEqual([120, 3 * 120]);
  });

  it('runs the module once more in backward, and a nested one once more for each level', async () => {
    const device = makeDevice();
    const x = device.tensor(values(6), [2, 3], { requiresGrad: true });
    const count = async (levels: number, isLearning: boolean) => {
      let numForwards = 0;
      let module = moduleOf(device, {}, (_, x: Tensor) => {
        numForwards += 1;
        return tanh(x);
      });
      for (let i = 0; i < levels; i++) {
        module = checkpoint(module);
      }
      if (isLearning) {
        await sum(await module.call(x)).backward();
      } else {
        await device.noGrad(() => module.call(x));
      }
      return numForwards;
    };
    expect([await count(0, true), await count(1, true), await count(2, true)]).toEqual([1, 2, 3]);
    expect([await count(1, false), await count(2, false)]).toEqual([1, 1]);
  });

  it('has an output that requires grad where an input or a parameter does', async () => {
    const device = makeDevice();
    const requires = async (options: { input: boolean; weight: boolean; bias: boolean }) => {
      const linear = new Linear(device, { inFeatures: 3, outFeatures: 3 });
      linear.weight.requiresGrad = options.weight;
      linear.bias!.requiresGrad = options.bias;
      const x = device.tensor(values(6), [2, 3], { requiresGrad: options.input });
      const [plain, wrapped] = [await linear.call(x), await checkpoint(linear).call(x)];
      expect(wrapped.requiresGrad).toBe(plain.requiresGrad);
      if (wrapped.requiresGrad) {
        await sum(wrapped).backward();
      }
      const leaves = [x, ...linear.parameters()];
      expect(leaves.map(({ grad }) => grad !== undefined)).toEqual(Object.values(options));
      return wrapped.requiresGrad;
    };
    const none = { input: false, weight: false, bias: false };
    expect(await requires(none)).toBe(false);
    expect(await requires({ ...none, input: true })).toBe(true);
    expect(await requires({ ...none, bias: true })).toBe(true);
    expect(await requires({ ...none, input: true, weight: true })).toBe(true);
  });

  it.each([
    ['a list', (x: Tensor, y: Tensor) => [x, [y]]],
    [
      'a map',
      (x: Tensor, y: Tensor) =>
        new Map([
          ['x', x],
          ['y', y],
        ]),
    ],
    ['a set', (x: Tensor, y: Tensor) => new Set([x, y])],
    ['a class instance', (x: Tensor, y: Tensor) => Object.assign(new Held(), { x, y })],
    ['one tensor twice', (x: Tensor) => [x, x]],
  ] as const)('takes and returns %s', async (_, hold) => {
    const run = async (isWrapped: boolean) => {
      const device = makeDevice();
      const through = new Through(device, hold);
      const module: Module<[object], object> = isWrapped ? checkpoint(through) : through;
      const [x, y] = [5, 6].map((seed) =>
        device.tensor(values(6, seed), [2, 3], { requiresGrad: true }),
      ) as [Tensor, Tensor];
      const output = await module.call(hold(x, y));
      expect(output.constructor).toBe(hold(x, y).constructor);
      const [first, second] = tensorsIn(output) as [Tensor, Tensor | undefined];
      await sum(mul(first, second ?? first)).backward();
      const leaves = [x, y, ...through.parameters()];
      return Promise.all(leaves.map(({ grad }) => grad && read(grad)));
    };
    expect(await run(true)).toEqual(await run(false));
  });

  it('leaves an input that it hands through as the caller has it', async () => {
    const device = makeDevice();
    const linear = new Linear(device, { inFeatures: 3, outFeatures: 3 });
    const both = async (_: object, x: Tensor) => [await linear.call(x), x] as const;
    const segment = checkpoint(moduleOf(device, { linear }, both));
    const x = device.tensor(values(6), [2, 3]);
    const [output, through] = await segment.call(x);
    expect([x.requiresGrad, through === x]).toEqual([false, false]);
    expect(await read(through)).toEqual(await read(x));
    await sum(mul(output, through)).backward();
    expect(linear.weight.grad).toBeDefined();
  });

  it('keeps nothing without grad mode and follows train and eval', async () => {
    const device = makeDevice();
    const block = new Linear(device, { inFeatures: 3, outFeatures: 3 }).eval();
    const wrapped = checkpoint(block);
    expect(wrapped.isTraining).toBe(false);
    wrapped.train();
    expect(block.isTraining).toBe(true);
    const out = await device.noGrad(() => wrapped.call(device.zeros([1, 3])));
    expect(out.requiresGrad).toBe(false);
  });

  it('reports an output that no gradient can pass, and what the second run throws', async () => {
    const device = makeDevice();
    const wrapped = checkpoint(moduleOf(device, {}, (_, x: Tensor) => sum(mul(x, 2).detach())));
    const x = device.tensor([1, 2], [2], { requiresGrad: true });
    await expect((await wrapped.call(x)).backward()).rejects.toThrow(ActivationCheckpointError);
    let isBroken = false;
    const flaky = moduleOf(device, {}, (_, each: Tensor) => {
      device.random.nextKey();
      if (isBroken) {
        throw new Error('broken');
      }
      return sum(each);
    });
    const out = await checkpoint(flaky).call(x);
    isBroken = true;
    const before = device.random.state();
    await expect(out.backward()).rejects.toThrow('broken');
    expect(device.random.state()).toEqual(before);
    expect(device.isGradEnabled).toBe(true);
  });

  /** Programs that change something of theirs between a forward and its backward. */
  const changes: Record<string, (layers: Module[], x: Tensor) => Promise<Tensor>> = {
    'a list that grows, as in DenseNet': async (layers, x) => {
      const features = [x];
      for (const layer of layers) {
        features.push(await layer.call(features));
      }
      return sum(features.at(-1)!);
    },
    'a state object that is refilled': async (layers, x) => {
      const state = { hidden: x };
      for (const layer of layers) {
        state.hidden = await layer.call(state);
      }
      return sum(state.hidden);
    },
    'the mode, from training to evaluation': async (layers, x) => {
      const loss = sum(await layers[0]!.call([x]));
      layers[0]!.eval();
      return loss;
    },
  };

  it.each(
    Object.keys(changes).flatMap((change) => [
      { change, offloadToCpu: false },
      { change, offloadToCpu: true },
    ]),
  )(
    'gives the gradients of its forward after $change, offloadToCpu $offloadToCpu',
    async ({ change, ...options }) => {
      const gradients = async (wrap: (module: Module) => Module) => {
        const device = makeDevice({ seed: 4 });
        const layers = values(3).map(() => wrap(new Gathering(device)));
        const x = device.tensor(values(6), [2, 3], { requiresGrad: true });
        await device.scope(async () => (await changes[change]!(layers, x)).backward());
        const leaves = [x, ...layers.flatMap((layer) => layer.parameters())];
        return Promise.all(leaves.map(async ({ grad }) => grad && (await read(grad))));
      };
      const bare = await gradients((module) => module);
      expect(await gradients((module) => checkpoint(module, options))).toEqual(bare);
    },
  );

  it('leaves the modes as they are at backward', async () => {
    const device = makeDevice();
    const [layer, other] = [new Gathering(device), new Gathering(device)];
    const model = checkpoint(new Sequential(device, [layer, other]));
    other.eval();
    await device.scope(async () => {
      const out = sum(await model.call([device.zeros([2, 3])]));
      model.train();
      layer.eval();
      await out.backward();
    });
    expect([model, layer, other].map(({ isTraining }) => isTraining)).toEqual([true, false, true]);
  });

  it('refuses running statistics that moved since an evaluation', async () => {
    const device = makeDevice();
    const norm = new BatchNorm1d(device, { numFeatures: 3 }).eval();
    const x = device.tensor(values(6), [2, 3], { requiresGrad: true });
    await device.scope(async () => {
      const out = sum(await checkpoint(norm).call(x));
      await norm.train().call(x);
      await expect(out.backward()).rejects.toThrow("'checkpoint' saved");
    });
  });
});

/** This layer adds up what it is given, a list or a state, and drops half of the result. */
class Gathering extends Module<[given: Tensor[] | { hidden: Tensor } | Tensor], Tensor> {
  readonly linear: Linear;
  readonly dropout: Dropout;

  constructor(device: Device) {
    super(device);
    this.linear = this.child('linear', new Linear(device, { inFeatures: 3, outFeatures: 3 }));
    this.dropout = this.child('dropout', new Dropout(device, { p: 0.5 }));
  }

  async forward(given: Tensor[] | { hidden: Tensor } | Tensor): Promise<Tensor> {
    const tensors = tensorsIn(given);
    const total = tensors.slice(1).reduce((one, other) => add(one, other), tensors[0]!);
    return this.dropout.call(tanh(await this.linear.call(total)));
  }
}

class Pair extends Module {
  readonly linear: Linear;

  constructor(device: Device) {
    super(device);
    this.linear = this.child('linear', new Linear(device, { inFeatures: 3, outFeatures: 3 }));
  }

  async forward(a: Tensor, { b, ids, factor }: { b: Tensor; ids: Tensor; factor: number }) {
    const left = tanh(await this.linear.call(mul(a, factor)));
    return { left, rest: [tanh(add(left, b)), ids], same: b, note: `factor ${factor}` };
  }
}

/** Makes a segment of a model that keeps four activations for backward. */
const segment = (device: Device, dim: number) =>
  moduleOf(
    device,
    { linear: new Linear(device, { inFeatures: dim, outFeatures: dim }) },
    async ({ linear }, x: Tensor) => tanh(tanh(tanh(await linear.call(x)))),
  );

class Held {
  declare readonly x: Tensor;
  declare readonly y: Tensor;
}

/** This module applies a linear map to each tensor in a container, and returns such a container. */
class Through extends Module<[object], object> {
  readonly linear: Linear;
  readonly #hold: (x: Tensor, y: Tensor) => object;

  constructor(device: Device, hold: (x: Tensor, y: Tensor) => object) {
    super(device);
    this.#hold = hold;
    this.linear = this.child('linear', new Linear(device, { inFeatures: 3, outFeatures: 3 }));
  }

  async forward(value: object): Promise<object> {
    const [x, y = x] = tensorsIn(value) as [Tensor, Tensor | undefined];
    return this.#hold(tanh(await this.linear.call(x)), await this.linear.call(y));
  }
}
