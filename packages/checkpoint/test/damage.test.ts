// Damaged files are found before anything is written into a model.

import { readdir, readFile, truncate, unlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CheckpointCorruptError, openSave } from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import fc from 'fast-check';
import { beforeAll, describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';
import { expectSaved, model, save, type Values, wanted } from './support/saves.js';

const tensors = model(1);
const directory = newFolder();
let pieceFiles: string[] = [];

beforeAll(async () => {
  await save(pieceDirectory(directory), tensors);
  pieceFiles = (await readdir(directory)).filter((name) => name.endsWith('.pieces')).sort();
});

/** Loads everything. Resolves to the error, and to how often something was written. */
async function load(some: readonly Values[] = tensors) {
  const loaded = some.map((each) => wanted(each));
  const pieces = loaded.map(({ piece }) => piece);
  const error: unknown = await (async () => {
    const found = await openSave(pieceDirectory(directory));
    found.checkFit(pieces, { strict: false });
    await found.verify(pieces);
    await found.fill(pieces);
  })().catch((thrown: unknown) => thrown);
  const numWrites = loaded.reduce((sum, each) => sum + each.numWrites, 0);
  return { error, numWrites };
}

/** Runs `body` while a file has other bytes. */
async function during(
  file: string,
  spoil: (path: string, bytes: Buffer) => Promise<unknown>,
  body: () => Promise<void>,
): Promise<void> {
  const path = join(directory, file);
  const bytes = await readFile(path);
  await spoil(path, Buffer.from(bytes));
  try {
    await body();
  } finally {
    await writeFile(path, bytes);
  }
}

it('a flipped bit anywhere in any file', async () => {
  expect(pieceFiles).toHaveLength(2);
  const places = fc.record({
    file: fc.nat(2),
    at: fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
    bit: fc.nat(7),
  });
  await fc.assert(
    fc.asyncProperty(places, async ({ file, at, bit }) => {
      const name = [...pieceFiles, 'index.json'][file]!;
      const flip = (path: string, bytes: Buffer) => {
        const place = Math.floor(at * bytes.byteLength);
        bytes[place] = bytes[place]! ^ (1 << bit);
        return writeFile(path, bytes);
      };
      await during(name, flip, async () => {
        const { error, numWrites } = await load();
        expect((error as { code?: string } | undefined)?.code).toMatch(/^(CORRUPT|FORMAT)$/);
        expect(numWrites).toBe(0);
      });
    }),
    { seed: 2, numRuns: 60 },
  );
  await expectSaved(pieceDirectory(directory), tensors);
});

it('a changed digit of the index, which leaves a plausible one', async () => {
  const change = (path: string, bytes: Buffer) => {
    const text = bytes.toString();
    const changed = text.replace('"0.weight":1}', '"0.weight":3}');
    expect(changed).not.toBe(text);
    return writeFile(path, changed);
  };
  await during('index.json', change, async () => {
    const { error, numWrites } = await load();
    expect(error).toBeInstanceOf(CheckpointCorruptError);
    expect(error).toMatchObject({ file: 'index.json' });
    expect(numWrites).toBe(0);
  });
});

it('names the file and the tensor, and leaves alone who reads neither', async () => {
  const flipLast = (path: string, bytes: Buffer) => {
    bytes[bytes.byteLength - 1]! ^= 1;
    return writeFile(path, bytes);
  };
  await during(pieceFiles[1]!, flipLast, async () => {
    const { error } = await load();
    expect(error).toBeInstanceOf(CheckpointCorruptError);
    expect(error).toMatchObject({ file: pieceFiles[1], tensors: ['expAvg of 0.weight'] });
    expect(await load(tensors.slice(0, 2))).toMatchObject({ error: undefined });
  });
});

describe('a file', () => {
  it.each<[string, (path: string, bytes: Buffer) => Promise<unknown>]>([
    ['that is cut off', (path, bytes) => truncate(path, bytes.byteLength - 1)],
    ['that is empty', (path) => truncate(path, 0)],
    ['that is longer', (path, bytes) => writeFile(path, Buffer.concat([bytes, bytes]))],
    ['that is not there', (path) => unlink(path)],
  ])('a file %s is found', async (_, spoil) => {
    for (const file of pieceFiles) {
      await during(file, spoil, async () => {
        const { error, numWrites } = await load();
        expect(error).toBeInstanceOf(CheckpointCorruptError);
        expect(error).toMatchObject({ file });
        expect(numWrites).toBe(0);
      });
    }
  });
});

it('what changes between the check and the load is found by the load', async () => {
  const [weight] = tensors as [Values];
  const { piece } = wanted(weight);
  const found = await openSave(pieceDirectory(directory));
  await found.verify([piece]);
  const flip = (path: string, bytes: Buffer) => {
    bytes[100]! ^= 4;
    return writeFile(path, bytes);
  };
  await during(pieceFiles[0]!, flip, async () => {
    await expect(found.fill([piece])).rejects.toBeInstanceOf(CheckpointCorruptError);
  });
});
