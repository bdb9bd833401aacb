// These tests check what a sharded save or load refuses, and what happens where only one rank
// fails.

import { openSave, type PieceStore } from '@shardweave/checkpoint';
import { FsdpStateError } from '@shardweave/fsdp';
import { summonFullParams } from '@shardweave/fsdp/fairscale';
import {
  BatchNorm1d,
  Linear,
  loadCheckpoint,
  type Module,
  StateDictError,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { Device, type Tensor } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { DIM, inputs, layer, moduleOf, onRanks, Stack } from '../../../tooling/test-kit/index.ts';
import { adam, everything, net, place, saved, train } from './support/saved-models.js';
import { wrapIn } from './support/sharding.js';

it.each([1, 2])(
  'an extra that is not JSON, before anything is written, %i ranks',
  async (count) => {
    const files = place();
    await onRanks(count, async (rank) => {
      const extra = { best: Number.POSITIVE_INFINITY };
      await expect(saveCheckpoint(net(rank), files, { extra })).rejects.toThrow(
        /save: expected JSON at extra\.best, .* got Infinity/,
      );
      expect(await files.files()).toEqual([]);
    });
  },
);

describe('refuses, on every rank and without loading anything', () => {
  /** Saves of other tensors than the model's, which differ only by names and shapes. */
  const other: [string, (device: Device) => Module, object][] = [
    ['a missing name', (device) => layer(device), { missing: ['1.weight', '1.bias'] }],
    [
      'an unexpected name',
      (device) => new Stack(device, [layer(device), layer(device), layer(device)]),
      { unexpected: ['2.weight', '2.bias'] },
    ],
    [
      'another shape',
      (device) =>
        new Stack(device, [layer(device), new Linear(device, { inFeatures: 3, outFeatures: 5 })]),
      { mismatched: ['1.weight', '1.bias'] },
    ],
  ];
  it.each(other)('%s', async (title, make, expected) => {
    const files = place();
    await onRanks(2, async (rank) => {
      const wrap = wrapIn(rank);
      const module = make(rank.device);
      await saveCheckpoint(
        wrap(title === 'a missing name' ? new Stack(rank.device, [module]) : module),
        files,
      );
      const model = wrap(new Stack(rank.device, [layer(rank.device), layer(rank.device)]));
      const before = await stateDict(model);
      await expect(loadCheckpoint(model, files)).rejects.toMatchObject({
        code: 'STATE_DICT',
        ...expected,
      });
      expect(await stateDict(model)).toEqual(before);
    });
  });

  it('what only one rank finds damaged, before any of them has written', async () => {
    const { files } = await saved(2);
    await onRanks(2, async (rank) => {
      const model = net({ ...rank, device: new Device(rank.device.backend, { seed: 100 }) });
      const before = await stateDict(model);
      const read: PieceStore['read'] = async (file, into, options) => {
        await files.read(file, into, options);
        if (rank.rank === 1 && file.includes('rank-1')) {
          into[into.byteLength - 1]! ^= 16;
        }
      };
      await expect(loadCheckpoint(model, { ...files, read })).rejects.toMatchObject(
        rank.rank === 1
          ? { code: 'CORRUPT', message: expect.stringContaining('expected checksum') }
          : {
              code: 'PEER_FAILED',
              message: expect.stringContaining('rank 1/2 failed'),
              rank: 1,
              operation: 'loadCheckpoint',
              reason: expect.stringContaining('expected checksum'),
            },
      );
      expect(await stateDict(model)).toEqual(before);
    });
  });

  it('ranks that read different saves', async () => {
    const [{ files }, { files: others }] = [await saved(2), await saved(2)];
    await onRanks(2, async (rank) => {
      const model = net(rank);
      const before = await stateDict(model);
      const loading = loadCheckpoint(model, rank.rank === 0 ? files : others);
      await expect(loading).rejects.toBeInstanceOf(StateDictError);
      expect(await stateDict(model)).toEqual(before);
    });
  });

  it('a save or a load inside a forward or a summon', async () => {
    /** The forward of this module runs any function that it is given. */
    const files = place();
    await onRanks(2, async (rank) => {
      const { device, group } = rank;
      const wrap = wrapIn({ group });
      let during: () => Promise<unknown> = async () => undefined;
      const calling = moduleOf(device, {}, async (_, x: Tensor) => {
        await during();
        return x;
      });
      const model = wrap(new Stack(device, [wrap(layer(device), 'inner'), calling]), 'root');
      await saveCheckpoint(model, files);
      const calls: (() => Promise<unknown>)[] = [
        () => saveCheckpoint(model, files),
        () => loadCheckpoint(model, files),
      ];
      for (const call of calls) {
        during = call;
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
    const files = place();
    await onRanks(2, async (rank) => {
      const model = net(rank);
      await saveCheckpoint(model, files);
      await expect(loadCheckpoint(model, files, { optimizer: adam(model) })).rejects.toThrow(
        'no optimizer state',
      );
    });
  });

  it('what is missing keeps its value without strict', async () => {
    const { files, whole } = await saved(2);
    await onRanks(2, async (rank) => {
      const device = new Device(rank.device.backend, { seed: 100 });
      const linear = (inFeatures: number, outFeatures: number) =>
        new Linear(device, { inFeatures, outFeatures });
      const norm = new BatchNorm1d(device, { numFeatures: 41 });
      const model = wrapIn(rank)(
        new Stack(device, [linear(DIM, 45), linear(45, 41), norm, layer(device)]),
      );
      const before = await stateDict(model);
      await expect(loadCheckpoint(model, files)).rejects.toMatchObject({
        missing: ['3.weight', '3.bias'],
      });
      await loadCheckpoint(model, files, { strict: false });
      const after = await stateDict(model);
      expect(after.get('3.weight')).toEqual(before.get('3.weight'));
      const weight = Buffer.from(after.get('1.weight')!.data).toString('base64');
      expect(`[41,45] ${weight}`).toBe(whole.model['1.weight']);
    });
  });
});

describe('a rank that fails', () => {
  it('a rank that fails while writing stops the save everywhere, and leaves the one before', async () => {
    const files = place();
    await onRanks(3, async (rank) => {
      const model = net(rank);
      const optimizer = adam(model);
      await saveCheckpoint(model, files, { extra: { count: 1 } });
      await rank.group.barrier();
      const before = await files.files();
      await train(model, optimizer, { rank, steps: [0] });
      const full: PieceStore = {
        ...files,
        create: async (file) => ({
          ...(await files.create(file)),
          write: async () => {
            throw new Error('disk full');
          },
          abandon: () => files.delete(file),
        }),
      };
      const saving = saveCheckpoint(model, rank.rank === 1 ? full : files, { optimizer });
      await expect(saving).rejects.toMatchObject(
        rank.rank === 1
          ? { message: 'disk full' }
          : {
              name: 'PeerFailedError',
              message: expect.stringContaining('rank 1/3 failed: disk full'),
              rank: 1,
              operation: 'saveCheckpoint',
              reason: 'disk full',
            },
      );
      await rank.group.barrier();
      expect(new Set(await files.files())).toEqual(new Set(before));
      expect(await loadCheckpoint(model, files)).toEqual({ count: 1 });
      // The ranks go on together.
      await saveCheckpoint(model, files, { optimizer, extra: { count: 2 } });
      expect(await loadCheckpoint(model, files, { optimizer })).toEqual({ count: 2 });
    });
  });

  it('a group that ends as rank 0 has published leaves the parts that the new save names', async () => {
    const files = place();
    await onRanks(2, async (rank) => {
      const replace: PieceStore['replace'] = async (file, bytes) => {
        await files.replace(file, bytes);
        rank.group.abort('lost at that moment');
      };
      const saving = saveCheckpoint(net(rank), rank.rank === 0 ? { ...files, replace } : files);
      await expect(saving).rejects.toThrow('lost at that moment');
    });
    const { files: named } = await openSave(files);
    expect(Object.keys(named)).toHaveLength(2);
    expect(await files.files()).toEqual(expect.arrayContaining(Object.keys(named)));
  });

  it('a rank that fails while publishing takes the parts of the others with it', async () => {
    const places = [place(), place()];
    await onRanks(2, async (rank) => {
      const files = places[rank.rank]!;
      const replace: PieceStore['replace'] = async () => {
        throw new Error('disk full');
      };
      await expect(saveCheckpoint(net(rank), { ...files, replace })).rejects.toThrow('disk full');
    });
    expect(await places[1]!.files()).toEqual([]);
  });

  it('a rank that fails while reading stops the load everywhere', async () => {
    const { files, whole } = await saved(2);
    await onRanks(3, async (rank) => {
      const model = net(rank);
      const read: PieceStore['read'] = async (file, into, options) => {
        if (rank.rank === 2 && file.includes('rank-1')) {
          throw new TypeError('no connection');
        }
        await files.read(file, into, options);
      };
      await expect(loadCheckpoint(model, { ...files, read })).rejects.toThrow(
        rank.rank === 2 ? TypeError : 'rank 2/3 failed',
      );
      const optimizer = adam(model);
      await loadCheckpoint(model, files, { optimizer });
      expect((await everything(model, optimizer)).model).toEqual(whole.model);
    });
  });
});
