// A queue that gives the item of the largest key first, in logarithmic time: nodes of a backward,
// the one that was created last before others, and free buffers.

/** A binary heap. */
export class PriorityQueue<Item> {
  readonly #heap: Item[] = [];
  readonly #keyOf: (item: Item) => number;

  /** @param keyOf the key of an item, which stays as it is */
  constructor(keyOf: (item: Item) => number) {
    this.#keyOf = keyOf;
  }

  /** All items in no order. */
  get items(): readonly Item[] {
    return this.#heap;
  }

  push(item: Item): void {
    const heap = this.#heap;
    heap.push(item);
    let i = heap.length - 1;
    while (i > 0) {
      const parent = (i - 1) >> 1;
      if (this.#keyOf(heap[parent]!) >= this.#keyOf(heap[i]!)) {
        break;
      }
      [heap[parent], heap[i]] = [heap[i]!, heap[parent]!];
      i = parent;
    }
  }

  pop(): Item | undefined {
    const heap = this.#heap;
    const top = heap[0];
    const last = heap.pop();
    if (last !== undefined && heap.length > 0) {
      heap[0] = last;
      let i = 0;
      for (;;) {
        const left = 2 * i + 1;
        const right = left + 1;
        let largest = i;
        if (this.#isAbove(left, largest)) {
          largest = left;
        }
        if (this.#isAbove(right, largest)) {
          largest = right;
        }
        if (largest === i) {
          break;
        }
        [heap[largest], heap[i]] = [heap[i]!, heap[largest]!];
        i = largest;
      }
    }
    return top;
  }

  #isAbove(index: number, other: number): boolean {
    const heap = this.#heap;
    return index < heap.length && this.#keyOf(heap[index]!) > this.#keyOf(heap[other]!);
  }
}
