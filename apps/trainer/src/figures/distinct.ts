/** Things that are told apart by a key, each once and with a number. */
export class Distinct<T> {
  readonly items: T[] = [];
  readonly #numbers = new Map<string, number>();

  /** The number of the thing with this key, from 0. */
  add(key: string, item: T): number {
    const number = this.#numbers.get(key) ?? this.items.length;
    if (number === this.items.length) {
      this.items.push(item);
      this.#numbers.set(key, number);
    }
    return number;
  }
}
