// On the disk tier, a kill in the middle of a step leaves the step before it whole, and a full disk
// loses nothing.

import { join } from 'node:path';
import type { OffloadModel } from '@shardweave/offload';
import { nodeFiles, openDiskStore } from '@shardweave/shard-store/node';
import { diskFull, interceptFiles } from '@shardweave/shard-store/testing-node';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { bundle, RunningProgram } from '../../../tooling/test-kit/processes.ts';
import { begin, losses, type Run, trainStep } from './support/training.js';

let folder = '';
beforeAll(async () => {
  folder = newFolder();
});

/** Returns the losses of `steps` steps, resumed from what the directory holds. */
async function resumed(directory: string, steps: number) {
  const store = await openDiskStore({ directory });
  const run = begin({ offload: { store, resume: true } });
  const model = run.model as OffloadModel;
  await model.moveToStore();
  const first = model.numSteps;
  const found: number[] = [];
  for (let step = first; step < first + steps; step++) {
    found.push(await trainStep(run, step));
  }
  await store.close();
  return { first, losses: found };
}

describe('a process that is killed in the middle of a step', () => {
  // The move into the store and each of the first steps take some 60 writes, so these kills come in
  // the first three steps.
  it.each(process.env.SHARDWEAVE_LONG === '1' ? [90, 141, 200] : [141])(
    'goes on from the step before, killed at write %i',
    async (numWrites) => {
      const program = await bundle(new URL('support/killed-process.ts', import.meta.url));
      const directory = join(folder, String(numWrites));
      const { signal, printed } = await new RunningProgram(program, [directory, String(numWrites)])
        .ended;
      expect(signal).toBe('SIGKILL');
      const numDone = printed.length;
      const { first, losses: found } = await resumed(directory, 2);
      expect(first).toBe(numDone);
      expect(found).toEqual((await losses(begin(), first + 2)).slice(first));
    },
  );
});

it('a disk that is full in backward fails it, and once there is room training goes on bit for bit', async () => {
  const expected = await losses(begin(), 5);
  let isFull = false;
  const files = interceptFiles(({ operation }) => {
    if (isFull && operation === 'write') {
      throw diskFull('a file');
    }
  }, nodeFiles);
  const store = await openDiskStore({ directory: join(folder, 'full'), files });
  const run: Run = begin({ offload: { store } });
  const found = await losses(run, 2);
  isFull = true;
  // The backward's gradients are the first writes that find no room.
  const failing = trainStep(run, 2);
  await expect(failing).rejects.toMatchObject({ code: 'FULL' });
  isFull = false;
  run.optimizer.zeroGrad();
  for (const step of [2, 3, 4]) {
    found.push(await trainStep(run, step));
  }
  expect(found).toEqual(expected);
  await store.close();
});

it('a disk that is full in optimizer.step() fails it, and a flush puts the step at rest', async () => {
  const directory = join(folder, 'full in step');
  let isFull = false;
  const files = interceptFiles(({ operation }) => {
    if (isFull && operation === 'write') {
      throw diskFull('a file');
    }
  }, nodeFiles);
  const store = await openDiskStore({ directory, files });
  const run = begin({ offload: { store } });
  const model = run.model as OffloadModel;
  const found = await losses(run, 2);
  const step = run.optimizer.step.bind(run.optimizer);
  run.optimizer.step = (options) => {
    isFull = true;
    return step(options);
  };
  await expect(trainStep(run, 2)).rejects.toMatchObject({ code: 'FULL' });
  run.optimizer.step = step;
  const before = store.generation;
  // This finishes the step first.
  await expect(model.commit()).rejects.toMatchObject({ code: 'FULL' });
  expect(store.generation).toBe(before);
  isFull = false;
  await model.flush();
  expect(store.generation).toBe(before + 2); // The step makes a generation, and so does the flush.
  await store.close();
  const rest = await resumed(directory, 2);
  expect([...found, ...rest.losses]).toEqual((await losses(begin(), 5)).filter((_, i) => i !== 2));
});
