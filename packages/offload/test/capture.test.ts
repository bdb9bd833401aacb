// A save of values that rest on disk is written beside steps. It has the values of its capture,
// from the store's own files.

import { readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { beginSave, writePart } from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import {
  AdamW,
  captureCheckpoint,
  loadCheckpoint,
  NnConfigError,
  Sequential,
  stateDict,
} from '@shardweave/nn';
import { OffloadModel, type OffloadOptions } from '@shardweave/offload';
import { createHostStore, type ShardStore } from '@shardweave/shard-store';
import { openDiskStore } from '@shardweave/shard-store/node';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { linears, newDevice, rows, squared } from './support/linear-layers.js';

const folder = await newFolder();

function open(store: ShardStore) {
  const device = newDevice();
  const options: OffloadOptions = { store, numSlices: 3 };
  const model = new OffloadModel(new Sequential(device, linears(device, 3)), options);
  const optimizer = new AdamW(model.parameters(), { lr: 0.1 });
  const step = async () => {
    await device.scope(() => squared(model, rows(device)));
    await optimizer.step();
    optimizer.zeroGrad();
  };
  return { model, optimizer, step };
}

async function textOf({ model, optimizer }: ReturnType<typeof open>): Promise<string> {
  const state = [...(await stateDict(model))].map(([name, { data }]) => [name, [...data]]);
  const named = model.namedParameters();
  const moments = [...(await optimizer.stateDict(named)).state];
  return JSON.stringify([state, moments], (_, value) => {
    return value instanceof Map ? [...value] : ArrayBuffer.isView(value) ? `${value}` : value;
  });
}

it('a capture of a model on disk takes its files, and no step waits', async () => {
  const store = await openDiskStore({ directory: join(folder, 'state') });
  const run = open(store);
  await run.step();
  const captured = await captureCheckpoint(run.model, { optimizer: run.optimizer });
  const then = await textOf(run);
  for (let count = 0; count < 4; count++) {
    await run.step(); // These are more steps than the store has files for a value.
  }
  const directory = join(folder, 'save');
  const place = pieceDirectory(directory);
  const session = await beginSave(place);
  const part = await writePart(place, captured.pieces, { save: session.id, part: 'all' });
  await captured.release();
  await session.publish([part], { optimizer: captured.optimizer });
  expect(captured.waitMs).toBe(0);
  const taken = (await readdir(directory)).filter((name) => name.includes('-file-'));
  expect(taken).toHaveLength(9); // There are three slices with two moments each.
  const own = await stat(join(directory, `${session.id}-all.pieces`));
  expect(own.size).toBe(0);
  await run.step();
  await store.close();
  expect((await readdir(join(folder, 'state'))).filter((name) => name.includes('pin'))).toEqual([]);

  const other = open(createHostStore());
  await loadCheckpoint(other.model, place, { optimizer: other.optimizer });
  expect(await textOf(other)).toBe(then);
});

it('a capture of a model in host memory is refused', async () => {
  const run = open(createHostStore());
  await run.step();
  const capturing = captureCheckpoint(run.model, { optimizer: run.optimizer });
  await expect(capturing).rejects.toThrow(NnConfigError);
  await expect(capturing).rejects.toThrow(/Use saveCheckpoint/);
});
