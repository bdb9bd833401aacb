// These tests hold the engine to its promises about gradients: which leaves get them, what a
// backward leaves behind, and what a failing one does.

import {
  add,
  cat,
  Device,
  div,
  GraphError,
  layerNorm,
  linear,
  matmul,
  maximum,
  mul,
  pow,
  reshape,
  ShapeError,
  StateError,
  softmax,
  square,
  sum,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { beforeEach, describe, expect, test } from 'vitest';

let device: Device;
let log: string[];
beforeEach(() => {
  device = new Device(createReferenceBackend());
  log = [];
});

function leaf(values: readonly number[], shape: readonly number[] = [values.length]): Tensor {
  return device.tensor(values, shape, { requiresGrad: true });
}

async function gradOf(tensor: Tensor): Promise<number[]> {
  return [...(await tensor.grad!.toArray())];
}

const live = () => device.memory().live;

describe('gradients of leaves', () => {
  test('gradients of several uses add up, through results and directly', async () => {
    const x = leaf([1, 2]);
    await device.scope(() => sum(add(mul(x, x), add(x, mul(x, 3)))).backward());
    expect(await gradOf(x)).toEqual([6, 8]); // The sum is x^2 + 4x.
  });

  test('accumulate until cleared', async () => {
    const x = leaf([1, 2]);
    const step = () => device.scope(() => sum(square(x)).backward());
    await step();
    await step();
    expect(await gradOf(x)).toEqual([4, 8]);
    x.grad!.dispose();
    x.grad = undefined;
    await step();
    expect(await gradOf(x)).toEqual([2, 4]);
  });

  test('come from several forwards before their backwards, in any order', async () => {
    const x = leaf([3]);
    await device.scope(async () => {
      const first = mul(x, x);
      const second = mul(x, 10);
      await second.backward();
      expect(await gradOf(x)).toEqual([10]);
      await first.backward();
    });
    expect(await gradOf(x)).toEqual([16]);
  });

  test('gradients of a pass-through shared by two leaves are not aliased', async () => {
    const x = leaf([1, 1]);
    const y = leaf([2, 2]);
    const other = leaf([5, 5]);
    // Because of the product, the gradient that add passes to both leaves is a result of its own.
    await device.scope(() => sum(mul(add(x, y), 3)).backward());
    expect(x.grad!.storage).not.toBe(y.grad!.storage);
    // This adds in place to the gradient of x alone.
    await device.scope(() => sum(mul(x, other)).backward());
    expect(await gradOf(x)).toEqual([8, 8]);
    expect(await gradOf(y)).toEqual([3, 3]);
  });

  test('are right where a rule returns one tensor for several inputs', async () => {
    const x = leaf([1]);
    const y = leaf([1]);
    await device.scope(() => {
      const out = device.zeros([1]);
      device.record({
        name: 'shared',
        inputs: [x, x, y],
        outputs: [out],
        saved: [],
        backward: ([dy]) => [dy, dy, dy],
      });
      return sum(mul(out, 2)).backward();
    });
    expect([await gradOf(x), await gradOf(y)]).toEqual([[4], [2]]);
  });

  test('own their bytes: a tensor that the rule keeps is copied', async () => {
    const x = leaf([1]);
    const mine = device.tensor([7]); // This tensor is made outside of any scope.
    await device.scope(() => {
      const out = device.zeros([1]);
      const backward = () => [mine];
      device.record({ name: 'mine', inputs: [x], outputs: [out], saved: [], backward });
      return out.backward();
    });
    expect(x.grad!.storage).not.toBe(mine.storage);
    expect(mine.storage.tag).toBe('activation');
  });

  test('are a copy of the seed where the leaf itself is the root', async () => {
    const x = leaf([1, 2]);
    const seed = device.tensor([5, 6]);
    await x.backward({ gradient: seed });
    seed.dispose();
    expect(await gradOf(x)).toEqual([5, 6]);
  });

  test('an explicit gradient is converted to the root and must have its shape', async () => {
    const x = leaf([1, 2]);
    await device.scope(async () => {
      const half = device.tensor([2, 4], [2], { dtype: 'f16' });
      await mul(x, 3).backward({ gradient: half });
      const wrong = mul(x, 3);
      await expect(wrong.backward({ gradient: device.zeros([1, 2]) })).rejects.toThrow(ShapeError);
      await expect(wrong.backward()).rejects.toThrow(/one-element tensor.*\[2\]/);
    });
    expect(await gradOf(x)).toEqual([6, 12]);
  });

  test('an output that nothing uses gives its leaves no gradient, only their event', async () => {
    const x = leaf([1]);
    const y = leaf([1]);
    device.autograd.onGradientFinal(y, () => {
      log.push('y');
    });
    await device.scope(() => {
      const used = device.zeros([1]);
      const unused = device.zeros([1]);
      device.record({
        name: 'pair',
        inputs: [x, mul(y, 2)],
        outputs: [used, unused],
        saved: [],
        backward: ([toUsed, toUnused]) => [toUsed, toUnused],
      });
      return used.backward();
    });
    expect(await gradOf(x)).toEqual([1]);
    expect(y.grad).toBeUndefined();
    expect(log).toEqual(['y']);
  });

  test('gradients of another shape than the input are refused, with the rule named', async () => {
    const x = leaf([1, 2]);
    await device.scope(async () => {
      const out = device.zeros([]);
      const backward = () => [device.zeros([3])];
      device.record({ name: 'bad', inputs: [x], outputs: [out], saved: [], backward });
      await expect(out.backward()).rejects.toThrow(/'bad' to give input 0 .*\[2\], got \[3\]/);
    });
  });
});

/** The names of the operands that kernels write. */
const RESULTS = ['out', 'dx', 'dWeight', 'dBias', 'aSums', 'bSums'];

describe('frozen inputs', () => {
  const make = (shape: readonly number[], at: number) =>
    device.tensor(
      Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, i) => 1.5 + Math.sin(at + i)),
      shape,
    );

  test.each<[string, readonly (readonly number[])[], (inputs: readonly Tensor[]) => Tensor]>([
    ['linear', [[3, 4], [4, 2], [2]], ([x, weight, bias]) => linear(x!, { weight: weight!, bias })],
    [
      'layerNorm',
      [[3, 4], [4], [4]],
      ([x, weight, bias]) => layerNorm(x!, { weight: weight!, bias: bias! }),
    ],
    ['layerNorm without weight', [[3, 4], [4]], ([x, bias]) => layerNorm(x!, { bias: bias! })],
    [
      'matmul',
      [
        [3, 4],
        [4, 2],
      ],
      ([a, b]) => matmul(a!, b!),
    ],
    ['mul', [[3, 4], [4]], ([a, b]) => mul(a!, b!)],
    ['div', [[3, 4], [4]], ([a, b]) => div(a!, b!)],
    ['pow', [[3, 4], [4]], ([a, b]) => pow(a!, b!)],
    ['maximum', [[3, 4], [4]], ([a, b]) => maximum(a!, b!)],
    [
      'cat',
      [
        [1, 4],
        [2, 4],
      ],
      (inputs) => cat(inputs, { axis: 0 }),
    ],
  ])(
    'frozen inputs of %s get no gradient, cost nothing and change no other',
    async (_, shapes, op) => {
      // This counts the outputs that kernels were asked for, since one kernel may make several
      // gradients.
      let numResults = 0;
      const gradientsFor = async (trained: readonly boolean[]) => {
        const inputs = shapes.map((shape, i) => make(shape, i));
        inputs.forEach((input, i) => {
          input.requiresGrad = trained[i]!;
        });
        const { run } = device.backend;
        numResults = 0;
        device.backend.run = (kernel, call, scratch) => {
          const views: Readonly<Record<string, unknown>> = { ...call };
          numResults += RESULTS.filter((name) => views[name] !== undefined).length;
          run.call(device.backend, kernel, call, scratch);
        };
        try {
          await device.scope(() => sum(square(op(inputs))).backward());
        } finally {
          device.backend.run = run;
        }
        return Promise.all(inputs.map((input) => input.grad && gradOf(input)));
      };
      const all = await gradientsFor(shapes.map(() => true));
      expect(all).not.toContain(undefined);
      const numForAll = numResults;
      for (let mask = 1; mask < 2 ** shapes.length; mask++) {
        const trained = shapes.map((_, i) => ((mask >> i) & 1) === 1);
        const expected = all.map((gradient, i) => (trained[i] ? gradient : undefined));
        expect(await gradientsFor(trained)).toEqual(expected);
        if (trained.filter(Boolean).length === 1) {
          expect(numResults).toBeLessThan(numForAll);
        }
      }
    },
  );

  test("gradients reach a rule in its output's dtype, whatever the ops after it were", async () => {
    const x = device.tensor([1, 2], [2], { dtype: 'f16', requiresGrad: true });
    await device.scope(() => {
      const half = device.full([2], 1, { dtype: 'f16' });
      device.record({
        name: 'probe',
        inputs: [x],
        outputs: [half],
        saved: [],
        backward: ([dy]) => {
          log.push(dy!.dtype);
          return [dy];
        },
      });
      return sum(mul(half, device.full([3, 2], 2))).backward(); // f16 times f32 gives f32.
    });
    expect(log).toEqual(['f16']);
    expect(await gradOf(x)).toEqual([6, 6]);
  });
});

describe('graphs', () => {
  test('are freed as backward passes', async () => {
    const x = leaf(new Array(64).fill(0.5));
    const sizes: number[] = [];
    const loss = device.scope(() => {
      let y = x;
      for (let i = 0; i < 8; i++) {
        y = tanh(y);
        device.beforeGradientOf(y, () => {
          sizes.push(live().total);
        });
      }
      return sum(y);
    });
    await loss.backward();
    // Each node frees one saved activation of 256 bytes.
    const steps = sizes.slice(1).map((size, i) => sizes[i]! - size);
    expect(steps.slice(1)).toEqual(new Array(6).fill(256));
    loss.dispose();
    expect(live().total).toBe(x.storage.byteLength + x.grad!.storage.byteLength);
  });

  test('a second backward is an error, with retainGraph it is not', async () => {
    const x = leaf([3]);
    await device.scope(async () => {
      const y = square(x);
      await y.backward({ retainGraph: true });
      await y.backward();
      expect(await gradOf(x)).toEqual([12]);
      await expect(y.backward()).rejects.toThrow(GraphError);
      await expect(y.backward()).rejects.toThrow(/'square'.*retainGraph: true/);
      // A graph that shares a freed part fails as well.
      const shared = tanh(x);
      await square(shared).backward();
      await expect(mul(shared, 2).backward()).rejects.toThrow(/'tanh'/);
    });
  });

  test('are not recorded under noGrad or from plain tensors; enableGrad records again', async () => {
    const x = leaf([3]);
    await device.scope(async () => {
      const y = await device.noGrad(async () => {
        await Promise.resolve();
        expect(device.autograd.enableGrad(() => square(x)).requiresGrad).toBe(true);
        return square(x);
      });
      expect(y.origin).toBeUndefined();
      await expect(y.backward()).rejects.toThrow(GraphError);
      expect(square(device.zeros([1])).requiresGrad).toBe(false);
      expect(() =>
        device.noGrad(() => {
          throw new Error('inside');
        }),
      ).toThrow('inside');
      expect(device.isGradEnabled).toBe(true);
    });
  });

  test('detach cuts; views and joins carry gradients', async () => {
    const x = leaf([1, 2, 3, 4]);
    await device.scope(() => sum(mul(reshape(x, [2, 2]), reshape(x.detach(), [2, 2]))).backward());
    expect(await gradOf(x)).toEqual([1, 2, 3, 4]);
  });

  test('grad modes of two strands that interleave throw, and the mode recovers', async () => {
    let release = () => {};
    const gate = new Promise<void>((resolve) => {
      release = resolve;
    });
    const first = device.noGrad(() => gate);
    const second = device.autograd.enableGrad(
      () => new Promise((resolve) => setTimeout(resolve, 5)),
    );
    release();
    await expect(first).rejects.toThrow(StateError);
    await second;
    expect(device.isGradEnabled).toBe(true);
  });

  test('a linear layer equals the product and the sum that it fuses', async () => {
    const [x, weight, bias] = [
      leaf([1, 2, 3, 4], [2, 2]),
      leaf([5, 6, 7, 8], [2, 2]),
      leaf([1, 1]),
    ];
    await device.scope(() => sum(square(linear(x, { weight, bias }))).backward());
    const fused = await Promise.all([x, weight, bias].map(gradOf));
    for (const tensor of [x, weight, bias]) {
      tensor.grad!.dispose();
      tensor.grad = undefined;
    }
    await device.scope(() => sum(square(add(matmul(x, weight), bias))).backward());
    expect(await Promise.all([x, weight, bias].map(gradOf))).toEqual(fused);
  });
});

describe('values changed in place after an op saved them', () => {
  const full = (value: number, shape: readonly number[] = [2]) => device.full(shape, value);
  /** Programs whose gradients would be of the new values, and what the error of each says. */
  const programs: Record<string, () => Promise<void>> = {
    "'mul' saved.*'y' f32 \\[2\\], which addInPlace": () => {
      const [x, y] = [leaf([1, 2]), full(5)];
      y.name = 'y';
      const z = sum(mul(x, y));
      device.addInPlace(y, full(100));
      return z.backward();
    },
    "'square' saved.*a tensor f32 \\[2\\], which addInPlace": () => {
      const h = mul(leaf([1, 2]), 2);
      const s = sum(square(h));
      device.addInPlace(h, full(10));
      return s.backward();
    },
    "'softmax' saved.*which copyInto": () => {
      const probabilities = softmax(leaf([1, 2]));
      device.copyInto(probabilities, full(9));
      return sum(mul(probabilities, full(1))).backward();
    },
    "'linear' saved.*'weight' f32 \\[2, 2\\], which storage.write": () => {
      const [x, weight] = [leaf([1, 2], [1, 2]), leaf([1, 2, 3, 4], [2, 2])];
      weight.name = 'weight';
      const loss = sum(linear(x, { weight }));
      weight.storage.write(new Uint8Array(4), 12);
      return loss.backward();
    },
    "'linear' saved.*'weight'.*AdamW.step": async () => {
      const [x, weight] = [leaf([1, 2], [1, 2]), leaf([1, 2, 3, 4], [2, 2])];
      weight.name = 'weight';
      const loss = sum(linear(x, { weight }));
      await loss.backward({ retainGraph: true });
      weight.storage.markWritten('AdamW.step');
      await loss.backward();
    },
  };

  test.each(Object.keys(programs))('are refused by name: %s', async (message) => {
    await device.scope(async () => {
      const failed = programs[message]!();
      await expect(failed).rejects.toThrow(GraphError);
      await expect(failed).rejects.toThrow(new RegExp(`^backward: expected what ${message}`));
    });
  });

  test('are refused only where they lie: other elements of the storage may change', async () => {
    const storage = device.storage(6, 'f32', 'parameter');
    storage.fill();
    storage.write(new Uint8Array(Float32Array.of(1, 2, 3, 4, 5, 6).buffer));
    const [before, saved, after] = [0, 2, 4].map((offset) => {
      const part = device.zeros([2], { requiresGrad: true });
      part.rebind(storage, offset);
      return part;
    }) as [Tensor, Tensor, Tensor];
    const x = leaf([1, 1]);
    await device.scope(async () => {
      const loss = sum(mul(x, saved));
      device.copyInto(before, full(9));
      device.addInPlace(after, full(9));
      await loss.backward({ retainGraph: true });
      expect(await gradOf(x)).toEqual([3, 4]);
      storage.write(new Uint8Array(8), 4); // its first element, and the last of the part before
      device.copyInto(before, full(9)); // which does not make the first element whole again
      await expect(loss.backward()).rejects.toThrow(GraphError);
    });
  });

  test('may be brought back by refill, and then count as changed where they rest', async () => {
    const bytes = new Uint8Array(Float32Array.of(3, 4).buffer);
    const x = leaf([1, 1]);
    const y = full(0);
    y.storage.write(bytes);
    await device.scope(async () => {
      const loss = sum(mul(x, y));
      y.storage.free();
      y.storage.fill();
      await y.storage.refill(async () => y.storage.write(bytes));
      await loss.backward({ retainGraph: true });
      expect(await gradOf(x)).toEqual([3, 4]);
      y.storage.markOutdated('Sgd.step', [{ start: 1, length: 1 }]);
      await expect(loss.backward()).rejects.toThrow('which Sgd.step changed in place since');
    });
  });

  test('leave a graph made after the change alone, and a failing one its own holds', async () => {
    const x = leaf([1, 2]);
    const y = full(5);
    await device.scope(async () => {
      const old = sum(mul(x, y));
      device.copyInto(y, full(7));
      const fresh = sum(mul(x, y));
      await expect(old.backward()).rejects.toThrow(GraphError);
      await fresh.backward();
      expect(await gradOf(x)).toEqual([7, 7]);
    });
    expect(y.storage.holds).toBe(1);
  });
});
