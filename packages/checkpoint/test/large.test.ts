// Places beyond 4 GiB are written and read, in files without as many real bytes.

import { open } from 'node:fs/promises';
import { join } from 'node:path';
import {
  beginSave,
  crc32,
  openSave,
  PIECE_BYTES,
  type PieceStore,
  piecesIn,
  writePart,
} from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { createHostStore } from '@shardweave/shard-store';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { tensor, wanted } from './support/saves.js';

const FAR = 5 * 2 ** 30 + 4;

it('a tensor of 5 GiB has its last piece where the others end', async () => {
  const size = (5 * 2 ** 30) / 4;
  const zeros = new Uint8Array(4 * PIECE_BYTES);
  const ends: number[] = [];
  const store: PieceStore = {
    ...piecesIn(createHostStore()),
    crc32: () => 0,
    create: async () => ({
      write: async (bytes, offset) => void ends.push(offset + bytes.byteLength),
      finish: async () => {},
      abandon: async () => {},
    }),
  };
  const read = async (start: number, end: number) => zeros.subarray(0, (end - start) * 4);
  const spec = { kind: 'parameter', name: 'table', dtype: 'f32', shape: [size] } as const;
  const session = await beginSave(store);
  const part = await writePart(store, [{ ...spec, start: 0, end: size, read }], {
    save: session.id,
    part: 'all',
  });
  await session.publish([part]);
  expect(Object.values(part.files)).toEqual([5 * 2 ** 30]);
  expect(ends.at(-1)).toBe(5 * 2 ** 30);
  const [table] = [...(await openSave(store)).tensors.values()];
  expect(table!.pieces.at(-1)).toMatchObject({
    end: size,
    byteOffset: 5 * 2 ** 30 - PIECE_BYTES,
  });
});

it('a directory writes and reads there', async () => {
  const directory = newFolder();
  const store = pieceDirectory(directory);
  const values = tensor('weight', [1000]);
  const bytes = new Uint8Array(values.values.buffer);
  const session = await beginSave(store);
  const file = `${session.id}-all.pieces`;
  const sink = await store.create(file);
  await sink.write(bytes, FAR); // This makes a sparse file.
  await sink.finish();
  const { values: _, ...spec } = values;
  const piece = { start: 0, end: 1000, file, byteOffset: FAR, checksum: crc32(bytes) };
  await session.publish([
    { files: { [file]: FAR + 4000 }, tensors: [{ ...spec, pieces: [piece] }] },
  ]);
  const found = await openSave(store);
  const loaded = wanted(values);
  await found.verify([loaded.piece]);
  await found.fill([loaded.piece]);
  expect(loaded.values).toEqual(values.values);
  const handle = await open(join(directory, file), 'r+');
  await handle.write(new Uint8Array([255]), 0, 1, FAR + 17);
  await handle.close();
  await expect(found.verify([loaded.piece])).rejects.toMatchObject({ code: 'CORRUPT' });
});
