// Keeps saves as plain files in a directory, which several processes may share. Files that are not
// named like those of a save are left alone.

import { join, resolve } from 'node:path';
import { crc32 } from 'node:zlib';
import { StoreLockedError } from '@shardweave/shard-store';
import {
  type FileLayer,
  lockDirectory,
  nodeFiles,
  type OpenFile,
  withFile,
  writeFully,
} from '@shardweave/shard-store/node';
import { CheckpointBusyError, CheckpointCorruptError, CheckpointUsageError } from '../errors.js';
import type { PieceSink, PieceStore } from '../piece-store.js';

/** The file system that a directory of pieces is kept on. */
export interface PieceDirectoryOptions {
  /** The file system. Default: Node's. */
  readonly files?: FileLayer;
}

/**
 * The store of the save in `directory`, which is made when the first save begins. Files reach the
 * disk before an index names them, and the index replaces the one before by a rename.
 */
export function pieceDirectory(directory: string, options: PieceDirectoryOptions = {}): PieceStore {
  const { files = nodeFiles } = options;
  const root = resolve(directory);
  const pathOf = (file: string) => {
    if (/^[\w-][\w.-]*$/.test(file)) {
      return join(root, file);
    }
    throw new CheckpointUsageError(
      `pieceDirectory: expected the name of a file in ${root}, got '${file}'.`,
    );
  };
  const openedToRead = async (file: string) => {
    const open = await files.openToRead(pathOf(file)).catch(ifMissing);
    if (open === undefined) {
      throw new CheckpointCorruptError(
        `read: expected '${file}' in ${root}, got no such file. It was removed, or is in the directory of another rank.`,
        { file },
      );
    }
    return open;
  };
  return {
    description: `directory ${root}`,
    crc32,
    byteLength: async (file) => {
      const open = await files.openToRead(pathOf(file)).catch(ifMissing);
      return open && withFile(Promise.resolve(open), (file) => file.byteLength());
    },
    read: async (file, into, { offset }) =>
      withFile(openedToRead(file), async (open) => {
        for (let done = 0; done < into.byteLength; ) {
          const count = await open.read(into.subarray(done), offset + done);
          if (count === 0) {
            throw new CheckpointCorruptError(
              `read: expected ${into.byteLength} bytes from ${offset} on in '${file}' in ${root}, got ${done}. The file is cut off.`,
              { file },
            );
          }
          done += count;
        }
      }),
    files: async () => (await files.list(root).catch(ifMissing)) ?? [],
    create: async (file) => {
      const path = pathOf(file);
      await files.makeDirectory(root);
      return new FileSink(files, await files.create(path), path);
    },
    adopt: async (file, held) => {
      const path = pathOf(file);
      await files.makeDirectory(root);
      if (!(await held.linkAs(path))) {
        return false;
      }
      await withFile(files.openToWrite(path), (open) => open.sync());
      return true;
    },
    replace: async (file, bytes) => {
      const path = pathOf(file);
      const next = `${path}.next`;
      await withFile(files.openToWrite(next), async (open) => {
        await writeFully(open, bytes, 0);
        await open.truncate(bytes.byteLength);
        await open.sync();
      });
      await files.syncDirectory(root); // the names that the index tells of reach the disk before it
      await files.rename(next, path);
      await files.syncDirectory(root);
    },
    delete: async (file) => {
      await files.unlink(pathOf(file)).catch(ifMissing);
    },
    lock: async () => {
      await files.makeDirectory(root);
      try {
        const { release } = await lockDirectory(files, root);
        return release;
      } catch (error) {
        if (!(error instanceof StoreLockedError)) {
          throw error;
        }
        throw new CheckpointBusyError(
          `save: expected nobody else to save into ${root}, got a save that has not ended. ${error.message}`,
          { cause: error },
        );
      }
    },
  };
}

class FileSink implements PieceSink {
  readonly #files: FileLayer;
  readonly #open: OpenFile;
  readonly #path: string;

  constructor(files: FileLayer, open: OpenFile, path: string) {
    this.#files = files;
    this.#open = open;
    this.#path = path;
  }

  write(bytes: Uint8Array, offset: number): Promise<void> {
    return writeFully(this.#open, bytes, offset);
  }

  async finish(): Promise<void> {
    await this.#open.sync();
    await this.#open.close();
  }

  async abandon(): Promise<void> {
    await this.#open.close().catch(() => undefined); // closed already where finish failed
    await this.#files.unlink(this.#path).catch(ifMissing);
  }
}

function ifMissing(error: NodeJS.ErrnoException): undefined {
  if (error.code !== 'ENOENT') {
    throw error;
  }
  return undefined;
}
