// A queue whose two ends cost the same however long it is. An array's own `shift` would move
// everything behind the first item.

/**
 * The least number of items that are cut off the array together, so that each is moved at most
 * once.
 */
const MIN_TAKEN = 32;

export class Fifo<T> {
  #items: T[] = [];
  #numTaken = 0;

  /** The oldest item. */
  get first(): T | undefined {
    return this.#items[this.#numTaken];
  }

  push(item: T): void {
    this.#items.push(item);
  }

  /** Drops the oldest item. */
  shift(): void {
    this.#numTaken++;
    if (this.#numTaken >= MIN_TAKEN && this.#numTaken * 2 >= this.#items.length) {
      this.#items = this.#items.slice(this.#numTaken);
      this.#numTaken = 0;
    }
  }
}
