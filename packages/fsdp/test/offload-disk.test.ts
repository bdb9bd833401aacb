// Training from a disk resumes bit for bit from what is there, a kill or a full disk loses nothing,
// and nothing unchanged is written.

import { readdir, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import { commitOffload, type FullyShardedDataParallel } from '@shardweave/fsdp';
import { summonFullParams } from '@shardweave/fsdp/fairscale';
import { gradNorm, loadStateDict, stateDict } from '@shardweave/nn';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import { diskFull, interceptFiles } from '@shardweave/shard-store/testing-node';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';
import { bundle, RunningProgram } from '../../../tooling/test-kit/processes.ts';
import { bitsOf, storedTraining } from './support/offload-training.js';

/** Returns digests of all weights. */
async function weightsOf(model: FullyShardedDataParallel): Promise<Record<string, string>> {
  return bitsOf(await stateDict(model));
}

/** Returns the losses of all steps and the weights after the last one, without a store. */
async function uninterrupted(worldSize: number, steps: number): Promise<object[]> {
  return onRanks(worldSize, async (rank) => {
    const training = storedTraining(rank, undefined);
    const losses: number[] = [];
    for (let step = 0; step < steps; step++) {
      losses.push(await training.step(step));
    }
    return { losses, weights: await weightsOf(training.model) };
  });
}

describe('a store that is opened again', () => {
  it('goes on after ten steps as if nothing had happened', async () => {
    const expected = await uninterrupted(2, 14);
    const paths = [newFolder(), newFolder()];
    const losses: number[][] = [[], []];
    const through = async (rank: Rank, from: number, to: number) => {
      const store = await openDiskStore({ directory: paths[rank.rank]! });
      expect(store.generation).toBe(from);
      const training = storedTraining(rank, store, { resume: from > 0 });
      for (let step = from; step < to; step++) {
        losses[rank.rank]!.push(await training.step(step));
      }
      const weights = await weightsOf(training.model);
      training.dispose();
      await store.close();
      return weights;
    };
    await onRanks(2, (rank) => through(rank, 0, 10));
    await onRanks(2, (rank) => through(rank, 10, 11)); // The store is opened again after each.
    const weights = await onRanks(2, (rank) => through(rank, 11, 14));
    expect(weights.map((each, rank) => ({ losses: losses[rank], weights: each }))).toEqual(
      expected,
    );
  });

  it('starts afresh without resume, whatever is there', async () => {
    const expected = await uninterrupted(1, 2);
    const directory = newFolder();
    for (let life = 0; life < 2; life++) {
      const [actual] = await onRanks(1, async (rank) => {
        const store = await openDiskStore({ directory });
        const training = storedTraining(rank, store);
        const losses = [await training.step(0), await training.step(1)];
        const weights = await weightsOf(training.model);
        await store.close();
        return { losses, weights };
      });
      expect(actual).toEqual(expected[0]);
    }
  });

  it('refuses to go on from ranks in different steps, and from another model', async () => {
    const stores = [createHostStore(), createHostStore()];
    await stores[1]!.commit();
    await onRanks(2, async (rank) => {
      const { model } = storedTraining(rank, stores[rank.rank]!, { resume: true });
      await expect(model.initialize()).rejects.toThrow(/one generation, got 0, 1 by rank/);
    });
    await onRanks(2, async (rank) => {
      // Two replicas have one shard each.
      const processGroup = await rank.group.split(rank.rank);
      const { model } = storedTraining({ ...rank, group: processGroup }, stores[rank.rank]!, {
        resume: true,
        fsdp: { replicateGroup: rank.group },
      });
      await expect(model.initialize()).rejects.toThrow(/one generation, got 0, 1 by rank/);
    });
    await onRanks(1, async (rank) => {
      const { model } = storedTraining(rank, stores[0]!, { resume: true });
      await expect(model.initialize()).rejects.toThrow(
        /a model under 'rank0\/instance root' in the store, got none/,
      );
    });
  });

  it('has what was loaded or edited outside a step once it is committed', async () => {
    const store = createHostStore();
    await onRanks(1, async (rank) => {
      const { model, step, dispose } = storedTraining(rank, store);
      await step(0);
      const before = await stateDict(model);
      await summonFullParams(model, async () => {
        for (const tensor of model.parameters()) {
          rank.device.backend.run('fill', { out: tensor.view(), value: 2 });
        }
      });
      expect(store.generation).toBe(1);
      await commitOffload(model);
      expect(store.generation).toBe(2);
      dispose();

      const next = storedTraining(rank, store, { resume: true });
      for (const { data } of (await stateDict(next.model)).values()) {
        expect(new Set(new Float32Array(data.slice().buffer))).toEqual(new Set([2]));
      }
      await loadStateDict(next.model, before);
      expect(await stateDict(next.model)).toEqual(before);
    });
  });
});

describe('a process that is killed', () => {
  // A step writes five values for each of three flat parameters, and the manifest.
  it.each(process.env.SHARDWEAVE_LONG === '1' ? [60, 85, 97] : [85])(
    'a process killed at its write %i leaves a whole step to go on from',
    async (numWrites) => {
      const directory = newFolder();
      const program = await bundle(new URL('support/offload-process.ts', import.meta.url));
      const child = new RunningProgram(program, [directory, String(numWrites)]);
      const { signal, printed } = await child.ended;
      expect(signal).toBe('SIGKILL');
      const numSteps = printed.length;
      expect(numSteps).toBeGreaterThan(0);

      const [actual] = await onRanks(1, async (rank) => {
        const store = await openDiskStore({ directory });
        // The process was killed in the middle of the next step.
        expect(store.generation).toBe(numSteps);
        const { model, step } = storedTraining(rank, store, { resume: true });
        const losses = [await step(numSteps), await step(numSteps + 1)];
        const weights = await weightsOf(model);
        await store.close();
        return { losses, weights };
      });
      const [expected] = (await uninterrupted(1, numSteps + 2)) as [{ losses: number[] }];
      expect(actual).toEqual({ ...expected, losses: expected.losses.slice(-2) });
    },
  );
});

describe('a full disk', () => {
  it.each(['parameter', 'expAvgSq', 'state', 'everything'])(
    'a disk that does not take %s ends a step with an error, and the step is whole',
    async (part) => {
      const expected = await uninterrupted(2, 4);
      const actual = await onRanks(2, async (rank) => {
        let isFull = false;
        const store = refusing(createHostStore(), (key) => {
          return isFull && (part === 'everything' || key.endsWith(`/${part}`));
        });
        const { model, optimizer, step, backward } = storedTraining(rank, store);
        const losses = [await step(0)];
        losses.push(await backward(1));
        isFull = true;
        await expect(optimizer.step()).rejects.toMatchObject({ code: 'FULL' });
        isFull = false;
        optimizer.zeroGrad();
        expect(store.generation).toBe(1);
        expect(model.units[0]!.values.home!.hasUnsaved).toBe(true);
        expect(rank.device.memory().live).toMatchObject({ parameter: 0, optimizer: 0 });
        await commitOffload(model); // This finishes the step.
        expect(store.generation).toBe(3); // The step and the commit make a generation each.
        expect(model.units[0]!.values.home!.hasUnsaved).toBe(false);
        losses.push(await step(2), await step(3));
        return { losses, weights: await weightsOf(model) };
      });
      expect(actual).toEqual(expected);
    },
  );

  it('takes what a load brought when there is room again', async () => {
    await onRanks(1, async (rank) => {
      let isFull = false;
      const store = refusing(createHostStore(), () => isFull);
      const { model, step } = storedTraining(rank, store);
      const before = await stateDict(model);
      await step(0);
      isFull = true;
      await expect(loadStateDict(model, before)).rejects.toMatchObject({ code: 'FULL' });
      isFull = false;
      const [home] = model.units.map(({ values }) => values.home!);
      expect(home!.hasUnsaved).toBe(true);
      await commitOffload(model);
      expect(home!.hasUnsaved).toBe(false);
    });
  });

  it('leaves the last generation to the next process that opens it', async () => {
    const directory = newFolder();
    const [before] = await onRanks(1, async (rank) => {
      let isFull = false;
      const files = interceptFiles(({ operation, path }) => {
        if (isFull && operation === 'write') {
          throw diskFull(path);
        }
      });
      const store = await openDiskStore({ directory, files });
      const { model, optimizer, step, backward } = storedTraining(rank, store);
      await step(0);
      const weights = await weightsOf(model);
      await backward(1);
      isFull = true;
      await expect(optimizer.step()).rejects.toMatchObject({ code: 'FULL' });
      isFull = false;
      await store.close();
      return weights;
    });
    await onRanks(1, async (rank) => {
      const store = await openDiskStore({ directory });
      const { model } = storedTraining(rank, store, { resume: true });
      expect(await weightsOf(model)).toEqual(before);
      await store.close();
    });
  });

  it.each([1, 2])('fails a backward, which can be run again, %i ranks', async (worldSize) => {
    const expected = await uninterrupted(worldSize, 2);
    const actual = await onRanks(worldSize, async (rank) => {
      let isFull = false;
      const store = refusing(createHostStore(), (key) => isFull && key.endsWith('/gradient'));
      const { model, optimizer, step, backward } = storedTraining(rank, store);
      const losses = [await step(0)];
      isFull = true;
      await expect(backward(1)).rejects.toMatchObject({ code: 'FULL' });
      optimizer.zeroGrad();
      isFull = false;
      losses.push(await step(1));
      return { losses, weights: await weightsOf(model) };
    });
    expect(actual).toEqual(expected);
  });

  it('keeps the gradients of a single rank, whose step goes on once there is room', async () => {
    const [expected] = await uninterrupted(1, 2);
    const [weights] = await onRanks(1, async (rank) => {
      let isFull = false;
      const store = refusing(createHostStore(), (key) => isFull && key.endsWith('/gradient'));
      const { model, optimizer, step, backward } = storedTraining(rank, store);
      await step(0);
      isFull = true;
      await expect(backward(1)).rejects.toMatchObject({ code: 'FULL' });
      isFull = false;
      await optimizer.step();
      return weightsOf(model);
    });
    expect(expected).toMatchObject({ weights });
  });
});

describe('what is read and written', () => {
  it('nothing is written that has not changed', () =>
    onRanks(2, async (rank) => {
      const written: string[] = [];
      const noting = refusing(createHostStore(), (key) => {
        written.push(key);
        return false;
      });
      const { model, optimizer, step, backward } = storedTraining(rank, noting);
      const calls = async (body: () => Promise<unknown>) => {
        written.length = 0;
        await body();
        return [...written].sort();
      };
      const units = model.instances().flatMap((instance) => instance.units);
      const keys = (...parts: string[]) =>
        units.flatMap(({ values }) => parts.map((part) => `${values.home!.name}/${part}`)).sort();
      expect(await calls(() => model.initialize())).toEqual(keys('parameter'));
      expect(await calls(() => backward(0))).toEqual(keys('gradient'));
      // This adds to the stored gradients.
      expect(await calls(() => backward(1))).toEqual(keys('gradient'));
      expect(await calls(() => gradNorm(model))).toEqual([]);
      const own = model.instances().map(({ name }) => `rank${rank.rank}/instance ${name}/head`);
      const changed = [...keys('parameter', 'expAvg', 'expAvgSq', 'state'), ...own].sort();
      expect(await calls(() => optimizer.step())).toEqual(changed);
      optimizer.zeroGrad();
      expect(await calls(() => optimizer.step())).toEqual([]);
      expect(await calls(() => stateDict(model))).toEqual([]);
      expect(await calls(() => summonFullParams(model, () => {}, { volatile: true }))).toEqual([]);
      expect(await calls(() => step(2))).toEqual([...changed, ...keys('gradient')].sort());
    }));

  it('a unit is read while the one before it computes', () =>
    onRanks(2, async (rank) => {
      const events: string[] = [];
      const store = watched(createHostStore(), (key) => events.push(`read ${key}`));
      const { model, step, backward } = storedTraining(rank, store);
      await step(0); // This step learns the order.
      for (const instance of model.instances()) {
        instance.module.aroundForward({
          before: () => {
            events.push(`${instance.name} computes`);
          },
        });
      }
      events.length = 0;
      await backward(1);
      const at = (event: string) => {
        const index = events.indexOf(event);
        expect(index, event).toBeGreaterThanOrEqual(0);
        return index;
      };
      const read = at(`read rank${rank.rank}/block 2/parameter`);
      expect(read).toBeLessThan(at('block 1 computes'));
    }));

  it('damage is told where it is met, and nothing runs on it', async () => {
    const directory = newFolder();
    await onRanks(1, async (rank) => {
      const store = await openDiskStore({ directory });
      const { model, step } = storedTraining(rank, store);
      await step(0);
      for (const name of await readdir(directory)) {
        if (/^shardweave-\d{6}\.0$/.test(name)) {
          await truncate(join(directory, name), 100);
        }
      }
      await expect(step(1)).rejects.toMatchObject({
        code: 'CORRUPT',
        message: expect.stringMatching(/'rank0.root/),
      });
      expect(model.trainingState).toBe('idle');
      expect(rank.device.memory().live).toMatchObject({ gathered: 0, gradient: 0, parameter: 0 });
      await store.close();
    });
  });
});

/** Returns a store that refuses the writes that `isRefused` names, as a full disk would. */
function refusing(store: ShardStore, isRefused: (key: string) => boolean): ShardStore {
  return overriding(store, {
    write: async (key: string, bytes: Uint8Array) => {
      if (isRefused(key)) {
        throw Object.assign(new Error(`full: ${key}`), { code: 'FULL' });
      }
      await store.write(key, bytes);
    },
  });
}

function watched(store: ShardStore, onRead: (key: string) => void): ShardStore {
  return overriding(store, {
    read: (key: string, into: Uint8Array, options?: { offset?: number }) => {
      onRead(key);
      return store.read(key, into, options);
    },
  });
}

function overriding(store: ShardStore, methods: Partial<ShardStore>): ShardStore {
  return new Proxy(store, {
    get: (target, name) => {
      const own = Reflect.get(methods, name);
      if (own !== undefined) {
        return own;
      }
      const value = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}
