// Files that are there whole or not at all: written under another name, and renamed when they are on
// the disk.

import { open, rename, rm } from 'node:fs/promises';

/** Writes `pieces` one after the other; a file of the name stays as it was until all are written. */
export async function writePieces(
  path: string,
  pieces: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): Promise<void> {
  const part = `${path}.part`;
  try {
    const file = await open(part, 'w');
    try {
      for await (const piece of pieces) {
        await writeAll(file, piece);
      }
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(part, path);
  } catch (error) {
    await rm(part, { force: true });
    throw error;
  }
}

/** A call may write less than it was given, on a disk that fills up for instance. */
async function writeAll(file: Awaited<ReturnType<typeof open>>, bytes: Uint8Array): Promise<void> {
  for (let done = 0; done < bytes.byteLength; ) {
    done += (await file.write(bytes, done)).bytesWritten;
  }
}
