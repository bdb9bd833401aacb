// The file layer of Node itself.

import { constants } from 'node:fs';
import { link, mkdir, open, readdir, rename, unlink } from 'node:fs/promises';
import type { FileLayer, OpenFile } from './file-layer.js';
import { withPageWrites } from './page-writes.js';

/** The file system of `node:fs/promises`. */
export const nodeFiles: FileLayer = {
  openToRead: (path) => openWith(path, constants.O_RDONLY),
  openToWrite: (path) => openWith(path, constants.O_RDWR | constants.O_CREAT),
  create: async (path) => {
    const file = await openWith(path, constants.O_RDWR | constants.O_CREAT | constants.O_EXCL);
    return withPageWrites(path, file);
  },
  rename,
  link,
  unlink,
  list: (directory) => readdir(directory),
  makeDirectory: (path) => mkdir(path, { recursive: true }),
  syncDirectory: async (path) => {
    if (process.platform === 'win32') {
      return; // has no handles of directories
    }
    const handle = await open(path, constants.O_RDONLY);
    try {
      await handle.sync();
    } finally {
      await handle.close();
    }
  },
};

async function openWith(path: string, flags: number): Promise<OpenFile> {
  const handle = await open(path, flags);
  return {
    read: async (into, position) =>
      (await handle.read(into, 0, into.byteLength, position)).bytesRead,
    write: async (bytes, position) =>
      (await handle.write(bytes, 0, bytes.byteLength, position)).bytesWritten,
    truncate: (byteLength) => handle.truncate(byteLength),
    byteLength: async () => (await handle.stat()).size,
    linkCount: async () => (await handle.stat()).nlink,
    sync: () => handle.sync(),
    close: () => handle.close(),
  };
}
