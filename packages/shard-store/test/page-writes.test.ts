// Long writes of whole pages to a new file go past the system's page cache where the file system
// can, and whatever way they go, the file has their bytes.

import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type FileLayer, nodeFiles, withFile, writeFully } from '@shardweave/shard-store/node';
import { cachedBytes, whyNotPastCache } from '@shardweave/shard-store/testing-node';
import { describe, expect, it } from 'vitest';
import { newFolder } from '../../../tooling/test-kit/folders.ts';

const PAGE = 4096;
const LONG = 2 ** 20;

/** Returns bytes in memory that begins at a page, each telling where it lies. */
function pages(byteLength: number): Uint8Array {
  const memory = new WebAssembly.Memory({ initial: Math.ceil(byteLength / 2 ** 16) });
  const bytes = new Uint8Array(memory.buffer, 0, byteLength);
  bytes.forEach((_, i) => {
    bytes[i] = i % 251;
  });
  return bytes;
}

interface Part {
  readonly bytes: Uint8Array;
  readonly position: number;
}

/** Writes the parts to a new file, syncs it, and gives its path. */
async function write(parts: readonly Part[], files: FileLayer = nodeFiles): Promise<string> {
  const path = join(newFolder(), 'file');
  await withFile(files.create(path), async (file) => {
    for (const { bytes, position } of parts) {
      await writeFully(file, bytes, position);
    }
    await file.sync();
  });
  return path;
}

const unseen = await whyNotPastCache();

describe.skipIf(unseen)(`past the page cache${unseen === undefined ? '' : ` (${unseen})`}`, () => {
  it('goes a long write of whole pages', async () => {
    const bytes = pages(LONG);
    const path = await write([{ bytes, position: 0 }]);
    expect(cachedBytes(path)).toBe(0);
    expect((await readFile(path)).equals(bytes)).toBe(true);
  });

  it('goes no short write, which would wait for the disk', async () => {
    const path = await write([{ bytes: pages(2 * PAGE), position: 0 }]);
    expect(cachedBytes(path)).toBe(2 * PAGE);
  });
});

it('writes of all kinds one after another are whole', async () => {
  const whole = pages(3 * LONG);
  const expected = Uint8Array.from({ length: 3 * LONG + 77 }, (_, i) => (i * 7) % 256);
  const place = (from: number, to: number, memory: Uint8Array): Part => {
    memory.set(expected.subarray(from, to));
    return { bytes: memory, position: from };
  };
  const path = await write([
    place(0, LONG, pages(LONG)),
    // The next two begin in the middle of a page: one of the file, one of memory.
    place(LONG, LONG + 10, new Uint8Array(10)),
    place(LONG + 10, 2 * LONG, pages(LONG).subarray(0, LONG - 10)),
    place(2 * LONG, 2 * LONG + LONG / 2, whole.subarray(24, 24 + LONG / 2)),
    // This one has the lengths and places of whole pages, in memory that begins anywhere.
    place(2 * LONG + LONG / 2, 3 * LONG, new Uint8Array(LONG / 2)),
    place(3 * LONG, 3 * LONG + 77, pages(77)),
  ]);
  expect((await readFile(path)).equals(expected)).toBe(true);
});

it('a new file takes long writes behind one whose memory began in the middle of a page', async () => {
  const parts = [0, 1, 2].map((i) => ({
    bytes: i === 1 ? new Uint8Array(LONG + 8).subarray(8).fill(i) : pages(LONG).fill(i),
    position: i * LONG,
  }));
  const path = await write(parts);
  const expected = Buffer.concat(parts.map(({ bytes }) => bytes));
  expect((await readFile(path)).equals(expected)).toBe(true);
});

it('an error of the disk is that of the write', async () => {
  const path = join(newFolder(), 'file');
  const file = await nodeFiles.create(path);
  await writeFully(file, pages(LONG), 0);
  await file.close();
  await expect(file.write(pages(LONG), LONG)).rejects.toMatchObject({ code: 'EBADF' });
});
