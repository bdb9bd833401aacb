// Each file of a save is cut off, and has a bit flipped, in two hundred places. It is never taken
// for whole, and nothing of it is written into a tensor.

import { openSave, type PieceReader, piecesIn } from '@shardweave/checkpoint';
import { createHostStore } from '@shardweave/shard-store';
import { beforeAll, describe, expect, it } from 'vitest';
import { save, tensor, wanted } from './support/saves.js';

const NUM_PLACES = 200;

const tensors = [
  tensor('0.weight', [30, 21]),
  tensor('0.bias', [5]),
  tensor('0.weight', [30, 21], { state: 'expAvg' }),
  tensor('0.weight', [30, 21], { state: 'expAvgSq' }),
];

const whole = new Map<string, Uint8Array>();

/** Returns the save with other bytes in one file. */
function reader(name: string, spoilt: Uint8Array): PieceReader {
  const bytesOf = (file: string) => (file === name ? spoilt : whole.get(file));
  return {
    description: 'memory',
    byteLength: (file) => bytesOf(file)?.byteLength,
    read: async (file, into, { offset }) => {
      const bytes = bytesOf(file)!.subarray(offset, offset + into.byteLength);
      if (bytes.byteLength < into.byteLength) {
        throw new Error('too short');
      }
      into.set(bytes);
    },
  };
}

/** Loads everything and returns the outcome. */
async function load(from: PieceReader) {
  const loaded = tensors.map((each) => wanted(each));
  const pieces = loaded.map(({ piece }) => piece);
  const error: unknown = await (async () => {
    const found = await openSave(from);
    found.checkFit(pieces);
    await found.verify(pieces);
    await found.fill(pieces);
  })().catch((thrown: unknown) => thrown);
  const numWrites = loaded.reduce((sum, each) => sum + each.numWrites, 0);
  return { code: (error as { code?: string } | undefined)?.code, numWrites };
}

beforeAll(async () => {
  const store = piecesIn(createHostStore());
  await save(store, tensors);
  for (const file of await store.files()) {
    const bytes = new Uint8Array((await store.byteLength(file))!);
    await store.read(file, bytes, { offset: 0 });
    whole.set(file, bytes);
  }
});

it('is a save of two parts and an index, and loads', async () => {
  expect(whole.size).toBe(3);
  expect([...whole.values()].every(({ byteLength }) => byteLength > NUM_PLACES)).toBe(true);
  expect((await load(reader('', new Uint8Array(0)))).code).toBeUndefined();
});

/** Returns places spread over the file, including its first and last byte. */
const placesIn = ({ byteLength }: Uint8Array) =>
  Array.from({ length: NUM_PLACES }, (_, i) =>
    Math.round((i * (byteLength - 1)) / (NUM_PLACES - 1)),
  );

describe.each([0, 1, 2])('file %i of the save', (index) => {
  it('cut off', async () => {
    const [name, bytes] = [...whole][index]!;
    for (const place of placesIn(bytes)) {
      const { code, numWrites } = await load(reader(name, bytes.subarray(0, place)));
      expect(code, `${name} up to ${place}`).toMatch(/^(CORRUPT|FORMAT)$/);
      expect(numWrites).toBe(0);
    }
  });

  it('a flipped bit is found', async () => {
    const [name, bytes] = [...whole][index]!;
    for (const [i, place] of placesIn(bytes).entries()) {
      const spoilt = bytes.slice();
      spoilt[place]! ^= 1 << (i % 8);
      const { code, numWrites } = await load(reader(name, spoilt));
      expect(code, `${name} at ${place}`).toMatch(/^(CORRUPT|FORMAT)$/);
      expect(numWrites).toBe(0);
    }
  });
});
