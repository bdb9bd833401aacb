// How a rank sleeps until another one has written to it, without blocking its event loop: by
// Atomics.waitAsync, or, where that is missing (Firefox before 145), by a message through a port.

/** The states of the word on which a rank sleeps. */
const AWAKE = 0;
const WAITS = 1; // in Atomics.waitAsync
const WANTS_MESSAGE = 2;

/** The method that TypeScript's es2023 library lacks in Atomics. */
interface AsyncAtomics {
  waitAsync?(
    array: Int32Array,
    index: number,
    value: number,
  ): { readonly async: false } | { readonly async: true; readonly value: Promise<unknown> };
}

export class Doorbell {
  readonly #word: Int32Array;
  readonly #onWake: () => void;
  /**
   * Whether a promise of waitAsync is pending, perhaps from an earlier sleep: it serves the next
   * one, too.
   */
  #isWaiting = false;

  constructor(word: Int32Array, onWake: () => void) {
    this.#word = word;
    this.#onWake = onWake;
  }

  /**
   * Makes others ring from now on. The caller must then look once more whether there is something
   * to do, and `sleep` or `rise`; see Note [who wakes whom] in ring.ts.
   */
  closeEyes(): void {
    Atomics.store(this.#word, 0, canWait() ? WAITS : WANTS_MESSAGE);
  }

  /**
   * Sleeps. `onWake` is called when another rank rings; it may also be called without a ring, but
   * never within this call.
   */
  sleep(): void {
    if (this.#isWaiting || !canWait()) {
      return;
    }
    const result = (Atomics as AsyncAtomics).waitAsync!(this.#word, 0, WAITS);
    const woken = result.async ? result.value : Promise.resolve();
    this.#isWaiting = true;
    void woken.then(() => {
      this.#isWaiting = false;
      this.#onWake();
    });
  }

  rise(): void {
    Atomics.store(this.#word, 0, AWAKE);
  }

  /** Ends a pending wait, so that nothing is left of it. */
  dispose(): void {
    this.rise();
    Atomics.notify(this.#word, 0);
  }
}

/**
 * Wakes the rank of `word` if it sleeps; `post` sends the message that wakes ranks without
 * waitAsync.
 */
export function ringBell(word: Int32Array, post: () => void): void {
  if (Atomics.load(word, 0) === AWAKE) {
    return;
  }
  const how = Atomics.exchange(word, 0, AWAKE);
  if (how === WAITS) {
    Atomics.notify(word, 0);
  } else if (how === WANTS_MESSAGE) {
    post();
  }
}

function canWait(): boolean {
  return typeof (Atomics as AsyncAtomics).waitAsync === 'function';
}
