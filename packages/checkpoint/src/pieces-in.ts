// Keeps saves in a ShardStore: in host memory, for pages and tests, or in any other implementation
// of that seam. A store takes only whole values, so a file is a row of them: `index.json/0`,
// `index.json/1` and so on.

import type { ShardStore } from '@shardweave/shard-store';
import { CheckpointBusyError } from './errors.js';
import type { PieceSink, PieceStore } from './piece-store.js';

/** How the keys of pieces are named. */
export interface PiecesInOptions {
  /** The text before every key. Default ''. */
  readonly prefix?: string;
}

/**
 * The byte length of every value of a file but the last. A file that is being written takes as much
 * memory.
 */
const VALUE_BYTES = 4 * 2 ** 20;

/**
 * The place for one save in `store`. Publishing a save commits the store, so nothing else may
 * commit it meanwhile. Make only one place per store, because its lock does not know of another.
 */
export function piecesIn(store: ShardStore, options: PiecesInOptions = {}): PieceStore {
  const { prefix = '' } = options;
  const keyOf = (file: string, index: number) => `${prefix}${file}/${index}`;
  const lengthsOf = (file: string) => {
    const lengths: number[] = [];
    for (let length = store.byteLength(keyOf(file, 0)); length !== undefined; ) {
      lengths.push(length);
      length = store.byteLength(keyOf(file, lengths.length));
    }
    return lengths;
  };
  const remove = async (file: string) => {
    // The first value is deleted last: without it the others would not be found again.
    for (let index = lengthsOf(file).length - 1; index >= 0; index--) {
      await store.delete(keyOf(file, index));
    }
  };
  let isLocked = false;
  return {
    description: `${store.description}${prefix === '' ? '' : ` under '${prefix}'`}`,
    byteLength: (file) => {
      const lengths = lengthsOf(file);
      return lengths.length === 0 ? undefined : lengths.reduce((sum, length) => sum + length, 0);
    },
    read: async (file, into, { offset }) => {
      const valueBytes = store.byteLength(keyOf(file, 0)) || VALUE_BYTES;
      for (let done = 0; done < into.byteLength; ) {
        const at = offset + done;
        const index = Math.floor(at / valueBytes);
        const within = at - index * valueBytes;
        const part = into.subarray(
          done,
          done + Math.min(into.byteLength - done, valueBytes - within),
        );
        await store.read(keyOf(file, index), part, { offset: within });
        done += part.byteLength;
      }
    },
    files: async () => {
      const own = store.keys().filter((key) => key.startsWith(prefix));
      const names = own.flatMap((key) => /^(.*)\/\d+$/.exec(key.slice(prefix.length))?.[1] ?? []);
      return [...new Set(names)];
    },
    create: async (file) =>
      new ValueSink(
        (index, bytes) => store.write(keyOf(file, index), bytes),
        () => remove(file),
      ),
    replace: async (file, bytes) => {
      await store.write(keyOf(file, 0), bytes);
      await store.commit();
    },
    delete: remove,
    lock: async () => {
      if (isLocked) {
        throw new CheckpointBusyError(
          `save: expected nobody else to save into ${store.description}, got a save that has not ended.`,
        );
      }
      isLocked = true;
      return async () => {
        isLocked = false;
      };
    },
  };
}

/** Fills values one after another. */
class ValueSink implements PieceSink {
  readonly #write: (index: number, bytes: Uint8Array) => Promise<void>;
  readonly #remove: () => Promise<void>;
  readonly #value = new Uint8Array(VALUE_BYTES);
  #used = 0;
  #numWritten = 0;

  constructor(
    write: (index: number, bytes: Uint8Array) => Promise<void>,
    remove: () => Promise<void>,
  ) {
    this.#write = write;
    this.#remove = remove;
  }

  async write(bytes: Uint8Array): Promise<void> {
    for (let done = 0; done < bytes.byteLength; ) {
      const part = bytes.subarray(done, done + VALUE_BYTES - this.#used);
      this.#value.set(part, this.#used);
      this.#used += part.byteLength;
      done += part.byteLength;
      if (this.#used === VALUE_BYTES) {
        await this.#flush();
      }
    }
  }

  async finish(): Promise<void> {
    if (this.#used > 0 || this.#numWritten === 0) {
      await this.#flush();
    }
  }

  abandon(): Promise<void> {
    return this.#remove();
  }

  async #flush(): Promise<void> {
    await this.#write(this.#numWritten, this.#value.subarray(0, this.#used));
    this.#numWritten += 1;
    this.#used = 0;
  }
}
