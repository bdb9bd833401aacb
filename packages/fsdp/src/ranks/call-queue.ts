// Runs calls that need all ranks of a group one after the other, in the order in which a program
// makes them.
//
// Note [one door]
// A call that needs all ranks takes its turn behind the calls that were made before it, awaited or
// not, so its collectives come in program order on every rank. A forward, and the beginning of a
// backward, wait for the calls made before. A call made inside a forward or backward of its own
// instances is refused at once, because it could only wait for something that waits for it. The
// body of summonFullParams holds no turn, so calls inside it take theirs.

/** The turns of one group. */
export class CallQueue {
  #last: Promise<unknown> = Promise.resolve();
  #numWaiting = 0;

  /** Whether no call is under way or waiting. */
  get isIdle(): boolean {
    return this.#numWaiting === 0;
  }

  /** Runs `body` after all earlier calls of all `queues`; later calls wait for its end. */
  static inTurn<T>(queues: Iterable<CallQueue>, body: () => Promise<T>): Promise<T> {
    const all = [...new Set(queues)];
    const before = Promise.all(all.map((queue) => queue.#last));
    const result = before.then(body);
    const end = () => {
      for (const queue of all) {
        queue.#numWaiting -= 1;
      }
    };
    const ended = result.then(end, end);
    for (const queue of all) {
      queue.#last = ended;
      queue.#numWaiting += 1;
    }
    return result;
  }

  /** Resolves when all calls made so far have ended. */
  static async ended(queues: Iterable<CallQueue>): Promise<void> {
    for (const queue of queues) {
      if (!queue.isIdle) {
        await queue.#last;
      }
    }
  }
}
