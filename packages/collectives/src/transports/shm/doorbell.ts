// How a rank sleeps until another one has written to it, without blocking its event loop: by
// Atomics.waitAsync, or where there is none (Firefox before 145) by a message through a port.

/** The states of the word on which a rank sleeps. */
const AWAKE = 0;
const WAITS = 1; // in Atomics.waitAsync
const WANTS_MESSAGE = 2;

/** What TypeScript's es2023 library does not have of Atomics. */
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
   * Whether a promise of waitAsync is out, perhaps from an earlier sleep: it serves the next one,
   * too.
   */
  #isWaiting = false;

  constructor(word: Int32Array, onWake: () => void) {
    this.#word = word;
    this.#onWake = onWake;
  }

  get isAsleep(): boolean {
    return Atomics.load(this.#word, 0) !== AWAKE;
  }

  /**
   * From now on others ring. The caller must look once more whether there is something to do, then
   * `sleep` or `rise`: see Note [who wakes whom] in ring.ts.
   */
  closeEyes(): void {
    Atomics.store(this.#word, 0, canWait() ? WAITS : WANTS_MESSAGE);
  }

  /** `onWake` is called when somebody rings, perhaps before, never within this call. */
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

  /** Ends a wait that is out, so that nothing is left of it. */
  dispose(): void {
    this.rise();
    Atomics.notify(this.#word, 0);
  }
}

/** Wakes the rank of `word` if it sleeps; `post` is how those are woken that can't wait. */
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
