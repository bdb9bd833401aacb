// For tests of what a failing disk does to a user of the disk store, and of how files are written.
// Node only.

import type { FileLayer, OpenFile } from './disk/file-layer.js';
import { nodeFiles } from './disk/node-files.js';

export { cachedBytes, whyNotPastCache } from './testing/page-cache.js';

/** A call of a file layer that is about to be made; lengths are in bytes. */
export interface FileCall {
  readonly operation: keyof FileLayer | keyof OpenFile;
  readonly path: string;
  /** The end of the file after a write or truncation. */
  readonly end?: number;
}

/**
 * The file system `files` with `before` called ahead of each of its calls. Where `before` throws,
 * the call does.
 */
export function interceptFiles(
  before: (call: FileCall) => void | Promise<void>,
  files: FileLayer = nodeFiles,
): FileLayer {
  const on =
    <Result>(operation: keyof FileLayer, call: (path: string) => Promise<Result>) =>
    async (path: string): Promise<Result> => {
      await before({ operation, path });
      return call(path);
    };
  const opening = (operation: 'openToRead' | 'openToWrite' | 'create') =>
    on(operation, async (path) => interceptFile(await files[operation](path), path, before));
  return {
    openToRead: opening('openToRead'),
    openToWrite: opening('openToWrite'),
    create: opening('create'),
    rename: async (from, to) => {
      await before({ operation: 'rename', path: from });
      await files.rename(from, to);
    },
    link: async (from, to) => {
      await before({ operation: 'link', path: from });
      await files.link(from, to);
    },
    unlink: on('unlink', files.unlink),
    list: on('list', files.list),
    makeDirectory: on('makeDirectory', files.makeDirectory),
    syncDirectory: on('syncDirectory', files.syncDirectory),
  };
}

/** The error that a full disk gives. */
export function diskFull(path: string): Error & { readonly code: string } {
  return Object.assign(new Error(`ENOSPC: no space left on device, write '${path}'`), {
    code: 'ENOSPC',
  });
}

function interceptFile(
  file: OpenFile,
  path: string,
  before: (call: FileCall) => void | Promise<void>,
): OpenFile {
  return {
    read: async (into, position) => {
      await before({ operation: 'read', path });
      return file.read(into, position);
    },
    write: async (bytes, position) => {
      await before({ operation: 'write', path, end: position + bytes.byteLength });
      return file.write(bytes, position);
    },
    truncate: async (byteLength) => {
      await before({ operation: 'truncate', path, end: byteLength });
      await file.truncate(byteLength);
    },
    byteLength: async () => {
      await before({ operation: 'byteLength', path });
      return file.byteLength();
    },
    linkCount: async () => {
      await before({ operation: 'linkCount', path });
      return file.linkCount();
    },
    sync: async () => {
      await before({ operation: 'sync', path });
      await file.sync();
    },
    close: async () => {
      await file.close(); // even where it failed, so that tests leak no handles
      await before({ operation: 'close', path });
    },
  };
}
