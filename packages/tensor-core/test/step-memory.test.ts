// A training step keeps memory constant: every step runs the same kernels on the same buffers.

import {
  add,
  crossEntropy,
  Device,
  dropout,
  embedding,
  gelu,
  layerNorm,
  linear,
  matmul,
  mul,
  type Tensor,
} from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, test } from 'vitest';
import { testedBackends } from './support/backends.js';

const [vocab, dim, rows] = [11, 6, 4];

/** Makes a step of a small language model with a tied head, with SGD written by hand. */
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
  const backend = createReferenceBackend();
  const step = makeStep(new Device(backend));
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
