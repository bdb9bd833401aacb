// Training with offload gives the same as training without it.

import type { OffloadModel } from '@shardweave/offload';
import { createHostStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import { type Backend, crossEntropy, type Tensor } from '@shardweave/tensor-core';
import { createCpuBackend } from '@shardweave/tensor-core/cpu';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { begin, losses, type Run, tokens } from './support/training.js';

const STEPS = process.env.SHARDWEAVE_LONG === '1' ? 20 : 8;

let backend: Backend;
beforeAll(async () => {
  backend = await createCpuBackend({ threads: 1 });
});
afterAll(() => backend.dispose());

const STORES = {
  host: async () => createHostStore(),
  disk: async () => openDiskStore({ directory: await newFolder() }),
};

describe.each(['host', 'disk'] as const)('on the %s store', (tier) => {
  it.each([true, false])('losses are equal bit for bit, checkpointing %s', async (isOn) => {
    const plain = await losses(begin({ backend }), STEPS);
    const store = await STORES[tier]();
    const run = begin({ backend, offload: { store, numSlices: 3, checkpointActivation: isOn } });
    expect(await losses(run, STEPS)).toEqual(plain);
    run.optimizer.dispose();
    run.model.dispose();
    expect(run.device.memory().live.total).toBe(0);
    await store.close();
  });
});

describe.each([2, 3, 8])('%i micro-batches', (numMicrobatches) => {
  it.each([true, false])(
    'losses with dropout to 2e-6, checkpointing %s',
    async (checkpointActivation) => {
      const plain = await losses(begin({ backend }), STEPS, 8);
      const run = begin({ backend, offload: { numMicrobatches, checkpointActivation } });
      const offloaded = await losses(run, STEPS, 8);
      offloaded.forEach((loss, step) => {
        expect(Math.abs(loss - plain[step]!) / plain[step]!, `step ${step}`).toBeLessThan(2e-6);
      });
    },
  );
});

it('tied first and last layers are one flat, stepped once', async () => {
  const plain = await losses(begin({ backend }), 3);
  const run = begin({ backend, offload: { numSlices: 5 } });
  const model = run.model as OffloadModel;
  const users = model.slices.filter((names) => names.includes('0') || names.includes('4'));
  expect(users.length).toBe(2);
  expect(await losses(run, 3)).toEqual(plain);
  const steps = model.flats.map(({ home }) => home.states.step);
  expect(steps).toEqual(model.flats.map(() => 3));
});

it.each([true, false])(
  'accumulation, dropout and evaluations in between: bit for bit, checkpointing %s',
  async (checkpointActivation) => {
    const train = async (run: Run) => {
      const { device, model, optimizer } = run;
      const logits = (step: number, rows: number) => {
        const { ids } = tokens(step, rows);
        return model.call(device.tensor(ids, [rows, 8])) as Promise<Tensor>;
      };
      const found: number[][] = [];
      for (let step = 0; step < 3; step++) {
        for (const part of [0, 1]) {
          await device.scope(async () => {
            device.random.begin({ step, rowOffset: 2 * part });
            const { targets } = tokens(2 * step + part, 2);
            const loss = crossEntropy(
              await logits(2 * step + part, 2),
              device.tensor(targets, [2, 8]),
            );
            if (part === 1) {
              await device.noGrad(() => logits(9, 3)); // This runs between forward and backward.
            }
            await loss.backward();
            found.push([await loss.item()]);
          });
        }
        await optimizer.step();
        optimizer.zeroGrad();
        model.eval();
        await device.noGrad(() =>
          device.scope(async () => found.push([...(await (await logits(7, 1)).toArray())])),
        );
        model.train();
      }
      return found;
    };
    const plain = await train(begin({ backend }));
    const offloaded = await train(begin({ backend, offload: { checkpointActivation } }));
    expect(offloaded).toEqual(plain);
  },
);
