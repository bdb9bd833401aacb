// Only one call at a time: a call during an unfinished forward, backward, step or load throws, and
// the unfinished work ends as if that call had not been made.

import { checkpoint, Linear, loadStateDict, Module, Sequential, stateDict } from '@shardweave/nn';
import { OffloadBusyError, OffloadModel, type OffloadOptions } from '@shardweave/offload';
import { Device, mean, square, type Tensor, tanh } from '@shardweave/tensor-core';
import { createReferenceBackend } from '@shardweave/tensor-core/testing';
import { describe, expect, it } from 'vitest';
import { begin, DIM, type Run } from './support/linear-layers.js';

/** Returns the losses of six steps. `between` runs before the third. */
async function losses(options: OffloadOptions, between?: (run: Run) => Promise<void>) {
  const run = begin({ numSlices: 4, ...options });
  const found: number[] = [];
  for (let index = 0; index < 6; index++) {
    if (index === 2) {
      await between?.(run);
    }
    found.push(await run.trainStep(index));
  }
  expect(run.model.hostMemory()).toMatchObject({ stagingBytes: 0, parkedBytes: 0 });
  expect(run.device.memory().live).toMatchObject({ parameter: 0, gradient: 0, optimizer: 0 });
  return found;
}

const busy = (running: string) => ({ name: 'OffloadBusyError', code: 'OFFLOAD_BUSY', running });

describe.each([{ checkpointActivation: true }, { checkpointActivation: false }])('%o', (path) => {
  it('a forward beside a step that nobody awaited', async () => {
    const between = async ({ device, model, optimizer, input, backward }: Run) => {
      await backward(9);
      const stepping = optimizer.step();
      await expect(device.scope(() => model.call(input(0)))).rejects.toMatchObject(
        busy('optimizer.step'),
      );
      await stepping;
      optimizer.zeroGrad();
    };
    const awaited = async ({ optimizer, backward }: Run) => {
      await backward(9);
      await optimizer.step();
      optimizer.zeroGrad();
    };
    expect(await losses(path, between)).toEqual(await losses(path, awaited));
  });

  it('a backward beside a step that nobody awaited', async () => {
    const between = async ({ device, optimizer, lossOf, backward }: Run) => {
      await backward(9);
      await device.scope(async () => {
        const loss = await lossOf(8);
        const stepping = optimizer.step();
        await expect(loss.backward()).rejects.toMatchObject(busy('optimizer.step'));
        await stepping;
      });
      optimizer.zeroGrad();
    };
    const awaited = async ({ optimizer, backward }: Run) => {
      await backward(9);
      await optimizer.step();
      optimizer.zeroGrad();
    };
    expect(await losses(path, between)).toEqual(await losses(path, awaited));
  });

  it('a forward beside a backward that nobody awaited, at each of its turns', async () => {
    const expected = await losses(path);
    for (let turns = 0; turns < 60; turns += 7) {
      const between = async ({ device, model, optimizer, input, lossOf }: Run) => {
        await device.scope(async () => {
          const loss = await lossOf(9);
          let isRunning = true;
          const walking = loss.backward().finally(() => {
            isRunning = false;
          });
          for (let turn = 0; turn < turns && isRunning; turn++) {
            await Promise.resolve();
          }
          if (isRunning) {
            await expect(model.call(input(0))).rejects.toMatchObject(busy('backward'));
          }
          await walking;
        });
        optimizer.zeroGrad();
      };
      expect(await losses(path, between), `after ${turns} turns`).toEqual(expected);
    }
  });

  it('a scope that ends with that error under the backward: the model is right afterwards', async () => {
    const between = async ({ device, optimizer, lossOf }: Run) => {
      let walking: Promise<unknown> = Promise.resolve();
      const failing = device.scope(async () => {
        const loss = await lossOf(9);
        walking = loss.backward().catch(() => undefined); // Its scope ends first.
        await lossOf(0);
      });
      await expect(failing).rejects.toMatchObject(busy('backward'));
      await walking;
      optimizer.zeroGrad();
    };
    expect(await losses(path, between)).toEqual(await losses(path));
  });

  it('a second forward beside the first, which goes on', async () => {
    const between = async ({ device, model, input }: Run) => {
      await device.scope(async () => {
        const first = model.call(input(0));
        await expect(model.call(input(1))).rejects.toMatchObject(busy('forward'));
        expect((await first).shape).toEqual([4, DIM]);
      });
    };
    expect(await losses(path, between)).toEqual(await losses(path));
  });

  it('a step beside a forward or a backward, which go on', async () => {
    const between = async ({ device, model, optimizer, input, backward }: Run) => {
      await backward(9); // These are gradients to step with.
      await device.scope(async () => {
        const calling = model.call(input(0));
        await expect(optimizer.step()).rejects.toMatchObject({ code: 'OPTIMIZER' });
        const walking = mean(square(await calling)).backward();
        await expect(optimizer.step()).rejects.toThrow(
          /^optimizer.step: expected .* at rest, got backward/,
        );
        await walking;
      });
      optimizer.zeroGrad();
    };
    expect(await losses(path, between)).toEqual(await losses(path));
  });
});

it('the message says what runs, what was called and what to do', async () => {
  const { device, model, input } = begin({ numSlices: 4 });
  await device.scope(async () => {
    const first = model.call(input(0));
    const second = model.call(input(1));
    await expect(second).rejects.toThrow(OffloadBusyError);
    await expect(second).rejects.toThrow(
      'call: expected one call of the OffloadModel at a time, got one while its forward runs. Await the earlier call first.',
    );
    await first;
  });
});

it('a second step, a state dict or a commit beside a step', async () => {
  const { device, model, optimizer, backward } = begin({ numSlices: 4 });
  await backward(9);
  const state = await stateDict(model);
  const stepping = optimizer.step();
  await expect(optimizer.step()).rejects.toThrow(
    /^optimizer.step: expected .* at rest, got optimizer.step/,
  );
  await expect(stateDict(model)).rejects.toMatchObject(busy('optimizer.step'));
  await expect(loadStateDict(model, state)).rejects.toMatchObject(busy('optimizer.step'));
  await expect(model.commit()).rejects.toMatchObject(busy('optimizer.step'));
  await stepping;
  const stepped = await stateDict(model);
  expect(stepped).not.toEqual(state);
  const loading = loadStateDict(model, state);
  await expect(model.call(device.zeros([1, DIM]))).rejects.toMatchObject(busy('loadStateDict'));
  await loading;
  expect(await stateDict(model)).toEqual(state);
});

it('checkpointing around the model, around that, and a layer that checkpoints itself, stay calls of its own', async () => {
  const gradients = async (isOffloaded: boolean) => {
    const device = new Device(createReferenceBackend(), { seed: 4 });
    class Inner extends Module<[x: Tensor], Tensor> {
      readonly body = this.child(
        'body',
        checkpoint(new Linear(this.device, { inFeatures: DIM, outFeatures: DIM })),
      );
      async forward(x: Tensor): Promise<Tensor> {
        return tanh(await this.body.call(x));
      }
    }
    const bare = new Sequential<[Tensor], Tensor>(device, [new Inner(device), new Inner(device)]);
    const model: Module<[Tensor], Tensor> = isOffloaded
      ? new OffloadModel(bare, { checkpointActivation: true })
      : bare;
    const x = device.tensor(new Float32Array(2 * DIM).fill(0.3), [2, DIM], { requiresGrad: true });
    await device.scope(async () => {
      const outer = checkpoint(new Sequential<[Tensor], Tensor>(device, [checkpoint(model)]));
      await mean(square(await outer.call(await outer.call(x)))).backward();
    });
    return x.grad!.toArray();
  };
  expect(await gradients(true)).toEqual(await gradients(false));
});
