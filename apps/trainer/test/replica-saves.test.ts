// Saves of replicas: all ranks make the call, the first one writes, and all hear of one that fails.

import { openSave, type PieceStore, piecesIn, writePart } from '@shardweave/checkpoint';
import { PeerFailedError } from '@shardweave/collectives';
import { DistributedDataParallel } from '@shardweave/ddp-buckets';
import {
  AdamW,
  captureCheckpoint,
  Linear,
  loadCheckpoint,
  StateDictError,
  saveCheckpoint,
  stateDict,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import { mean, square } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/ranks.js';

const newStore = () => piecesIn(createHostStore());

/** A replica after `steps` steps, with its optimizer. */
async function trained({ device, group }: Rank, steps: number) {
  const model = new DistributedDataParallel(new Linear(device, { inFeatures: 5, outFeatures: 3 }), {
    processGroup: group,
  });
  const optimizer = new AdamW(model.parameters(), { lr: 0.1 });
  for (let step = 0; step < steps; step++) {
    await device.scope(async () => {
      await mean(square(await model.call(device.full([2, 5], 1)))).backward();
    });
    await optimizer.step();
    optimizer.zeroGrad();
  }
  return { model, optimizer };
}

it('one file is written, whose save loads on every rank', async () => {
  const stores = [newStore(), newStore(), newStore()];
  await onRanks(3, async (rank) => {
    const { model, optimizer } = await trained(rank, 2);
    await saveCheckpoint(model, stores[rank.rank]!, { optimizer, extra: { rank: rank.rank } });
    const after = await stateDict(model);
    const other = await trained(rank, 0);
    const extra = await loadCheckpoint(other.model, stores[0]!, { optimizer: other.optimizer });
    expect(extra).toEqual({ rank: 0 });
    expect(await stateDict(other.model)).toEqual(after);
  });
  expect(Object.keys((await openSave(stores[0]!)).files)).toHaveLength(1);
  expect(await stores[1]!.files()).toEqual([]);
});

it('a save may be the first call, and has the values of rank 0', async () => {
  const store = newStore();
  const [first] = await onRanks(2, async (rank) => {
    const { model } = await trained(rank, 0);
    const own = rank.rank === 0 ? await stateDict(model) : undefined;
    await saveCheckpoint(model, store);
    await loadCheckpoint(model, store);
    return { own, loaded: await stateDict(model) };
  });
  expect(first!.loaded).toEqual(first!.own);
});

it('a rank that cannot write or read stops all, which go on training afterwards', async () => {
  const place = newStore();
  const full = new Error('EDQUOT');
  const failing: PieceStore = { ...place, lock: async () => async () => {} };
  failing.create = () => Promise.reject(full);
  await onRanks(2, async (rank) => {
    const { model, optimizer } = await trained(rank, 1);
    const isFirst = rank.rank === 0;
    const told = {
      code: 'PEER_FAILED',
      rank: 0,
      operation: 'saveCheckpoint',
      reason: 'EDQUOT',
    };
    const saving = saveCheckpoint(model, isFirst ? failing : place, { optimizer });
    await (isFirst
      ? expect(saving).rejects.toBe(full)
      : expect(saving).rejects.toMatchObject(told));
    await saveCheckpoint(model, place, { optimizer });
    const missing = loadCheckpoint(model, isFirst ? place : newStore());
    await expect(missing).rejects.toBeInstanceOf(isFirst ? PeerFailedError : Error);
    await expect(missing).rejects.toMatchObject({ code: isFirst ? 'PEER_FAILED' : 'MISSING' });
    await trained(rank, 1);
    expect(await loadCheckpoint(model, place, { optimizer })).toEqual({});
  });
});

it('ranks that read different saves load none of them', async () => {
  const stores = [newStore(), newStore()];
  await onRanks(2, async (rank) => {
    const { model } = await trained(rank, 1);
    for (const store of stores) {
      await saveCheckpoint(model, store);
    }
    const other = (await trained(rank, 0)).model;
    const before = await stateDict(other);
    const loading = loadCheckpoint(other, stores[rank.rank]!);
    await expect(loading).rejects.toThrow(StateDictError);
    await expect(loading).rejects.toThrow(/others on rank 1 than on rank 0/);
    expect(await stateDict(other)).toEqual(before);
  });
});

it('a capture has pieces on the first rank alone, and the steps on all', async () => {
  const store = newStore();
  await onRanks(2, async (rank) => {
    const { model, optimizer } = await trained(rank, 3);
    const captured = await captureCheckpoint(model, { optimizer });
    expect(captured.isWriting).toBe(rank.rank === 0);
    expect(captured.optimizer?.steps).toEqual({ weight: 3, bias: 3 });
    const part = await writePart(store, captured.pieces, { save: 'x', part: `rank-${rank.rank}` });
    expect(part.tensors.length > 0).toBe(rank.rank === 0);
    await captured.release();
  });
});
