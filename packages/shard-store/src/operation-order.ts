// Keeps the order that the seam promises, for any store: one operation on a key at a time, in the
// order of the calls; a bounded number over all keys; and commits as barriers that changes can't
// pass.

export class OperationOrder {
  readonly #maxConcurrent: number;
  readonly #tails = new Map<string, Promise<void>>();
  readonly #waiting: (() => void)[] = [];
  #running = 0;
  /** Settles when the last commit called has. */
  #barrier: Promise<void> = Promise.resolve();

  constructor(maxConcurrent: number) {
    this.#maxConcurrent = maxConcurrent;
  }

  /** Runs a read of `key` after what was called on the key before. */
  read(key: string, work: () => Promise<void>): Promise<void> {
    return this.#enqueue(key, this.#tails.get(key), work);
  }

  /** Runs a change of `key` after what was called on the key before, and after the last commit. */
  change(key: string, work: () => Promise<void>): Promise<void> {
    const earlier = Promise.all([this.#tails.get(key), this.#barrier]);
    return this.#enqueue(key, earlier, work);
  }

  /** Runs a commit when everything called before it is done. */
  commit(work: () => Promise<void>): Promise<void> {
    const done = Promise.all([...this.#tails.values(), this.#barrier]).then(work);
    this.#barrier = settled(done);
    return done;
  }

  /** Resolves when everything called before it is done. */
  async idle(): Promise<void> {
    await Promise.all([...this.#tails.values(), this.#barrier]);
  }

  #enqueue(key: string, earlier: Promise<unknown> | undefined, work: () => Promise<void>) {
    const done = Promise.resolve(earlier).then(() => this.#bounded(work));
    const tail = settled(done).then(() => {
      if (this.#tails.get(key) === tail) {
        this.#tails.delete(key);
      }
    });
    this.#tails.set(key, tail);
    return done;
  }

  async #bounded(work: () => Promise<void>): Promise<void> {
    if (this.#running >= this.#maxConcurrent) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    } else {
      this.#running++;
    }
    try {
      await work();
    } finally {
      // The place passes to the operation that has waited longest, without being free in between.
      const next = this.#waiting.shift();
      if (next) {
        next();
      } else {
        this.#running--;
      }
    }
  }
}

function settled(promise: Promise<void>): Promise<void> {
  return promise.then(
    () => {},
    () => {},
  );
}
