// Who has changed which elements of a storage in place, for the graphs that saved them.

import { endingWith } from '../ending-with.js';

/** A run of elements of a storage. */
export interface ElementRun {
  readonly start: number;
  readonly length: number;
}

interface Change {
  readonly start: number;
  readonly end: number;
  /** The number of the change; later ones have larger numbers. */
  readonly at: number;
  readonly by: string;
}

/**
 * The latest change of each element, as runs that do not overlap, in ascending order. Runs are kept
 * only while a graph watches the storage, so a storage that no graph saved costs one addition a
 * change.
 *
 *     a step of elements 0..9, then a write of 4..5
 *     0..3 change 1, 'AdamW.step' | 4..5 change 2, 'storage.write' | 6..9 change 1, 'AdamW.step'
 */
export class Changes {
  #count = 0;
  #numWatchers = 0;
  #latest: Change[] = [];
  #version = 0;
  /** How many calls of `refill` are under way. */
  #numRefills = 0;

  /** See Storage.version. */
  get version(): number {
    return this.#version;
  }

  /** See Storage.markWritten. */
  written(by: string, runs: readonly ElementRun[]): void {
    this.#version += 1;
    if (this.#numRefills === 0) {
      this.note(by, runs);
    }
  }

  /** See Storage.refill. */
  refill<T>(bring: () => T): T {
    this.#numRefills += 1;
    return endingWith(() => {
      this.#numRefills -= 1;
    }, bring);
  }

  /** The number of changes so far. */
  get count(): number {
    return this.#count;
  }

  /** Begins to keep changes. Returns the number of those so far, which `since` takes. */
  watch(): number {
    this.#numWatchers += 1;
    return this.#count;
  }

  unwatch(): void {
    this.#numWatchers -= 1;
    if (this.#numWatchers === 0) {
      this.#latest = [];
    }
  }

  note(by: string, runs: readonly ElementRun[]): void {
    this.#count += 1;
    if (this.#numWatchers === 0) {
      return;
    }
    for (const { start, length } of runs) {
      if (length > 0) {
        this.#put({ start, end: start + length, at: this.#count, by });
      }
    }
  }

  #put(change: Change): void {
    const { start, end } = change;
    const first = this.#firstAfter(start);
    let last = first;
    while (last < this.#latest.length && this.#latest[last]!.start < end) {
      last += 1;
    }
    const hidden = this.#latest.slice(first, last);
    const before = hidden.filter((old) => old.start < start).map((old) => ({ ...old, end: start }));
    const after = hidden.filter((old) => old.end > end).map((old) => ({ ...old, start: end }));
    this.#latest.splice(first, last - first, ...before, change, ...after);
  }

  /** The index of the first run that ends after an element. */
  #firstAfter(element: number): number {
    let low = 0;
    let high = this.#latest.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#latest[middle]!.end <= element) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  /** Who changed an element of a run after the first `count` changes; undefined: nobody. */
  since(count: number, { start, length }: ElementRun): string | undefined {
    if (length === 0) {
      return undefined;
    }
    for (let i = this.#firstAfter(start); i < this.#latest.length; i++) {
      const { start: from, at, by } = this.#latest[i]!;
      if (from >= start + length) {
        return undefined;
      }
      if (at > count) {
        return by;
      }
    }
    return undefined;
  }

  /** The runs that were changed after the first `count` changes. */
  runsSince(count: number): readonly ElementRun[] {
    return this.#latest
      .filter(({ at }) => at > count)
      .map(({ start, end }) => ({ start, length: end - start }));
  }
}
