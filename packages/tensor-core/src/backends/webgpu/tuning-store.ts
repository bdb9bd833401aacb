// Where measured choices outlive a device. In a browser that is its IndexedDB; for Node see
// file-tuning-store.ts.

import type { MatmulChoiceTable } from './matmul-choices.js';

/** Tables by what they were measured on. */
export interface TuningStore {
  /** Undefined where there is none, or none that can be read: it is then measured anew. */
  read(key: string): Promise<MatmulChoiceTable | undefined>;
  /** May be lost: whoever reads has a way without it. */
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

/** The value as a table: anybody may have written it. */
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
