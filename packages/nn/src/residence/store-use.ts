// What all flat parameters in one store share: their names in it, the commit of a step, and the
// converter of 16-bit floats.

import { WireCodec } from '@shardweave/dtypes';
import type { ByteStore } from './byte-store.js';

export class StoreUse {
  readonly store: ByteStore;
  readonly #names = new Set<string>();
  readonly #pending = new Set<Promise<void>>();
  #codec: Promise<WireCodec> | undefined;

  constructor(store: ByteStore) {
    this.store = store;
  }

  /** A name that no other flat parameter has: `name`, or with a number behind it. */
  claim(name: string): string {
    let claimed = name;
    for (let count = 2; this.#names.has(claimed); count++) {
      claimed = `${name}#${count}`;
    }
    this.#names.add(claimed);
    return claimed;
  }

  release(name: string): void {
    this.#names.delete(name);
  }

  /** Removes what an earlier program left under a name. */
  async clear(name: string): Promise<void> {
    const left = this.store.keys().filter((key) => key.startsWith(`${name}/`));
    await Promise.all(left.map((key) => this.store.delete(key)));
  }

  codec(): Promise<WireCodec> {
    this.#codec ??= WireCodec.create();
    return this.#codec;
  }

  /** What a commit that is called after this one has to find done; it never rejects. */
  awaitBeforeCommit(work: Promise<void>): void {
    this.#pending.add(work);
    void work.then(() => this.#pending.delete(work));
  }

  /** The end of a step: what is stored now is what a next process finds. */
  async commit(): Promise<void> {
    await Promise.all(this.#pending);
    await this.store.commit();
  }
}

// Keyed by store: a fact about it, not state of this module.
const USES = new WeakMap<ByteStore, StoreUse>();

/** The one use of a store by all flats in it. */
export function storeUseOf(store: ByteStore): StoreUse {
  let use = USES.get(store);
  if (use === undefined) {
    use = new StoreUse(store);
    USES.set(store, use);
  }
  return use;
}
