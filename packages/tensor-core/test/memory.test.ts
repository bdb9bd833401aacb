// Who holds bytes and until when: the ledger by tag, scopes, keep and dispose, storages freed and
// refilled under one identity, and a training step that holds memory flat.

import {
  add,
  crossEntropy,
  Device,
  DisposedError,
  dropout,
  embedding,
  gelu,
  layerNorm,
  linear,
  type MemoryTag,
  matmul,
  mul,
  reshape,
  ShapeError,
  StateError,
  sizeClass,
  square,
  storageBytes,
  sum,
  type Tensor,
  tanh,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import fc from 'fast-check';
import { beforeEach, describe, expect, test } from 'vitest';
import { testedBackends } from './backends.js';

let backend: ReturnType<typeof createReferenceBackend>;
let device: Device;
beforeEach(() => {
  backend = createReferenceBackend();
  device = new Device(backend);
});

const live = (tag: MemoryTag | 'total' = 'total') => device.memory().live[tag];
const pause = () => new Promise((resolve) => setTimeout(resolve, 1));

describe('the ledger', () => {
  test('counts bytes by tag, live and at peak, in whole words', () => {
    const weight = device.zeros([5], { tag: 'parameter', dtype: 'f16' });
    expect(live('parameter')).toBe(12);
    const activation = device.zeros([10]);
    activation.dispose();
    expect(device.memory().live).toMatchObject({ parameter: 12, activation: 0, total: 12 });
    expect(device.memory().peak).toMatchObject({ parameter: 12, activation: 40, total: 52 });
    device.ledger.resetPeak();
    expect(device.memory().peak).toMatchObject({ parameter: 12, activation: 0, total: 12 });
    weight.storage.tag = 'optimizer';
    expect(device.memory().live).toMatchObject({ parameter: 0, optimizer: 12, total: 12 });
    expect(device.memory().peak).toMatchObject({ parameter: 12, optimizer: 12, total: 12 });
    weight.dispose();
    expect(live()).toBe(0);
  });

  test('an absent storage counts nothing, and its tag may change meanwhile', () => {
    const storage = device.storage(8, 'f32', 'gathered');
    expect(live()).toBe(0);
    storage.fill();
    storage.fill();
    expect(live('gathered')).toBe(32);
    storage.free();
    storage.tag = 'staging';
    expect(live()).toBe(0);
    storage.fill();
    expect(live('staging')).toBe(32);
    storage.release();
    expect(live()).toBe(0);
  });

  test('storageBytes is whole words, at least one', () => {
    expect([0, 1, 2, 3].map((count) => storageBytes(count, 'bf16'))).toEqual([4, 4, 4, 8]);
    expect([0, 1, 2, 3].map((count) => storageBytes(count, 'f32'))).toEqual([4, 4, 8, 12]);
  });
});

describe('the pool', () => {
  test('hands freed buffers out again, the oldest first, by size class', () => {
    const [a, b] = [device.zeros([60]), device.zeros([64])];
    const [first, second] = [a.view().buffer, b.view().buffer];
    a.dispose();
    b.dispose();
    expect(device.zeros([1]).view().buffer).toBe(first);
    expect(device.zeros([64]).view().buffer).toBe(second);
    expect(device.memory()).toMatchObject({ bufferCount: 2, reservedBytes: 512 });
    expect(backend.usage()).toEqual({ bytes: 512, buffers: 2 });
  });

  test('trim gives back what is free and keeps what is used', () => {
    const kept = device.zeros([4]);
    device.zeros([1000]).dispose();
    device.pool.trim();
    expect(backend.usage()).toEqual({ bytes: 256, buffers: 1 });
    expect(device.memory()).toMatchObject({ bufferCount: 1, reservedBytes: 256 });
    kept.dispose();
  });

  test('size classes hold the request, waste at most an eighth when large, and are stable', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 2 ** 31 }), (bytes) => {
        const size = sizeClass(bytes);
        expect(size % 4).toBe(0);
        expect(size).toBeGreaterThanOrEqual(bytes);
        expect(size - bytes).toBeLessThan(Math.max(256, bytes / 8 + 1));
        expect(sizeClass(size)).toBe(size);
      }),
    );
  });
});

describe('scopes', () => {
  test('free what is neither returned nor saved, in any container', () => {
    const [a, { b }] = device.scope(() => {
      const made = device.zeros([64]);
      tanh(made);
      return [made, { b: new Map([['x', new Set([square(made)])]]) }] as const;
    });
    expect(live()).toBe(512);
    a.dispose();
    [...b.get('x')!][0]!.dispose();
    expect(live()).toBe(0);
  });

  test('hold what is saved for backward until then, or until the outermost ends', async () => {
    const x = device.tensor([1, 2], [2], { requiresGrad: true });
    await device.scope(async () => {
      const loss = device.scope(() => sum(square(tanh(x)))); // saves tanh's result
      expect(live('activation')).toBe(8 + 4 + 8);
      await loss.backward();
      expect(live('activation')).toBe(8 + 4);
      device.scope(() => {
        sum(square(tanh(x)));
      });
      expect(live('activation')).toBe(8 + 4 + 8);
    });
    expect(live('activation')).toBe(8);
  });

  test('the outermost keeps the graph of what it returns', async () => {
    const x = device.tensor([1, 2], [2], { requiresGrad: true });
    const loss = device.scope(() => {
      sum(tanh(tanh(x))); // a graph that nothing returned needs
      return sum(square(tanh(x)));
    });
    expect(live('activation')).toBe(8 + 4 + 8);
    await loss.backward();
    loss.dispose();
    expect(live('activation')).toBe(8);
  });

  test('nest: what an inner one returns lives until the outer one ends', () => {
    device.scope(() => {
      const x = device.scope(() => device.scope(() => device.zeros([4])));
      expect(live()).toBe(16);
      device.scope(() => x);
      expect(live()).toBe(16);
    });
    expect(live()).toBe(0);
  });

  test('asynchronous ones end when their promise does, also when it rejects', async () => {
    const x = await device.scope(async () => {
      const made = device.zeros([4]);
      await pause();
      tanh(made);
      return device.scope(async () => {
        await pause();
        return square(made);
      });
    });
    expect(live()).toBe(16);
    x.dispose();
    const failing = device.scope(async () => {
      device.zeros([4]);
      await pause();
      throw new Error('inside');
    });
    await expect(failing).rejects.toThrow('inside');
    expect(() =>
      device.scope(() => {
        device.zeros([4]);
        throw new Error('at once');
      }),
    ).toThrow('at once');
    expect(live()).toBe(0);
  });

  test('of two strands throw, free what they held, and the device recovers', async () => {
    let release = () => {};
    const gate = new Promise<void>((resolve) => {
      release = resolve;
    });
    const first = device.scope(async () => {
      device.zeros([4]);
      await gate;
    });
    const second = device.scope(async () => {
      device.zeros([4]);
      await pause();
      return device.zeros([1]);
    });
    release();
    await expect(first).rejects.toThrow(StateError);
    await expect(first).rejects.toThrow(/Two strands/);
    (await second).dispose();
    expect(live()).toBe(0);
    device.scope(() => device.zeros([4]));
    expect(live()).toBe(16);
  });

  test('views hold their storage; returned ones are each disposed on their own', () => {
    const x = device.zeros([6]);
    const y = device.scope(() => reshape(reshape(x, [2, 3]), [3, 2]));
    x.dispose();
    expect(live()).toBe(24);
    y.dispose();
    expect(live()).toBe(0);
    const [a, b] = device.scope(() => {
      const made = device.zeros([6]);
      return [made, reshape(made, [2, 3])];
    });
    a!.dispose();
    expect(live()).toBe(24);
    b!.dispose();
    expect(live()).toBe(0);
    const weight = device.zeros([6]);
    device.scope(() => {
      reshape(weight, [2, 3]);
      return weight; // the caller's already
    });
    weight.dispose();
    expect(live()).toBe(0);
  });
});

describe('keep and dispose', () => {
  test('kept tensors outlive their scope', () => {
    const kept = device.scope(() => {
      const made = device.zeros([4]).keep();
      return { release: () => made.dispose() };
    });
    expect(live()).toBe(16);
    kept.release();
    expect(live()).toBe(0);
  });

  test('dispose inside a scope frees early, and leaves the graph its hold', async () => {
    const x = device.tensor([3], [1], { requiresGrad: true });
    await device.scope(async () => {
      const temporary = device.zeros([4]);
      temporary.dispose();
      temporary.dispose();
      expect(live('activation')).toBe(4);
      const loss = device.scope(() => {
        const y = tanh(x);
        const result = square(y);
        y.dispose();
        return result;
      });
      await loss.backward();
    });
    expect(live('activation')).toBe(4);
  });

  test('a tensor used after it was freed says so', async () => {
    const x = device.zeros([4]);
    x.dispose();
    expect(() => tanh(x)).toThrow(DisposedError);
    await expect(x.toArray()).rejects.toThrow(/tensor\.keep\(\)/);
    expect(() => x.storage.fill()).toThrow(DisposedError);
    const lost = device.scope(() => ({ read: device.zeros([4]).view.bind(device.zeros([1])) }));
    expect(() => lost.read()).toThrow(DisposedError);
  });

  test('device.dispose gives back all buffers, also those of living tensors', async () => {
    const other = new Device(backend);
    const theirs = other.zeros([4]);
    const mine = device.zeros([1000]);
    device.dispose();
    device.dispose();
    expect(device.memory()).toMatchObject({ bufferCount: 0, reservedBytes: 0 });
    expect(live()).toBe(0);
    expect(backend.usage()).toEqual({ bytes: 256, buffers: 1 });
    expect(() => device.zeros([1])).toThrow(DisposedError);
    await expect(mine.toArray()).rejects.toThrow(/device was disposed/);
    mine.dispose();
    expect(live()).toBe(0);
    expect([...(await theirs.toArray())]).toEqual([0, 0, 0, 0]);
  });
});

describe('storage', () => {
  test('freed after forward and refilled before backward gives right gradients', async () => {
    const bytes = (values: readonly number[]) => new Uint8Array(Float32Array.from(values).buffer);
    const storage = device.storage(4, 'f32', 'gathered');
    const x = device.tensor([1, 2], [1, 2], { requiresGrad: true });
    const weight = device.zeros([2, 2], { requiresGrad: true });
    weight.rebind(storage, 0);
    storage.fill();
    storage.write(bytes([1, 2, 3, 4]));
    await device.scope(async () => {
      const loss = device.scope(() => sum(square(matmul(x, weight)))); // x w = [7, 10]
      storage.free();
      expect(live('gathered')).toBe(0);
      expect(() => weight.view()).toThrow(StateError);
      device.zeros([4]); // takes the buffer that was freed
      device.beforeGradientOf(loss, () => {
        storage.fill();
        storage.write(bytes([1, 2, 3, 4]));
      });
      await loss.backward();
    });
    expect([...(await x.grad!.toArray())]).toEqual([14 + 40, 42 + 80]);
    expect([...(await weight.grad!.toArray())]).toEqual([14, 20, 28, 40]);
  });

  test('counts versions at writes, and refuses writes that would clobber a neighbour', () => {
    const storage = device.storage(5, 'f16', 'parameter');
    expect(() => storage.write(new Uint8Array(4))).toThrow(StateError);
    storage.fill();
    storage.write(new Uint8Array(4), 4);
    storage.write(new Uint8Array(2), 8);
    expect(storage.version).toBe(2);
    for (const [length, offset] of [
      [2, 0],
      [4, 2],
      [16, 0],
      [4, -4],
    ] as const) {
      expect(() => storage.write(new Uint8Array(length), offset)).toThrow(ShapeError);
    }
    expect(() => device.zeros([6]).rebind(storage, 0)).toThrow(ShapeError);
  });

  test('further releases do nothing', () => {
    const storage = device.storage(5, 'f16', 'parameter');
    storage.fill();
    storage.retain();
    storage.release();
    expect(live()).toBe(12);
    storage.release();
    storage.release();
    expect(live()).toBe(0);
    expect(storage.holds).toBe(0);
    expect(() => storage.retain()).toThrow(DisposedError);
  });
});

const [vocab, dim, rows] = [11, 6, 4];

/** A small language model with a tied head, stepped by hand-written SGD. */
function makeStep(device: Device): () => Promise<number> {
  const parameter = (shape: readonly number[], value: number) =>
    device.full(shape, value, { requiresGrad: true, tag: 'parameter' });
  const table = device.tensor(
    Array.from({ length: vocab * dim }, (_, i) => Math.sin(i)),
    [vocab, dim],
    { requiresGrad: true, tag: 'parameter' },
  );
  const scale = parameter([dim], 1);
  const shift = parameter([dim], 0);
  const weight = parameter([dim, dim], 0.1);
  const bias = parameter([dim], 0.01);
  const parameters = [table, scale, shift, weight, bias];
  return () =>
    device.scope(async () => {
      const ids = device.tensor(Int32Array.from({ length: rows }, (_, i) => (3 * i) % vocab));
      const targets = device.tensor(Int32Array.from({ length: rows }, (_, i) => (i + 1) % vocab));
      const block = (x: Tensor) =>
        device.scope(() => {
          const hidden = gelu(
            linear(layerNorm(x, { weight: scale, bias: shift }), { weight, bias }),
          );
          return add(x, dropout(hidden, 0.1));
        });
      const x = block(block(embedding(table, ids)));
      const loss = crossEntropy(matmul(x, table, { transposeB: true }), targets);
      await loss.backward();
      for (const leaf of parameters) {
        device.noGrad(() => device.addInPlace(leaf, mul(leaf.grad!, -0.1)));
        leaf.grad!.dispose();
        leaf.grad = undefined;
      }
      return loss.item();
    });
}

describe.each(await testedBackends())('a training step on $name', ({ reason, open }) => {
  test.skipIf(reason !== undefined)(
    'allocates nothing new from its second repetition on, over 100 of them',
    async () => {
      const real = await open();
      const rank = new Device(real);
      const step = makeStep(rank);
      const atRest = rank.memory().live;
      const losses = [await step()];
      const { bufferCount, reservedBytes, peak } = rank.memory();
      const usage = real.usage();
      for (let i = 1; i < 100; i++) {
        rank.ledger.resetPeak();
        losses.push(await step());
        expect(rank.memory()).toEqual({ live: atRest, peak, bufferCount, reservedBytes });
      }
      expect(real.usage()).toEqual(usage);
      expect(losses.at(-1)!).toBeLessThan(losses[0]! / 2);
      rank.dispose();
      expect(real.usage()).toEqual({ bytes: 0, buffers: 0 });
      await real.dispose();
    },
  );
});

test('a training step queues the same kernels on the same buffers every time', async () => {
  const step = makeStep(device);
  const calls: string[] = [];
  const { run } = backend;
  backend.run = (kernel, call) => {
    const ids = Object.values(call).map((value) => value?.buffer?.id ?? '');
    calls.push(`${kernel} ${ids.join(' ')}`);
    run.call(backend, kernel, call);
  };
  const recorded = async () => {
    calls.length = 0;
    await step();
    return [...calls];
  };
  await recorded();
  const second = await recorded();
  expect(await recorded()).toEqual(second);
  expect(await recorded()).toEqual(second);
});
