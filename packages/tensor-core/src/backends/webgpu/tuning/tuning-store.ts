// Stores in which measured choices outlive a device. The one here is a browser's IndexedDB;
// file-tuning-store.ts has that of Node.

import type { MatmulChoiceTable } from '../kernel/matmul-choices.js';

/** A store of tables, each under the name of what it was measured on. */
export interface TuningStore {
  /** Resolves to the table, or to undefined where there is none that can be read. */
  read(key: string): Promise<MatmulChoiceTable | undefined>;
  /** Keeps a table if it can. A table that is lost is measured again. */
  write(key: string, table: MatmulChoiceTable): Promise<void>;
}

const TABLES = 'tiles';

/**
 * Keeps tables in a database of the page's origin; a page without one, or without room, measures
 * anew.
 */
export function indexedDbTuningStore(name = 'shardweave'): TuningStore {
  return {
    read: (key) =>
      inDatabase(name, (database) =>
        database.transaction(TABLES).objectStore(TABLES).get(key),
      ).then(tableOf, () => undefined),
    write: (key, table) =>
      inDatabase(name, (database) =>
        database.transaction(TABLES, 'readwrite').objectStore(TABLES).put(table, key),
      ).then(
        () => undefined,
        () => undefined,
      ),
  };
}

/** Returns a stored value as a table. It is checked, because anybody may have written it. */
export function tableOf(value: unknown): MatmulChoiceTable | undefined {
  const isTable =
    typeof value === 'object' &&
    value !== null &&
    Object.values(value).every((tile) => typeof tile === 'string');
  return isTable ? (value as MatmulChoiceTable) : undefined;
}

async function inDatabase(
  name: string,
  request: (database: IDBDatabase) => IDBRequest,
): Promise<unknown> {
  const opening = indexedDB.open(name);
  opening.onupgradeneeded = () => opening.result.createObjectStore(TABLES);
  const database = (await resultOf(opening)) as IDBDatabase;
  try {
    return await resultOf(request(database));
  } finally {
    database.close();
  }
}

function resultOf(request: IDBRequest): Promise<unknown> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
