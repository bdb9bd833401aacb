// A save that was copied to the host and is written behind later steps is that of the moment of the copy.

import { beginSave, type PieceStore, piecesIn, writePart } from '@shardweave/checkpoint';
import {
  captureCheckpoint,
  FullyShardedDataParallel,
  loadCheckpoint,
  stateDict,
} from '@shardweave/fsdp';
import { AdamW, type CapturedModule, Gelu, Linear, Sequential } from '@shardweave/nn';
import { createHostStore } from '@shardweave/shard-store';
import type { Tensor } from '@shardweave/tensor-core';
import { expect, it } from 'vitest';
import { onRanks, type Rank } from '../../../tooling/vitest/training-ranks.js';

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

/** Publishes what two ranks have captured. */
async function publish(store: PieceStore, captured: readonly CapturedModule[]): Promise<void> {
  const session = await beginSave(store);
  const parts = [];
  for (const [rank, { pieces }] of captured.entries()) {
    parts.push(await writePart(store, pieces, { save: session.id, part: `rank-${rank}` }));
  }
  const all = captured.map(({ optimizer }) => optimizer!);
  const steps = Object.assign({}, ...all.map((each) => each.steps));
  await session.publish(parts, { optimizer: { ...all[0]!, steps } });
}

it('steps behind the copy are not in it', async () => {
  const store = piecesIn(createHostStore());
  const captured: CapturedModule[] = [];
  const [expected] = await onRanks(2, async (rank) => {
    const run = open(rank);
    await train(rank, run);
    captured[rank.rank] = await captureCheckpoint(run.model, { optimizer: run.optimizer });
    const then = bytesOf(await stateDict(run.model));
    await train(rank, run);
    const behind = bytesOf(await stateDict(run.model));
    expect(behind).not.toEqual(then);
    return { then, behind };
  });
  await publish(store, captured);
  await onRanks(3, async (rank) => {
    const run = open(rank);
    await loadCheckpoint(run.model, store, { optimizer: run.optimizer });
    expect(bytesOf(await stateDict(run.model))).toEqual(expected!.then);
  });
});
