// Keeps measured choices in the files of a folder, for Node.

import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type TuningStore, tableOf } from './tuning-store.js';

/**
 * A store with one file for each device. A file that is missing or damaged, or a folder that can't
 * be written, costs a new measurement and nothing else.
 * @param folder a directory, which is made where it is missing
 */
export function fileTuningStore(folder: string): TuningStore {
  const pathOf = (key: string) => {
    const name = key.toLowerCase().replaceAll(/[^a-z0-9]+/g, '-');
    return join(folder, `tiles-${name}.json`);
  };
  return {
    read: async (key) => {
      try {
        return tableOf(JSON.parse(await readFile(pathOf(key), 'utf8')));
      } catch {
        return undefined;
      }
    },
    write: async (key, table) => {
      const path = pathOf(key);
      const own = `${path}.${process.pid}`;
      try {
        await mkdir(folder, { recursive: true });
        await writeFile(own, `${JSON.stringify(table, null, 2)}\n`);
        await rename(own, path); // so that no other process reads half a file
      } catch {
        // The next run measures again.
      }
    },
  };
}
