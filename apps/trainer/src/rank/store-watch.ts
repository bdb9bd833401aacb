// What a run's stores take of the host and the disk. Each value counts at its largest, and each
// file that the disk store keeps for it, so that the numbers do not hang on what is written before
// what.

import type { ShardStore } from '@shardweave/shard-store';
import type { StoreBytes } from './events.js';
import { isNote } from './strategies/open-rest.js';
import type { OpenStore } from './strategies/strategy.js';

/**
 * A value's files, by the disk store's rule: a write goes to the first slot without a value that
 * counts.
 */
interface Value {
  byteLength: number;
  current: number;
  committed: number;
  numSlots: number;
}

const NOWHERE = -1;
/** A value has three files at most, and each step may begin to use one. */
const NUM_STEPS_TO_REST = 2;

/** One store, without what it stores. */
class Values {
  readonly #values = new Map<string, Value>();

  write(key: string, byteLength: number): void {
    const value = this.#values.get(key) ?? {
      ...{ byteLength, current: NOWHERE, committed: NOWHERE, numSlots: 0 },
    };
    const slot = [0, 1, 2].find((one) => one !== value.current && one !== value.committed)!;
    value.byteLength = Math.max(value.byteLength, byteLength);
    value.current = slot;
    value.numSlots = Math.max(value.numSlots, slot + 1);
    this.#values.set(key, value);
  }

  delete(key: string): void {
    const value = this.#values.get(key);
    if (value !== undefined) {
      value.current = NOWHERE;
    }
  }

  commit(): void {
    for (const value of this.#values.values()) {
      value.committed = value.current;
    }
  }

  keys(): readonly [string, number][] {
    return [...this.#values].map(([key, { byteLength }]) => [key, byteLength]);
  }

  sum(of: (value: Value) => number): number {
    return [...this.#values.values()].reduce((all, value) => all + of(value), 0);
  }
}

export class StoreWatch {
  readonly #hosts: Values[] = [];
  readonly #disks: Values[] = [];
  /** What was done since `beginStep`. */
  #done: (() => void)[] | undefined;

  /** Opens by `open`, and watches. */
  opening(open: OpenStore): OpenStore {
    return async (directory) => {
      const values = new Values();
      (directory === undefined ? this.#hosts : this.#disks).push(values);
      return this.#watched(await open(directory), values);
    };
  }

  bytes(): StoreBytes {
    const sum = (stores: readonly Values[], of: (value: Value) => number) =>
      stores.reduce((all, values) => all + values.sum(of), 0);
    return {
      hostBytes: sum(this.#hosts, ({ byteLength }) => byteLength),
      diskBytes: sum(this.#disks, ({ byteLength, numSlots }) => byteLength * numSlots),
    };
  }

  /** For a dry run: all values again, as where files are read in the place of what was drawn. */
  writeAgain(): void {
    for (const values of [...this.#hosts, ...this.#disks]) {
      for (const [key, byteLength] of values.keys().filter(([each]) => !isNote(each))) {
        values.write(key, byteLength);
      }
      values.commit();
    }
  }

  /** For a dry run: from here to `repeat` is a step of which more would follow. */
  beginStep(): void {
    this.#done = [];
  }

  /** The step again, so often that another one would need no further file. */
  repeat(): void {
    for (let step = 0; step < NUM_STEPS_TO_REST; step++) {
      for (const act of this.#done ?? []) {
        act();
      }
    }
  }

  #watched(store: ShardStore, values: Values): ShardStore {
    const note = (act: () => void) => {
      act();
      this.#done?.push(act);
    };
    const own: Partial<ShardStore> = {
      write: (key, bytes, options) => {
        const { byteLength } = bytes;
        note(() => values.write(key, byteLength));
        return store.write(key, bytes, options);
      },
      delete: (key) => {
        note(() => values.delete(key));
        return store.delete(key);
      },
      commit: () => {
        note(() => values.commit());
        return store.commit();
      },
    };
    return new Proxy(store, {
      get: (target, name) => {
        const value: unknown = Reflect.get(name in own ? own : target, name);
        return typeof value === 'function' && !(name in own) ? value.bind(target) : value;
      },
    });
  }
}
