// nn's functions of a model's state over models that are wrapped in part, over several models, and
// over what belongs to other ranks.

import { openSave, piecesIn } from '@shardweave/checkpoint';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import { summonFullParams } from '@shardweave/fsdp/fairscale';
import {
  AdamW,
  Linear,
  lazyStateDict,
  loadCheckpoint,
  loadStateDict,
  type Module,
  NnConfigError,
  Sequential,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import { type Device, mean, square } from '@shardweave/tensor-core';
import { describe, expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';
import { wrapIn } from './support/sharding.js';

function net(device: Device, first = 3): Sequential {
  return new Sequential(device, [
    new Linear(device, { inFeatures: first, outFeatures: 7 }),
    new Linear(device, { inFeatures: 7, outFeatures: 5 }),
    new Linear(device, { inFeatures: 5, outFeatures: first }),
  ]);
}

/** A net whose layers are wrapped, but the middle one, and which itself is not. */
function partly({ device, group }: Rank, options = {}): Sequential {
  const model = net(device);
  for (const name of ['0', '2']) {
    const layer = model.children().get(name)!;
    model.replaceChild(
      name,
      new FullyShardedDataParallel(layer, { processGroup: group, name, ...options }),
    );
  }
  return model;
}

async function step(model: Module, optimizer: AdamW): Promise<void> {
  const { device } = model;
  await device.scope(async () => {
    const x = device.tensor(
      Float32Array.from({ length: 12 }, (_, i) => Math.sin(i)),
      [4, 3],
    );
    await mean(square(await model.call(x))).backward();
  });
  await optimizer.step();
  optimizer.zeroGrad();
}

const NAMES = ['0.weight', '0.bias', '1.weight', '1.bias', '2.weight', '2.bias'];

describe('a module whose blocks are wrapped and whose root is not', () => {
  it('has the state of the bare one, in its order, and loads it', () =>
    onRanks(2, async (rank) => {
      const bare = await stateDict(net(rank.device));
      const model = partly(rank);
      await loadStateDict(model, bare);
      const whole = await stateDict(model);
      expect([...whole.keys()]).toEqual(NAMES);
      expect(whole).toEqual(bare);
      const first = await stateDict(model, { stateDictOnRank0Only: true });
      expect(first).toEqual(rank.rank === 0 ? bare : new Map());
      const lazy = await lazyStateDict(model, { stateDictOnRank0Only: true });
      expect([...lazy.keys()]).toEqual(rank.rank === 0 ? NAMES : []);
      for (const [name, { read }] of lazy) {
        expect(await read()).toEqual(bare.get(name)!.data); // by one rank alone
      }
    }));

  it('is saved with its optimizer by all ranks, each element once, and goes on at another size', async () => {
    const store = piecesIn(createHostStore());
    const run = async (rank: Rank) => {
      const model = partly(rank);
      return { model, optimizer: new AdamW(model.parameters(), { lr: 0.1 }) };
    };
    const [after] = await onRanks(2, async (rank) => {
      const { model, optimizer } = await run(rank);
      await step(model, optimizer);
      await saveCheckpoint(model, store, { optimizer, extra: { step: 1 } });
      await step(model, optimizer);
      return stateDict(model);
    });
    const save = await openSave(store);
    expect([...save.tensors.values()].filter(({ kind }) => kind === 'parameter')).toHaveLength(6);
    await onRanks(1, async (rank) => {
      const { model, optimizer } = await run(rank);
      expect(await loadCheckpoint(model, store, { optimizer })).toEqual({ step: 1 });
      await step(model, optimizer);
      expect(await stateDict(model)).toEqual(after);
    });
  });
});

describe('several models', () => {
  it('are one, with names that begin with their index, and one save', async () => {
    const store = piecesIn(createHostStore());
    await onRanks(2, async (rank) => {
      const { device, group } = rank;
      const sharded = new FullyShardedDataParallel(net(device, 4), { processGroup: group });
      const models = [partly(rank), sharded, net(device, 2)] as const;
      const whole = await stateDict(models);
      const parts = await Promise.all(models.map((model) => stateDict(model)));
      expect(whole).toEqual(
        new Map(
          parts.flatMap((part, i) => [...part].map(([name, each]) => [`${i}.${name}`, each])),
        ),
      );
      await saveCheckpoint(models, store);
      const others = [partly(rank), net(device, 4), net(device, 2)] as const;
      await loadCheckpoint(others, store);
      expect(await stateDict(others)).toEqual(whole);
    });
  });

  it('two process groups are refused by name, as is what is no module', () =>
    onRanks(2, async ({ device, group }) => {
      const other = await group.split(0);
      const wrap = (processGroup: typeof group, name: string) =>
        new FullyShardedDataParallel(net(device), { processGroup, name });
      const models = [wrap(group, 'generator'), wrap(other, 'critic')];
      const refused = stateDict(models);
      await expect(refused).rejects.toThrow(NnConfigError);
      await expect(refused).rejects.toThrow(
        /one process group, got 'generator' at '0' and 'critic' at '1' over two/,
      );
      await expect(stateDict([1] as never)).rejects.toThrow(/a module at index 0, got 1/);
      await expect(stateDict(undefined as never)).rejects.toThrow(/array of modules, got nothing/);
    }));
});

describe('lazyStateDict', () => {
  it('reads odd 16-bit parameters of a single rank later, whole and in parts', () =>
    onRanks(1, async ({ device, group }) => {
      const linear = new Linear(device, { inFeatures: 3, outFeatures: 3 }).to('bf16');
      const model = wrapIn({ group }, { computeDType: 'bf16' })(linear);
      const [lazy, whole] = [await lazyStateDict(model), await stateDict(model)];
      const compare = async () => {
        for (const [name, { data }] of await stateDict(model)) {
          const entry = lazy.get(name)!;
          expect(await entry.read()).toEqual(data);
          expect(await entry.readPart!({ first: 1, count: 2 })).toEqual(data.subarray(2, 6));
        }
      };
      await compare();
      const zeros = [...whole].map(([name, each]) => {
        return [name, { ...each, data: new Uint8Array(each.data.byteLength) }] as const;
      });
      await loadStateDict(model, new Map(zeros));
      await compare();
      await summonFullParams(model, compare);
    }));

  it('reads parts of plain 16-bit parameters at any element', () =>
    onRanks(1, async ({ device }) => {
      const linear = new Linear(device, { inFeatures: 3, outFeatures: 3 }).to('f16');
      const { data } = (await stateDict(linear)).get('weight')!;
      const { readPart } = (await lazyStateDict(linear)).get('weight')!;
      for (const [first, count] of [
        [0, 9],
        [1, 3],
        [2, 1],
        [7, 2],
      ] as const) {
        expect(await readPart!({ first, count })).toEqual(
          data.subarray(2 * first, 2 * (first + count)),
        );
      }
    }));
});
