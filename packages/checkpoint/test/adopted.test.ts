// A save adopts files that already hold its pieces: it links them where its directory allows that,
// and copies them otherwise.

import { link, readdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  beginSave,
  type HeldFile,
  type HeldPiece,
  openSave,
  piecesIn,
  writePart,
  writeSave,
} from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { createHostStore } from '@shardweave/shard-store';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { held, tensor, wanted } from './support/saves.js';

const WEIGHT = tensor('weight', [3, 100_001]);
const BIAS = tensor('bias', [7]);
const LOOSE = tensor('loose', [5]);

/**
 * Returns pieces of which the first two lie in a file of `directory`, after some bytes that belong
 * to no piece.
 */
async function pieces(directory: string, linkAs?: HeldFile['linkAs']): Promise<HeldPiece[]> {
  const path = join(directory, 'held');
  const bytesOf = (values: typeof WEIGHT) => Buffer.from(values.values.buffer);
  const before = Buffer.alloc(12, 1);
  const bytes = Buffer.concat([before, bytesOf(WEIGHT), bytesOf(BIAS)]);
  await writeFile(path, bytes);
  const file: HeldFile = {
    byteLength: bytes.byteLength,
    linkAs: async (to) => {
      await link(path, to);
      return true;
    },
    ...(linkAs === undefined ? {} : { linkAs }),
  };
  return [
    { ...held(WEIGHT), inFile: { file, byteOffset: 12 } },
    { ...held(BIAS), inFile: { file, byteOffset: 12 + WEIGHT.values.byteLength } },
    held(LOOSE),
  ];
}

const pieceFiles = async (directory: string) =>
  (await readdir(directory)).filter((name) => name.endsWith('.pieces')).sort();

async function expectWhole(store: Parameters<typeof openSave>[0]): Promise<void> {
  const save = await openSave(store);
  for (const values of [WEIGHT, BIAS, LOOSE]) {
    const { piece, values: loaded } = wanted(values);
    await save.verify([piece]);
    await save.fill([piece]);
    expect(Buffer.compare(Buffer.from(loaded.buffer), Buffer.from(values.values.buffer))).toBe(0);
  }
}

describe('a directory', () => {
  it('takes the file, and writes the rest', async () => {
    const [from, to] = [newFolder(), newFolder()];
    const store = pieceDirectory(to);
    await writeSave(store, { pieces: await pieces(from) });
    await expectWhole(store);
    const names = await pieceFiles(to);
    expect(names.map((name) => /-all(.*)\.pieces$/.exec(name)![1])).toEqual(['-file-0', '']);
    const [adopted, own] = await Promise.all(names.map((name) => stat(join(to, name))));
    expect(own!.size).toBe(20);
    expect(adopted!.ino).toBe((await stat(join(from, 'held'))).ino);
    // An adopted file is checked and removed like a written one.
    const bytes = await readFile(join(to, names[0]!));
    bytes[WEIGHT.values.byteLength]! ^= 1;
    await writeFile(join(to, names[0]!), bytes);
    await expect((await openSave(store)).verify([wanted(WEIGHT).piece])).rejects.toMatchObject({
      code: 'CORRUPT',
      file: names[0],
    });
    await writeSave(store, { pieces: [held(LOOSE)] });
    expect(await readdir(to)).not.toContain(names[0]);
  });

  it('a directory on another device takes a copy', async () => {
    const [from, to] = [newFolder(), newFolder()];
    const store = pieceDirectory(to);
    await writeSave(store, { pieces: await pieces(from, async () => false) });
    await expectWhole(store);
    expect(await pieceFiles(to)).toHaveLength(1);
  });

  it('gives back what it took where the part fails', async () => {
    const [from, to] = [newFolder(), newFolder()];
    const store = pieceDirectory(to);
    const read = async () => {
      throw new Error('lost');
    };
    const session = await beginSave(store);
    const failing = writePart(
      store,
      [...(await pieces(from)), { ...held(tensor('last', [3])), read }],
      { save: session.id, part: 'all' },
    );
    await expect(failing).rejects.toThrow('lost');
    expect(await pieceFiles(to)).toEqual([]);
    await session.abandon();
  });
});

it('host memory copies it', async () => {
  const store = piecesIn(createHostStore());
  await writeSave(store, { pieces: await pieces(newFolder()) });
  await expectWhole(store);
});
