// The keys, values, waiting calls and barriers of one attempt of one run: the semantics of the
// store, without sockets. Every change is made in one turn, so calls take effect one after another.

import { StoreError } from '../errors.js';
import type { StoreBudget } from './store-limits.js';

/**
 * A call that waits. Exactly one of the two is called, once, unless the call is withdrawn before.
 */
export interface Waiting {
  resolve(): void;
  reject(error: StoreError): void;
}

interface KeyWait extends Waiting {
  readonly missing: Set<string>;
}

interface Barrier {
  readonly worldSize: number;
  readonly arrived: Map<number, Waiting>;
  /** The reason for which a rank gave up; a rank that comes later gets it at once. */
  failure: StoreError | undefined;
}

const INTEGER = /^[+-]?\d{1,16}$/;

export class StoreTable {
  readonly #budget: StoreBudget;
  readonly #values = new Map<string, Uint8Array>();
  readonly #waits = new Set<KeyWait>();
  readonly #barriers = new Map<string, Barrier>();

  constructor(budget: StoreBudget) {
    this.#budget = budget;
  }

  get numKeys(): number {
    return this.#values.size;
  }

  get(key: string): Uint8Array | undefined {
    return this.#values.get(key);
  }

  /** Sets a key. `value` belongs to the store from here on. */
  set(key: string, value: Uint8Array): void {
    const { maxValueBytes } = this.#budget.limits;
    const what = `store set ${quote(key)}`;
    if (value.byteLength > maxValueBytes) {
      const text = `expected at most ${maxValueBytes} bytes, got ${value.byteLength}`;
      throw new StoreError('STORE_LIMIT', `${what}: ${text}`);
    }
    const old = this.#values.get(key);
    const growth = value.byteLength - (old === undefined ? -bytesOf(key) : old.byteLength);
    this.#budget.change(what, old === undefined ? 1 : 0, growth);
    this.#values.set(key, value);
    for (const wait of this.#waits) {
      if (wait.missing.delete(key) && wait.missing.size === 0) {
        this.#waits.delete(wait);
        wait.resolve();
      }
    }
  }

  /**
   * Returns the sum, which becomes the key's value in decimal digits; a missing key counts as 0.
   */
  add(key: string, amount: number): number {
    const old = this.#values.get(key);
    const text = old === undefined ? '0' : Buffer.from(old).toString('latin1');
    const sum = Number(text) + amount;
    if (!INTEGER.test(text) || !Number.isSafeInteger(sum)) {
      const problem = INTEGER.test(text)
        ? `${text} + ${amount} is no safe integer`
        : 'its value is no integer';
      throw new StoreError('STORE_USAGE', `store add ${quote(key)}: ${problem}`);
    }
    this.set(key, Buffer.from(String(sum)));
    return sum;
  }

  /** Sets `desired` where the value is `expected`; undefined stands for a key without a value. */
  compareSet(key: string, expected: Uint8Array | undefined, desired: Uint8Array): boolean {
    const value = this.#values.get(key);
    const isExpected =
      value === undefined || expected === undefined
        ? value === expected
        : Buffer.compare(value, expected) === 0;
    if (isExpected) {
      this.set(key, desired);
    }
    return isExpected;
  }

  delete(key: string): boolean {
    const value = this.#values.get(key);
    if (value === undefined) {
      return false;
    }
    this.#budget.change('store delete', -1, -bytesOf(key) - value.byteLength);
    return this.#values.delete(key);
  }

  missing(keys: readonly string[]): readonly string[] {
    return keys.filter((key) => !this.#values.has(key));
  }

  /**
   * Resolves at once, or when the last of `keys` is set; a key that was set and then deleted while
   * others are waited for counts as set. Returns a function that withdraws the call.
   */
  wait(keys: readonly string[], waiting: Waiting): () => void {
    const missing = new Set(this.missing(keys));
    if (missing.size === 0) {
      waiting.resolve();
      return () => {};
    }
    const bytes = [...missing].reduce((sum, key) => sum + bytesOf(key), 0);
    this.#budget.change('store wait', missing.size, bytes);
    const giveBack = [-missing.size, -bytes] as const;
    const wait = {
      missing,
      reject: waiting.reject,
      resolve: () => {
        this.#budget.change('store wait', ...giveBack);
        waiting.resolve();
      },
    };
    this.#waits.add(wait);
    return () => {
      if (this.#waits.delete(wait)) {
        this.#budget.change('store wait', ...giveBack);
      }
    };
  }

  /**
   * Resolves all ranks when the last one comes; then the name can be used again. Returns a function
   * that withdraws the rank, as if it had never come.
   */
  enter(
    name: string,
    place: { readonly rank: number; readonly worldSize: number },
    waiting: Waiting,
  ) {
    const { rank, worldSize } = place;
    const made = { worldSize, arrived: new Map<number, Waiting>(), failure: undefined };
    const barrier: Barrier = this.#barriers.get(name) ?? made;
    if (barrier.failure !== undefined) {
      throw barrier.failure;
    }
    if (barrier.arrived.has(rank)) {
      throw new StoreError(
        'STORE_USAGE',
        `store barrier ${quote(name)}: rank ${rank} is in it already`,
      );
    }
    if (barrier === made) {
      this.#budget.change(`store barrier ${quote(name)}`, 1, bytesOf(name));
      this.#barriers.set(name, barrier);
    }
    barrier.arrived.set(rank, waiting);
    if (barrier.arrived.size === worldSize) {
      this.#forget(name);
      for (const one of barrier.arrived.values()) {
        one.resolve();
      }
    }
    return () => {
      if (this.#barriers.get(name) === barrier && barrier.arrived.delete(rank)) {
        if (barrier.arrived.size === 0 && barrier.failure === undefined) {
          this.#forget(name);
        }
      }
    };
  }

  /**
   * Gives a barrier up because a rank has waited long enough: all ranks that are there, and all
   * that come later, are told who is late.
   */
  giveUp(name: string, timeoutMs: number): void {
    const barrier = this.#barriers.get(name);
    if (barrier === undefined || barrier.failure !== undefined) {
      return;
    }
    const all = Array.from({ length: barrier.worldSize }, (_, rank) => rank);
    const ranks = all.filter((rank) => !barrier.arrived.has(rank));
    const late = ranks.length === 1 ? `rank ${ranks[0]} is` : `ranks ${ranks.join(', ')} are`;
    const text = `${late} late, after ${timeoutMs} ms`;
    const failure = new StoreError('STORE_TIMEOUT', `store barrier ${quote(name)}: ${text}`, {
      ranks,
    });
    barrier.failure = failure;
    const present = [...barrier.arrived.values()];
    barrier.arrived.clear();
    for (const one of present) {
      one.reject(failure);
    }
  }

  /** Gives all room back; nothing may be waiting here any more. */
  clear(): void {
    for (const key of [...this.#values.keys()]) {
      this.delete(key);
    }
    for (const name of [...this.#barriers.keys()]) {
      this.#forget(name);
    }
  }

  #forget(name: string): void {
    this.#barriers.delete(name);
    this.#budget.change('store barrier', -1, -bytesOf(name));
  }
}

export function quote(key: string): string {
  return JSON.stringify(key.length > 80 ? `${key.slice(0, 77)}...` : key);
}

/** Estimates how much memory a key takes. */
function bytesOf(key: string): number {
  return 2 * key.length;
}
