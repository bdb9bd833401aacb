// A queue both of whose ends cost the same however long it is: an array's own `shift` moves all
// that is behind.

/** So many items are taken from the array together, so that each item is moved once at most. */
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
