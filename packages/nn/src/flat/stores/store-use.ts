// What all flat parameters in one store share: the set of their names, the commit of a step, and
// the converter of 16-bit floats.

import { WireCodec } from '@shardweave/dtypes';
import type { Device } from '@shardweave/tensor-core';
import { OptimizerError } from '../../errors.js';
import type { ByteStore } from './byte-store.js';

// Note [steps over a store]
// A step changes flat after flat, and each of them may fail to be read, stepped or written. The
// commit comes only after the last flat, so a later process finds what was committed before the
// failed step. In this process, however, some flats are already a step ahead: keeping the old
// values of a whole model would take as much host memory again. A step that failed is therefore
// owed: it remembers which flats are left and what it was called with. Calling it again finishes
// those, and so does whatever next reads parameters or state, or commits. Until that succeeds, the
// store gives out no values, and the gradients that the step needs are not cleared.

/** A step over homes that can be finished after it failed. */
export interface UnfinishedStep {
  finish(): Promise<void>;
}

/**
 * What the flats of one store share: their names in it, the commit of a step, and a step that
 * failed half-way and is still owed. See Note [steps over a store].
 */
export class StoreUse {
  readonly store: ByteStore;
  readonly #claims = new Map<string, { readonly device: Device }>();
  readonly #pending = new Set<Promise<void>>();
  readonly #companions = new Set<{ write(): Promise<void> }>();
  /** The step that is under way; it never rejects. */
  #running: Promise<void> | undefined;
  /** The step that failed half-way. No other step begins before it is finished. */
  #owed: UnfinishedStep | undefined;
  #codec: Promise<WireCodec> | undefined;
  /** The one buffer that all values of a dry store share. */
  #nowhere = new Uint8Array();

  constructor(store: ByteStore) {
    this.store = store;
  }

  /**
   * Takes names in the store for a model on `device` and for its flats, all of them or none. The
   * returned function gives them back; the device's disposal does, too.
   * @throws {OptimizerError} for a name that is taken: a later process finds values by their names
   * alone, and numbers in the order of first calls could swap two models
   */
  claim(names: readonly string[], device: Device): () => void {
    const taken = this.#liveClaims().map(([name]) => name);
    for (const name of names) {
      const clash = taken.find((other) => isWithin(other, name) || isWithin(name, other));
      if (clash !== undefined) {
        throw new OptimizerError(
          `store: expected a name that no other model or flat parameter in the store has, got '${name}' beside '${clash}'. Give each model a name of its own (option name), or dispose the other.`,
        );
      }
      taken.push(name);
    }
    const claim = { device };
    for (const name of names) {
      this.#claims.set(name, claim);
    }
    return () => {
      for (const name of names) {
        if (this.#claims.get(name) === claim) {
          this.#claims.delete(name);
        }
      }
    };
  }

  /** Whether models on another device, and so of another rank, have names in the store. */
  isSharedBeyond(device: Device): boolean {
    return this.#liveClaims().some(([, claim]) => claim.device !== device);
  }

  #liveClaims() {
    return [...this.#claims].filter(([, { device }]) => !device.isDisposed);
  }

  /** Removes what an earlier program left under a name. */
  async clear(name: string): Promise<void> {
    const left = this.store.keys().filter((key) => key.startsWith(`${name}/`));
    await Promise.all(left.map((key) => this.store.delete(key)));
  }

  /** The converter; undefined for a dry store, whose bytes nobody looks at. */
  async codec(): Promise<WireCodec | undefined> {
    if (this.store.isDry === true) {
      return undefined;
    }
    this.#codec ??= WireCodec.create();
    return this.#codec;
  }

  /**
   * Bytes for a value on its way. A dry store gives the same bytes to all: a new array for each
   * value of a large model would cost more time in the garbage collector than everything else.
   */
  room(byteLength: number): Uint8Array {
    if (this.store.isDry !== true) {
      return new Uint8Array(byteLength);
    }
    if (this.#nowhere.byteLength < byteLength) {
      this.#nowhere = new Uint8Array(byteLength);
    }
    return this.#nowhere.subarray(0, byteLength);
  }

  /** Makes every commit that is called later wait for `work`, which must never reject. */
  awaitBeforeCommit(work: Promise<void>): void {
    this.#pending.add(work);
    void work.then(() => this.#pending.delete(work));
  }

  /**
   * Calls `write` before each commit, to store what belongs to a generation besides the flats. The
   * returned function ends this.
   */
  join(write: () => Promise<void>): () => void {
    const companion = { write };
    this.#companions.add(companion);
    return () => void this.#companions.delete(companion);
  }

  /** Whether `step` may begin. */
  isFree(step: UnfinishedStep): boolean {
    return this.#running === undefined && (this.#owed === undefined || this.#owed === step);
  }

  /**
   * Resolves when no step is under way. Steps that failed half-way are finished first, except
   * `step`.
   */
  async rest(step?: UnfinishedStep): Promise<void> {
    for (;;) {
      if (this.#running !== undefined) {
        await this.#running;
      } else if (this.#owed !== undefined && this.#owed !== step) {
        await this.#owed.finish();
      } else {
        return;
      }
    }
  }

  /**
   * Begins a step. The returned function ends it, and says whether it is whole or failed half-way.
   */
  begin(step: UnfinishedStep): (isWhole: boolean) => void {
    let resolve = () => {};
    this.#running = new Promise((end) => {
      resolve = end;
    });
    return (isWhole) => {
      this.#running = undefined;
      this.#owed = isWhole ? undefined : step;
      resolve();
    };
  }

  /**
   * Makes what is stored the generation that a later process finds.
   * @param step the step that ends with it; without one the commit waits until no step is under way
   */
  async commit(step?: UnfinishedStep): Promise<void> {
    if (step === undefined) {
      await this.rest();
    }
    await Promise.all(this.#pending);
    for (const { write } of this.#companions) {
      await write();
    }
    await this.store.commit();
  }

  /** @throws {OptimizerError} where a step failed half-way and is not finished */
  requireWhole(name: string): void {
    if (this.#owed === undefined) {
      return;
    }
    throw new OptimizerError(
      `optimizer: expected '${name}' in its store as a whole step left it, got one that failed half-way. Finish it first: await optimizer.step() again.`,
    );
  }
}

/** Whether the keys of a name would be among those of another, as `a/2` and `a`. */
function isWithin(name: string, other: string): boolean {
  return `${name}/`.startsWith(`${other}/`);
}

const USE = Symbol('nn store use');

/** The StoreUse of a store. All flats in the store get the same one. */
export function storeUseOf(store: ByteStore): StoreUse {
  let use = store.locals.get(USE) as StoreUse | undefined;
  if (use === undefined) {
    use = new StoreUse(store);
    store.locals.set(USE, use);
  }
  return use;
}
