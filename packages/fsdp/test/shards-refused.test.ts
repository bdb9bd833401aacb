// What a sharded save or load refuses, and what happens where one rank alone fails.

import {
  FsdpStateDictError,
  FsdpStateError,
  FullyShardedDataParallel,
  loadShards,
  type ShardIndex,
  type ShardSink,
  saveShards,
  stateDict,
  summonFullParams,
} from '@shardweave/fsdp';
import { Module } from '@shardweave/nn';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks } from './ranks.js';
import { adam, everything, Files, net, saved, train } from './saved-shards.js';
import { inputs, layer, Stack } from './scenarios.js';

describe('refuses, on every rank and without loading anything', () => {
  const spoil = (change: (index: ShardIndex) => object) => (files: Files) => {
    const bytes = new TextEncoder().encode(JSON.stringify(change(files.index())));
    files.files.set('index.json', bytes);
  };
  it.each([
    ['no index', (files: Files) => files.files.delete('index.json')],
    ['something else', (files: Files) => files.files.set('index.json', new Uint8Array(5))],
    ['another version', spoil((index) => ({ ...index, version: 2 }))],
    [
      'a missing name',
      spoil(({ tensors: { '0.bias': _, ...tensors }, ...index }) => ({ ...index, tensors })),
    ],
    [
      'an unexpected name',
      spoil(({ tensors, ...index }) => ({
        ...index,
        tensors: { ...tensors, stranger: tensors['0.bias'] },
      })),
    ],
    [
      'another shape',
      spoil(({ tensors, ...index }) => ({
        ...index,
        tensors: { ...tensors, '0.bias': { ...tensors['0.bias'], shape: [3, 15] } },
      })),
    ],
    [
      'a gap between pieces',
      spoil(({ tensors, ...index }) => ({
        ...index,
        tensors: {
          ...tensors,
          '1.weight': { ...tensors['1.weight'], pieces: tensors['1.weight']!.pieces.slice(1) },
        },
      })),
    ],
  ])('%s', async (_, change) => {
    const { files } = await saved(2);
    change(files);
    await onRanks(2, async (rank) => {
      const model = net(rank);
      const before = await stateDict(model);
      await expect(loadShards(model, files)).rejects.toBeInstanceOf(FsdpStateDictError);
      expect(await stateDict(model)).toEqual(before);
    });
  });

  it('a save or a load inside a forward or a summon', async () => {
    /** Runs whatever it is given in its forward. */
    class Calling extends Module<[x: Tensor], Tensor> {
      during: () => Promise<unknown> = async () => undefined;
      async forward(x: Tensor): Promise<Tensor> {
        await this.during();
        return x;
      }
    }
    const files = new Files();
    await onRanks(2, async (rank) => {
      const { device, group } = rank;
      const wrap = (module: Module, name: string) =>
        new FullyShardedDataParallel(module, { processGroup: group, name });
      const calling = new Calling(device);
      const model = wrap(new Stack(device, [wrap(layer(device), 'inner'), calling]), 'root');
      await saveShards(model, files);
      const calls: (() => Promise<unknown>)[] = [
        () => saveShards(model, files),
        () => loadShards(model, files),
      ];
      for (const call of calls) {
        calling.during = call;
        const running = device.scope(async () => {
          await model.call(inputs(device, { first: 0, count: 1 }));
        });
        await expect(running).rejects.toBeInstanceOf(FsdpStateError);
        model.assertState('idle');
        for (const instance of model.instances()) {
          const summoned = summonFullParams(instance, call, { recurse: false });
          await expect(summoned).rejects.toBeInstanceOf(FsdpStateError);
        }
      }
    });
  });

  it('an optimizer that was not saved, or with other groups', async () => {
    const files = new Files();
    await onRanks(2, async (rank) => {
      const model = net(rank);
      await saveShards(model, files);
      await expect(loadShards(model, files, { optimizer: adam(model) })).rejects.toThrow(
        'no optimizer state',
      );
    });
  });

  it('without strict, what is missing keeps its value', async () => {
    const { files, whole } = await saved(2);
    spoil(({ tensors: { '0.bias': _, ...tensors }, ...index }) => ({ ...index, tensors }))(files);
    await onRanks(2, async (rank) => {
      const device = new Device(rank.device.backend, { seed: 100 });
      const model = net({ ...rank, device });
      const before = await stateDict(model);
      await loadShards(model, files, { strict: false });
      const after = await stateDict(model);
      expect(after.get('0.bias')).toEqual(before.get('0.bias'));
      const weight = Buffer.from(after.get('1.weight')!.data).toString('base64');
      expect(`[41,45] ${weight}`).toBe(whole.model.get('1.weight'));
    });
  });
});

describe('a rank that fails', () => {
  it('while writing stops the save everywhere, and leaves no index', async () => {
    const files = new Files();
    await onRanks(3, async (rank) => {
      const model = net(rank);
      const optimizer = adam(model);
      await train(model, optimizer, { rank, steps: [0] });
      const full: ShardSink = {
        write: async () => {
          throw new Error('disk full');
        },
      };
      const saving = saveShards(model, rank.rank === 1 ? full : files, {
        optimizer,
        maxFileBytes: 4096,
      });
      await expect(saving).rejects.toThrow(
        rank.rank === 1 ? /^disk full$/ : 'rank 1/3 failed: disk full',
      );
      // They go on together.
      await saveShards(model, files, { optimizer, prefix: 'again/' });
    });
    expect(files.files.has('index.json')).toBe(false);
    expect(files.files.has('again/index.json')).toBe(true);
  });

  it('while reading stops the load everywhere', async () => {
    const { files, whole } = await saved(2);
    await onRanks(3, async (rank) => {
      const model = net(rank);
      const broken = files.reader();
      if (rank.rank === 2) {
        broken.files.delete('rank-1-of-2.0.safetensors');
      }
      await expect(loadShards(model, broken)).rejects.toThrow(
        rank.rank === 2 ? TypeError : 'rank 2/3 failed',
      );
      const optimizer = adam(model);
      await loadShards(model, files, { optimizer });
      expect((await everything(model, optimizer)).model).toEqual(whole.model);
    });
  });
});
