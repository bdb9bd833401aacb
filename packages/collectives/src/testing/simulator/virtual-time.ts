// Time that passes only when nothing is left to do. Events happen in order of their time, then of
// their making, and all promises settle between two of them. So a run depends on nothing but its
// seed.

import { yieldToEventLoop } from '@shardweave/dtypes';

interface TimedEvent {
  readonly timeMs: number;
  readonly order: number;
  action: (() => void) | undefined;
}

export class VirtualTime {
  readonly #heap: TimedEvent[] = [];
  #nowMs = 0;
  #order = 0;
  #numEvents = 0;

  /** The milliseconds since the run began. */
  get nowMs(): number {
    return this.#nowMs;
  }

  /** The number of events that have happened. */
  get numEvents(): number {
    return this.#numEvents;
  }

  /** Makes `action` happen after `delayMs`. The returned function cancels that. */
  after(delayMs: number, action: () => void): () => void {
    return this.at(this.#nowMs + delayMs, action);
  }

  /**
   * Makes `action` happen at a given time, for what has to keep its order without a rounding error.
   */
  at(timeMs: number, action: () => void): () => void {
    const event: TimedEvent = {
      timeMs: Math.max(timeMs, this.#nowMs),
      order: this.#order++,
      action,
    };
    this.#push(event);
    return () => {
      event.action = undefined;
    };
  }

  sleep(delayMs: number): Promise<void> {
    return new Promise((resolve) => {
      this.after(delayMs, resolve);
    });
  }

  /**
   * Runs until nothing is left to happen. Throws after `maxEvents`, which means an endless loop.
   */
  async run(maxEvents: number): Promise<void> {
    await yieldToEventLoop();
    for (let event = this.#pop(); event !== undefined; event = this.#pop()) {
      if (event.action === undefined) {
        continue;
      }
      if (++this.#numEvents > maxEvents) {
        throw new Error(`still not at an end after ${maxEvents} events`);
      }
      this.#nowMs = event.timeMs;
      event.action();
      await yieldToEventLoop();
    }
  }

  #push(event: TimedEvent): void {
    const heap = this.#heap;
    let at = heap.length;
    heap.push(event);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!isBefore(event, heap[parent]!)) {
        break;
      }
      heap[at] = heap[parent]!;
      at = parent;
    }
    heap[at] = event;
  }

  #pop(): TimedEvent | undefined {
    const heap = this.#heap;
    const first = heap[0];
    const last = heap.pop();
    if (last === undefined || heap.length === 0) {
      return first;
    }
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= heap.length) {
        break;
      }
      if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) {
        child++;
      }
      if (!isBefore(heap[child]!, last)) {
        break;
      }
      heap[at] = heap[child]!;
      at = child;
    }
    heap[at] = last;
    return first;
  }
}

function isBefore(a: TimedEvent, b: TimedEvent): boolean {
  return a.timeMs < b.timeMs || (a.timeMs === b.timeMs && a.order < b.order);
}
