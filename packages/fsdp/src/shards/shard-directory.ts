// Sharded saves as plain files in a directory, which ranks may share. A file is there whole or not at
// all.

import { mkdir, open, rename, rm, stat } from 'node:fs/promises';
import { dirname, relative, resolve, sep } from 'node:path';
import { FsdpStateDictError } from '../errors.js';
import type { ShardReader, ShardSink } from './shard-index.js';

/**
 * A sink and a reader of files below `directory`, which is made when the first one is written. Files
 * reach the disk before `write` resolves; names are the keys, '/' between directories.
 */
export function shardDirectory(directory: string): ShardSink & ShardReader {
  const root = resolve(directory);
  const pathOf = (key: string) => {
    const path = resolve(root, key);
    const inside = relative(root, path);
    if (inside !== '' && inside !== '..' && !inside.startsWith(`..${sep}`)) {
      return path;
    }
    throw new FsdpStateDictError(
      `shardDirectory: expected a file below ${root}, got '${key}'. Is the index from somewhere else?`,
    );
  };
  return {
    async write(key, bytes) {
      const path = pathOf(key);
      await mkdir(dirname(path), { recursive: true });
      const part = `${path}.part`;
      try {
        const file = await open(part, 'w');
        try {
          await file.writeFile(bytes);
          await file.sync();
        } finally {
          await file.close();
        }
        await rename(part, path);
      } catch (error) {
        await rm(part, { force: true });
        throw error;
      }
    },

    async byteLength(key) {
      const path = pathOf(key);
      const found = await stat(path).catch((error: NodeJS.ErrnoException) => {
        if (error.code === 'ENOENT') {
          return undefined;
        }
        throw error;
      });
      return found?.size;
    },

    async read(key, into, { offset }) {
      const file = await open(pathOf(key), 'r');
      try {
        for (let done = 0; done < into.byteLength; ) {
          const length = into.byteLength - done;
          const { bytesRead } = await file.read(into, done, length, offset + done);
          if (bytesRead === 0) {
            throw new FsdpStateDictError(
              `shardDirectory: expected ${into.byteLength} bytes from ${offset} on in '${key}', got ${done}. The file is cut off.`,
            );
          }
          done += bytesRead;
        }
      } finally {
        await file.close();
      }
    },
  };
}
