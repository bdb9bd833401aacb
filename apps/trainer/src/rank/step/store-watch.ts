// Counts what a run's stores take of the host and the disk. Each value counts at its largest, and
// so does each file that the disk store keeps for it, so that the numbers do not depend on the
// order of writes.

import type { ShardStore } from '@shardweave/shard-store';
import type { StoreBytes } from '../events.js';
import { isNote } from '../strategies/open-rest.js';
import type { OpenStore } from '../strategies/strategy.js';

/**
 * The files of a value, by the disk store's rule: a write goes to the first slot without a value
 * that counts.
 */
interface Value {
  byteLength: number;
  current: number;
  committed: number;
  numSlots: number;
}

const NOWHERE = -1;
/**
 * The steps after which no further file appears: a value has three files at most, and each step may
 * begin to use one.
 */
const NUM_STEPS_TO_REST = 2;

/** One store, without its values. */
class Values {
  readonly #values = new Map<string, Value>();

  write(key: string, byteLength: number): void {
    const value = this.#values.get(key) ?? {
      ...{ byteLength, current: NOWHERE, committed: NOWHERE, numSlots: 0 },
    };
    const slot = [0, 1, 2].find(
      (number) => number !== value.current && number !== value.committed,
    )!;
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

  /** Opens stores by `open`, and watches them. */
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

  /** For a dry run: writes all values again, as happens where files replace drawn values. */
  writeAgain(): void {
    for (const values of [...this.#hosts, ...this.#disks]) {
      for (const [key, byteLength] of values.keys().filter(([key]) => !isNote(key))) {
        values.write(key, byteLength);
      }
      values.commit();
    }
  }

  /** For a dry run: begins a step that `repeat` repeats. */
  beginStep(): void {
    this.#done = [];
  }

  /** Repeats the step so often that another repetition would need no further file. */
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
