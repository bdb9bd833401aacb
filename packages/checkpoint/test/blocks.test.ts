// A part reaches its place in whole pages whatever the sizes of its pieces are, so that a directory
// can hand them to the disk past the system's page cache.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import {
  crc32,
  type HeldPiece,
  type PieceStore,
  piecesIn,
  writePart,
} from '@shardweave/checkpoint';
import { pieceDirectory } from '@shardweave/checkpoint/node';
import { createHostStore } from '@shardweave/shard-store';
import { cachedBytes, whyNotPastCache } from '@shardweave/shard-store/testing-node';
import { expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';

const PAGE = 4096;
const BLOCK = 4 * 2 ** 20;
const NAMES = { save: 'one', part: 'all' };

/** bf16 tensors of odd sizes, short ones and some longer than a block. */
const SIZES = [3, 70_001, 5, BLOCK / 2 + 129, 1, BLOCK, 999, BLOCK / 2 - 1, 64];
/** Their bytes one after another, which differ from page to page. */
const WHOLE = Uint8Array.from(
  { length: 2 * SIZES.reduce((sum, size) => sum + size, 0) },
  (_, i) => (i * 31) ^ (i >>> 8),
);

/**
 * Returns the tensors. Every second one returns bytes of its own, and the others fill the array
 * that they are offered.
 */
function pieces(onOffer: (into: Uint8Array) => void = () => {}): HeldPiece[] {
  let before = 0;
  return SIZES.map((size, index) => {
    const first = before;
    before += 2 * size;
    const read: HeldPiece['read'] = async (start, end, into) => {
      onOffer(into);
      const bytes = WHOLE.subarray(first + 2 * start, first + 2 * end);
      if (index % 2 === 0) {
        return bytes;
      }
      into.set(bytes);
      return into;
    };
    const spec = { kind: 'buffer', name: `t${index}`, dtype: 'bf16', shape: [size] } as const;
    return { ...spec, start: 0, end: size, read };
  });
}

interface Write {
  readonly bytes: Uint8Array;
  readonly place: number;
  readonly offset: number;
}

/** Returns a place that keeps what it is given. */
function recording(writes: Write[]): PieceStore {
  return {
    ...piecesIn(createHostStore()),
    create: async () => ({
      write: async (bytes, offset) =>
        void writes.push({ bytes: bytes.slice(), place: bytes.byteOffset, offset }),
      finish: async () => {},
      abandon: async () => {},
    }),
  };
}

it('every write but the last is of whole pages, and long', async () => {
  const writes: Write[] = [];
  await writePart(recording(writes), pieces(), NAMES);
  expect(writes.length).toBeGreaterThan(3);
  for (const { bytes, place, offset } of writes.slice(0, -1)) {
    expect([bytes.byteLength % PAGE, place % PAGE, offset % PAGE]).toEqual([0, 0, 0]);
    expect(bytes.byteLength).toBeGreaterThan(64 * 1024);
  }
  expect(writes.at(-1)!.bytes.byteLength % PAGE).toBeGreaterThan(0);
  expect(Buffer.concat(writes.map(({ bytes }) => bytes)).equals(WHOLE)).toBe(true);
});

const unseen = await whyNotPastCache();

it.skipIf(unseen)(
  `a directory hands them to the disk${unseen === undefined ? '' : ` (${unseen})`}`,
  async () => {
    const directory = newFolder();
    const { files } = await writePart(pieceDirectory(directory), pieces(), NAMES);
    const [[name]] = Object.entries(files) as [[string, number]];
    // What is behind the last block goes through the page cache, and so do short blocks.
    expect(cachedBytes(join(directory, name))).toBeLessThan(2 ** 20);
  },
);

it('a directory has the bytes one after another, and says where each tensor lies', async () => {
  const directory = newFolder();
  const { files, tensors } = await writePart(pieceDirectory(directory), pieces(), NAMES);
  const [[name, byteLength]] = Object.entries(files) as [[string, number]];
  expect(byteLength).toBe(WHOLE.byteLength);
  const file = await readFile(join(directory, name));
  expect(file.equals(WHOLE)).toBe(true);
  for (const { pieces: saved } of tensors) {
    for (const { start, end, byteOffset, checksum } of saved) {
      expect(crc32(file.subarray(byteOffset, byteOffset + 2 * (end - start)))).toBe(checksum);
    }
  }
});
