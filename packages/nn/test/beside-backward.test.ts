// Calls beside a backward that nobody awaited would train nothing, or read half of its gradients.
// They are refused, and the backward ends whole.

import { piecesIn } from '@shardweave/checkpoint';
import {
  AdamW,
  captureCheckpoint,
  checkpoint,
  clipGradNorm,
  GradScaler,
  gradNorm,
  Linear,
  OptimizerError,
  packParameters,
  saveCheckpoint,
  scaleGradients,
  stateDict,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import { mean, StateError, square } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { errorOf } from '../../../tooling/test-kit/index.ts';
import { makeDevice, read } from './support/support.js';

function layer({ isPacked = false } = {}) {
  const device = makeDevice();
  const model = new Linear(device, { inFeatures: 2, outFeatures: 2 });
  const handle = isPacked ? packParameters(model) : undefined;
  return { device, model, handle, optimizer: new AdamW(model.parameters()) };
}

const STORE = piecesIn(createHostStore());

describe.each([{ isPacked: false }, { isPacked: true }])('with isPacked $isPacked', (how) => {
  /** Calls beside a backward that nobody awaited, which then ends. */
  async function beside(call: (run: ReturnType<typeof layer>) => Promise<unknown>) {
    const run = layer(how);
    const { device, model } = run;
    const values = () => Promise.all(model.parameters().map(read));
    const before = await values();
    let error: Error | undefined;
    await device.scope(async () => {
      const loss = mean(square(await model.call(device.full([1, 2], 1))));
      const running = loss.backward();
      error = await errorOf(() => call(run));
      await running;
    });
    expect(await values()).toEqual(before);
    await run.optimizer.step();
    expect(await values()).not.toEqual(before); // The backward has ended whole.
    return error;
  }

  it.each<[string, (run: ReturnType<typeof layer>) => Promise<unknown>]>([
    ['optimizer.step', ({ optimizer }) => optimizer.step()],
    ['optimizer.stateDict', ({ optimizer, model }) => optimizer.stateDict(model.namedParameters())],
    ['clipGradNorm', ({ model }) => clipGradNorm(model, 1)],
    ['clipGradNorm', ({ model }) => clipGradNorm(model.parameters(), 1)],
    ['gradNorm', ({ model }) => gradNorm(model)],
    ['scaleGradients', ({ model, device }) => scaleGradients(model, device.full([1], 1))],
    ['unscale', ({ model, optimizer }) => new GradScaler(model).unscale(optimizer)],
    ['saveCheckpoint', ({ model }) => saveCheckpoint(model, STORE)],
    ['captureCheckpoint', async ({ model }) => (await captureCheckpoint(model)).release()],
    ['stateDict', ({ model }) => stateDict(model)],
  ])(
    '%s beside a backward that nobody awaited is refused, and that one ends whole',
    async (name, call) => {
      const error = await beside(call);
      expect(error).toBeInstanceOf(OptimizerError);
      expect(error!.message).toMatch(
        new RegExp(`^${name}: .* at rest, got backward under way\\. Await it first: await loss`),
      );
    },
  );

  it('a forward beside it is refused, for it would have no graph', async () => {
    const error = await beside(({ model, device }) => model.call(device.full([1, 2], 1)));
    expect(error).toBeInstanceOf(StateError);
    expect(error!.message).toBe(
      'Linear.call: expected the backward before it to have ended, got one that is running. Await it: await loss.backward().',
    );
  });
});

it('a checkpoint runs its module again within a backward', async () => {
  const { device, model } = layer();
  await device.scope(async () => {
    await mean(await checkpoint(model).call(device.full([1, 2], 1))).backward();
  });
  expect(await gradNorm(model)).toBeGreaterThan(0);
});

it('a hook of the backward may step, read a norm and run a forward, for it is no call beside it', async () => {
  const { device, model, optimizer } = layer();
  const [weight] = model.parameters();
  const before = await read(weight!);
  const norms: number[] = [];
  device.autograd.onGradientFinal(weight!, (_, pass) => {
    pass.onEnd(async () => void norms.push(await gradNorm(model)));
    pass.onEnd(async () => void (await device.noGrad(() => model.call(device.full([1, 2], 1)))));
    return optimizer.step();
  });
  await device.scope(async () => {
    await mean(square(await model.call(device.full([1, 2], 1)))).backward();
  });
  expect(await read(weight!)).not.toEqual(before);
  expect(norms).toEqual([await gradNorm(model)]);
});
