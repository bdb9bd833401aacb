import {
  CheckpointError,
  checkpoint,
  Gpt2,
  Gpt2Block,
  Linear,
  Module,
  packParameters,
} from '@shardweave/nn';
import {
  add,
  crossEntropy,
  type Device,
  mul,
  sum,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { makeDevice, read, values } from './support.js';

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
    if (layer instanceof Gpt2Block) model.replaceChild(name, checkpoint(layer));
  }
}

/** Loss, gradients by name and what the forward left alive, of one step of a small GPT-2. */
async function step(options: { isCheckpointed: boolean; isPacked?: boolean }) {
  const device = makeDevice({ seed: 11 });
  const model = new Gpt2(device, CONFIG, { seed: 2 });
  const names = model.namedParameters().map(([name]) => name);
  if (options.isCheckpointed) wrapBlocks(model);
  expect(model.namedParameters().map(([name]) => name)).toEqual(names);
  const packed = options.isPacked === true ? packParameters(model) : undefined;
  const finals = new Map<string, number>();
  for (const [name, parameter] of model.namedParameters()) {
    device.onGradientFinal(parameter, () => {
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
    ? [await read(packed.flat.grad!)]
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
    // A block keeps about 18 times its input (attention weights not counted).
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
      expect(leaves.every(({ isLeaf }) => isLeaf)).toBe(true);
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
      device.onGradientFinal(linear.weight, () => {
        finals += 1;
      });
      const x = device.tensor(values(6), [2, 3], { requiresGrad: true });
      await sum(tanh(await module.call(tanh(await module.call(x))))).backward();
      expect(finals).toBe(1);
      return Promise.all([x, ...linear.parameters()].map(({ grad }) => read(grad!)));
    };
    expect(await run(true)).toEqual(await run(false));
  });

  it('nests', async () => {
    const run = async (wrap: (module: Linear) => Module<[Tensor], Tensor>) => {
      const device = makeDevice();
      const linear = new Linear(device, { inFeatures: 3, outFeatures: 3 });
      await sum(await wrap(linear).call(device.tensor(values(6), [2, 3]))).backward();
      return read(linear.weight.grad!);
    };
    const twice = await run((linear) => checkpoint(checkpoint(linear)));
    expect(twice).toEqual(await run((linear) => linear));
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
    const wrapped = checkpoint(new Detached(device));
    const x = device.tensor([1, 2], [2], { requiresGrad: true });
    await expect((await wrapped.call(x)).backward()).rejects.toThrow(CheckpointError);
    const flaky = new Flaky(device);
    const out = await checkpoint(flaky).call(x);
    flaky.isBroken = true;
    const before = device.random.state();
    await expect(out.backward()).rejects.toThrow('broken');
    expect(device.random.state()).toEqual(before);
    expect(device.isGradEnabled).toBe(true);
  });
});

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

class Detached extends Module<[Tensor], Tensor> {
  forward(x: Tensor): Tensor {
    return sum(mul(x, 2).detach());
  }
}

class Flaky extends Module<[Tensor], Tensor> {
  isBroken = false;

  forward(x: Tensor): Tensor {
    this.device.random.nextKey();
    if (this.isBroken) throw new Error('broken');
    return sum(x);
  }
}
