// A save written while later steps run has the values of the moment of its capture, on every rank.

import { beginSave, type PieceStore, piecesIn, writePart } from '@shardweave/checkpoint';
import { FullyShardedDataParallel } from '@shardweave/fsdp';
import {
  AdamW,
  type CapturedModule,
  captureCheckpoint,
  Gelu,
  Linear,
  loadCheckpoint,
  Sequential,
  stateDict,
} from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import type { Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/test-kit/index.ts';
import { wrapIn } from './support/sharding.js';

function open({ device, group }: Rank) {
  const layers = new Sequential<[x: Tensor], Tensor>(device, [
    new Linear(device, { inFeatures: 5, outFeatures: 13 }),
    new Gelu(device),
    new Linear(device, { inFeatures: 13, outFeatures: 3 }),
  ]);
  const model = new FullyShardedDataParallel(layers, { processGroup: group });
  return { model, optimizer: new AdamW(model.parameters(), { lr: 0.1 }) };
}

async function train({ device }: Rank, { model, optimizer }: ReturnType<typeof open>) {
  await device.scope(async () => {
    const x = device.tensor(
      Float32Array.from({ length: 10 }, (_, i) => Math.sin(i)),
      [2, 5],
    );
    const out = await model.call(x);
    await out.backward({ gradient: device.full(out.shape, 0.5) });
  });
  await optimizer.step();
  optimizer.zeroGrad();
}

const bytesOf = (state: ReadonlyMap<string, { readonly data: Uint8Array }>) =>
  [...state].map(([name, { data }]) => [name, [...data]]);

/** Writes what one rank has captured. */
async function write(store: PieceStore, save: string, rank: number, captured: CapturedModule) {
  try {
    return await writePart(store, captured.pieces, { save, part: `rank-${rank}` });
  } finally {
    await captured.release();
  }
}

it('steps behind the capture are not in it', async () => {
  const store = piecesIn(createHostStore());
  const session = await beginSave(store);
  const ranks = await onRanks(2, async (rank) => {
    const run = open(rank);
    await train(rank, run);
    const then = bytesOf(await stateDict(run.model));
    const captured = await captureCheckpoint(run.model, { optimizer: run.optimizer });
    const writing = write(store, session.id, rank.rank, captured);
    await train(rank, run);
    expect(bytesOf(await stateDict(run.model))).not.toEqual(then);
    return { then, part: await writing, optimizer: captured.optimizer! };
  });
  const steps = Object.assign({}, ...ranks.map(({ optimizer }) => optimizer.steps));
  await session.publish(
    ranks.map(({ part }) => part),
    { optimizer: { ...ranks[0]!.optimizer, steps } },
  );
  await onRanks(3, async (rank) => {
    const run = open(rank);
    await loadCheckpoint(run.model, store, { optimizer: run.optimizer });
    expect(bytesOf(await stateDict(run.model))).toEqual(ranks[0]!.then);
  });
});

it('shards at rest are refused, as their steps would not wait', () =>
  onRanks(2, async ({ device, group }) => {
    const layer = new Linear(device, { inFeatures: 5, outFeatures: 13 });
    const model = wrapIn({ group }, { offloadConfig: { store: createHostStore() } })(layer);
    await model.initialize();
    await expect(captureCheckpoint(model)).rejects.toThrow(/Use saveCheckpoint/);
  }));

it('a capture that fails on one rank keeps no step of another waiting', () =>
  onRanks(2, async (rank) => {
    const run = open(rank);
    await train(rank, run);
    const [flat] = run.model.instances().flatMap(({ units }) => units.map((unit) => unit.flat));
    if (rank.rank === 1) {
      const { openReader } = flat!.storage;
      flat!.storage.openReader = () => {
        flat!.storage.openReader = openReader;
        throw new Error('lost');
      };
    }
    await expect(captureCheckpoint(run.model)).rejects.toThrow(/lost/);
    await train(rank, run);
  }));
