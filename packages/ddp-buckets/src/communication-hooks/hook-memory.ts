// What a hook remembers between steps: arrays of this rank by name, such as the rounding errors of
// one parameter. Each lies in a larger array of its bucket. Where buckets are made anew, or a state
// dict was loaded, the values go to their new place.

import { DdpConfigError, DdpStateError } from '../errors.js';
import type { HookBucket, HookStateDict } from './communication-hook.js';

export class HookMemory {
  readonly #hook: string;
  /** What names end with, after a parameter's path and a space. */
  readonly #kinds: readonly string[];
  #arrays = new Map<string, Float32Array>();
  readonly #loaded = new Set<string>();
  #owner: object | undefined;

  constructor(hook: string, kinds: readonly string[]) {
    this.#hook = hook;
    this.#kinds = kinds;
  }

  /** @throws {DdpStateError} for a bucket of another wrapper than the first one */
  requireOwner({ owner }: HookBucket): void {
    this.#owner ??= owner;
    if (this.#owner !== owner) {
      throw new DdpStateError(
        `${this.#hook} hook: expected the buckets of one wrapper, whose errors it remembers, got those of another. Make a hook for each wrapper, on each rank.`,
      );
    }
  }

  /**
   * Makes `array` the place of what is remembered by the name, with the values remembered so far.
   * @returns where these come from; 'new' where there are none
   */
  place(path: string, kind: string, array: Float32Array): 'new' | 'kept' | 'loaded' {
    const name = `${path} ${kind}`;
    const known = this.#arrays.get(name);
    if (known !== undefined && known.length !== array.length) {
      throw new DdpStateError(
        `${this.#hook} hook: expected ${array.length} numbers as '${name}', got ${known.length}. Load what a hook with equal options remembered of an equal model.`,
      );
    }
    this.#arrays.set(name, array);
    if (known === undefined) {
      return 'new';
    }
    array.set(known);
    return this.#loaded.delete(name) ? 'loaded' : 'kept';
  }

  /** Makes what is remembered of these parameters as `kind` zeros. */
  zero(paths: readonly string[], kind: string): void {
    for (const path of paths) {
      this.#arrays.get(`${path} ${kind}`)?.fill(0);
    }
  }

  /** Copies of all that is remembered. */
  stateDict(): HookStateDict {
    return new Map([...this.#arrays].map(([name, array]) => [name, array.slice()]));
  }

  /** @throws {DdpConfigError} for what stateDict of such a hook cannot have returned */
  load(state: HookStateDict): void {
    for (const [name, array] of state) {
      const kind = name.slice(name.lastIndexOf(' ') + 1);
      if (this.#kinds.includes(kind) && array instanceof Float32Array) {
        continue;
      }
      const kinds = this.#kinds.map((kind) => `'<path> ${kind}'`).join(', ');
      throw new DdpConfigError(
        `${this.#hook} hook: expected Float32Arrays by the names ${kinds}, got '${name}'. Load what such a hook's stateDict returned.`,
      );
    }
    this.#arrays = new Map([...state].map(([name, array]) => [name, array.slice()]));
    this.#loaded.clear();
    for (const name of state.keys()) {
      this.#loaded.add(name);
    }
  }
}
