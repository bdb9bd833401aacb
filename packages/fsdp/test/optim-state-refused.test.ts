// These tests check what loading optimizer state refuses, and the errors of the optimizer itself.

import { FsdpConfigError, type FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  type FullOptimStateDict,
  gatherFullOptimStateDict,
  getShardFromOptimStateDict,
  loadFullOptimStateDict,
  loadOptimStateShard,
  localOptimStateDict,
} from '@shardweave/fsdp/fairscale';
import { type AdamOptions, AdamW, Sgd, StateDictError } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { DIM, layer, onRanks } from '../../../tooling/test-kit/index.ts';
import { adam, net, train } from './support/saved-models.js';

describe('refuses', () => {
  it.each([
    [
      'a parameter of another module',
      FsdpConfigError,
      async (model: FullyShardedDataParallel, device: Device) =>
        gatherFullOptimStateDict(model, new Sgd(layer(device).parameters(), { lr: 1 })),
    ],
    [
      'unknown names and other shapes',
      StateDictError,
      async (model: FullyShardedDataParallel) =>
        getShardFromOptimStateDict(model, {
          state: new Map([
            ['stranger', { step: 1, tensors: new Map() }],
            [
              '0.bias',
              {
                step: 1,
                tensors: new Map([
                  ['expAvg', { dtype: 'f32', shape: [1], data: new Uint8Array(4) }] as const,
                ]),
              },
            ],
          ]),
          paramGroups: [],
        }),
    ],
    [
      'what ranks after the first have of a gathered state',
      StateDictError,
      async (model: FullyShardedDataParallel) =>
        loadFullOptimStateDict(model, adam(model), undefined as never),
    ],
    [
      'another number of groups',
      StateDictError,
      async (model: FullyShardedDataParallel) =>
        loadFullOptimStateDict(model, adam(model), { state: new Map(), paramGroups: [] }),
    ],
    [
      'shards of another length',
      StateDictError,
      async (model: FullyShardedDataParallel) =>
        loadOptimStateShard(model, new Sgd(model.parameters(), { lr: 1 }), {
          flats: new Map([
            ['flat_param_0', { runs: [], tensors: new Map([['x', new Uint8Array(DIM)]]) }],
          ]),
          paramGroups: [{ params: [] } as never],
          extra: {},
        }),
    ],
  ])('%s', (_, type, run) =>
    onRanks(2, async (rank) => {
      await expect(run(net(rank), rank.device)).rejects.toBeInstanceOf(type);
    }),
  );

  it('a parameter that was in another group, by its name', () =>
    onRanks(2, async (rank) => {
      const model = net(rank);
      const optimizer = adam(model);
      await train(model, optimizer, { rank, steps: [0] });
      const shard = await localOptimStateDict(model, optimizer);
      const [weight, ...rest] = model.parameters();
      const own = new AdamW([{ params: rest }, { params: [weight!] }], { lr: 7 });
      const text = /'0\.bias' in saved group 1 and '1\.weight' in saved group 0/;
      await expect(loadOptimStateShard(model, own, shard)).rejects.toThrow(text);
      expect(own.groups.map(({ lr }) => lr)).toEqual([7, 7]);
    }));

  describe('on all ranks of all replicas, where one', () => {
    /** Loads `given` on the last of 2 x 2 ranks, and the whole state on the others. */
    const expectRefused = async (
      change: (
        full: FullOptimStateDict<AdamOptions>,
      ) => FullOptimStateDict<AdamOptions> | undefined,
    ) => {
      let full: FullOptimStateDict<AdamOptions> | undefined;
      await onRanks(1, async (rank) => {
        const model = net(rank);
        const optimizer = adam(model);
        await train(model, optimizer, { rank, steps: [0] });
        full = await gatherFullOptimStateDict(model, optimizer);
      });
      const loaded = await onRanks(4, async (rank) => {
        const groups = {
          processGroup: await rank.group.split(rank.rank >> 1),
          replicateGroup: await rank.group.split(rank.rank & 1),
        };
        const model = net(rank, groups);
        const optimizer = adam(model);
        for (const group of optimizer.groups) {
          group.lr = 7;
        }
        const given = rank.rank === 3 ? change(full!) : full;
        const loading = loadFullOptimStateDict(model, optimizer, given!);
        await expect(loading).rejects.toThrow();
        const runs = await optimizer.flatStateRuns(model.units[0]!.flat);
        return [...optimizer.groups.map(({ lr }) => lr), runs.length];
      });
      expect(loaded).toEqual([0, 1, 2, 3].map(() => [7, 7, 0]));
    };

    it('has no state', () => expectRefused(() => undefined));

    it('has other options', () =>
      expectRefused((full) => ({
        ...full,
        paramGroups: full.paramGroups.map((group) => ({ ...group, lr: 3 })),
      })));
  });

  it('ranks that have stepped differently, on every rank', () =>
    onRanks(2, async (rank) => {
      const model = net(rank);
      const optimizer = adam(model);
      await train(model, optimizer, { rank, steps: [0] });
      const { flat } = model.units[0]!;
      if (rank.rank === 1) {
        const state = (await optimizer.readFlatState(flat))!;
        const runs = state.runs.map((run) => ({ ...run, step: 5 }));
        await optimizer.writeFlatState(flat, { ...state, runs });
      }
      const gathering = gatherFullOptimStateDict(model, optimizer);
      await expect(gathering).rejects.toBeInstanceOf(StateDictError);
    }));

  it('the state dict of the optimizer itself, and says which to use', () =>
    onRanks(2, async (rank) => {
      const model = net(rank);
      await expect(adam(model).stateDict(model.namedParameters())).rejects.toThrow(
        'gatherFullOptimStateDict',
      );
    }));
});
