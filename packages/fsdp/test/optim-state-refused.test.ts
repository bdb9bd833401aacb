// These tests check what loading optimizer state refuses, and the errors of the optimizer itself.

import {
  FsdpConfigError,
  type FullyShardedDataParallel,
  gatherFullOptimStateDict,
  getShardFromOptimStateDict,
  loadFullOptimStateDict,
  loadOptimStateShard,
} from '@shardweave/fsdp';
import { Sgd, StateDictError } from '@shardweave/nn';
import type { Device } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks } from './support/ranks.js';
import { adam, net, train } from './support/saved-models.js';
import { DIM, layer } from './support/scenarios.js';

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
  ])('%s', async (_, type, run) => {
    await onRanks(2, async (rank) => {
      await expect(run(net(rank), rank.device)).rejects.toBeInstanceOf(type);
    });
  });

  it('ranks that have stepped differently, on every rank', async () => {
    await onRanks(2, async (rank) => {
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
    });
  });

  it('the state dict of the optimizer itself, and says which to use', async () => {
    await onRanks(2, async (rank) => {
      const model = net(rank);
      await expect(adam(model).stateDict(model.namedParameters())).rejects.toThrow(
        'gatherFullOptimStateDict',
      );
    });
  });
});
