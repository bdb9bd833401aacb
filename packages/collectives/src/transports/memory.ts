// Ranks in one process or page. The receiver reads messages where they lie, or copies them once,
// straight into its buffer. The world may have any size; all ranks share one reducer and the event
// loop's turns.

import { type Clock, systemClock } from '../clock.js';
import { SLICE_BYTES } from '../endpoint/copy-bytes.js';
import { Endpoint } from '../endpoint/endpoint.js';
import { sharedReducer } from '../endpoint/reduce-hook.js';
import { Turns } from '../endpoint/turns.js';
import { CollectiveUsageError } from '../errors.js';
import { checkGroupOptions, createWorldGroup, type GroupOptions } from '../group/group-options.js';
import type { ProcessGroup } from '../group/process-group.js';
import type { ControlMessage, MessageHeader, MessageSink, Transport } from '../transport.js';

/**
 * The options of every rank's group. `onTrace` gets the calls of all ranks; each trace has its
 * rank.
 */
export type MemoryGroupOptions = GroupOptions;

/**
 * Makes one group per rank, connected to each other in this process.
 * @example
 * ```ts
 * import { createMemoryGroup } from '@shardweave/collectives';
 *
 * const ranks = createMemoryGroup(3).map(async (group) => {
 *   const own = Float32Array.of(group.rank, 1);
 *   const sum = new Float32Array(2);
 *   const options = { dtype: 'f32', op: 'sum' } as const;
 *   await group.allReduce(new Uint8Array(own.buffer), new Uint8Array(sum.buffer), options);
 *   await group.close();
 *   return sum[0];
 * });
 * console.log(await Promise.all(ranks)); // logs [ 3, 3, 3 ]
 * ```
 */
export function createMemoryGroup(
  worldSize: number,
  options: MemoryGroupOptions = {},
): ProcessGroup[] {
  return createMemoryEndpoints(worldSize, options).map(({ group }) => group);
}

/** Makes the same groups, and returns their endpoints too, for tests that kill a rank. */
export function createMemoryEndpoints(worldSize: number, options: MemoryGroupOptions = {}) {
  const place = { rank: 0, worldSize, call: 'createMemoryGroup' };
  if (!Number.isInteger(worldSize) || worldSize < 1) {
    throw new CollectiveUsageError(place, `expected a positive world size, got ${worldSize}.`);
  }
  checkGroupOptions(options, place);
  const reducer = sharedReducer();
  const turns = new Turns(options.clock ?? systemClock);
  const endpoints = Array.from(
    { length: worldSize },
    (_, rank) => new Endpoint(rank, worldSize, options, { reducer, turns }),
  );
  attachInMemory(endpoints, turns);
  return endpoints.map((endpoint) => ({ endpoint, group: createWorldGroup(endpoint, options) }));
}

/** Connects all ranks of a job to each other. */
export function attachInMemory(endpoints: readonly Endpoint[], turns: Turns): void {
  for (const endpoint of endpoints) {
    endpoint.attach(new MemoryTransport(endpoint.rank, endpoints, turns));
  }
}

/** The milliseconds that a transport may take to close. */
const DRAIN_MS = 1000;

class MemoryTransport implements Transport {
  readonly isLending = true;
  readonly #rank: number;
  readonly #endpoints: readonly Endpoint[];
  readonly #turns: Turns;
  readonly #clock: Clock;
  /** The payloads that peers are reading, until they release them. */
  readonly #lent = new Set<Promise<void>>();
  #isClosed = false;

  constructor(rank: number, endpoints: readonly Endpoint[], turns: Turns) {
    this.#clock = endpoints[rank]!.clock;
    this.#rank = rank;
    this.#endpoints = endpoints;
    this.#turns = turns;
  }

  async send(
    to: number,
    header: MessageHeader,
    payload: Uint8Array,
    onProgress?: () => void,
  ): Promise<void> {
    if (this.#isClosed) {
      return;
    }
    const sink = this.#endpoints[to]!.onMessage(this.#rank, header);
    if (payload.byteLength === 0) {
      return;
    }
    const { posted } = sink;
    if (posted !== undefined) {
      await posted;
    }
    const { lend } = sink;
    if (lend !== undefined && !this.#isClosed) {
      const released = new Promise<void>((resolve) =>
        lend(payload, () => {
          resolve();
          return true;
        }),
      );
      this.#lent.add(released);
      await released;
      this.#lent.delete(released);
      return;
    }
    await this.#write(sink, payload, onProgress);
  }

  sendControl(to: number, message: ControlMessage): void {
    this.#endpoints[to]!.onControl(this.#rank, message);
  }

  async close(how: 'drain' | 'drop'): Promise<void> {
    if (!this.#isClosed) {
      this.#isClosed = true;
      if (how === 'drain') {
        await this.#drained();
        this.#eachPeer((endpoint) => endpoint.onPeerLeft(this.#rank));
      }
    }
  }

  terminate(): void {
    if (!this.#isClosed) {
      this.#isClosed = true;
      this.#eachPeer((endpoint) => endpoint.onPeerLost(this.#rank, 'terminated'));
    }
  }

  /** Resolves when peers have read what is lent to them, or take too long. */
  async #drained(): Promise<void> {
    if (this.#lent.size > 0) {
      await new Promise<void>((resolve) => {
        const cancel = this.#clock.setTimer(DRAIN_MS, resolve);
        void Promise.all(this.#lent).then(() => {
          cancel();
          resolve();
        });
      });
    }
  }

  async #write(sink: MessageSink, payload: Uint8Array, onProgress?: () => void): Promise<void> {
    for (let at = 0; at < payload.byteLength && !this.#isClosed; at += SLICE_BYTES) {
      if (payload.byteLength > SLICE_BYTES && this.#turns.next() !== undefined) {
        onProgress?.();
        await this.#turns.wait();
      }
      if (!this.#isClosed) {
        sink.write(payload.subarray(at, at + SLICE_BYTES));
      }
    }
  }

  #eachPeer(visit: (endpoint: Endpoint) => void): void {
    for (const endpoint of this.#endpoints) {
      if (endpoint.rank !== this.#rank) {
        visit(endpoint);
      }
    }
  }
}
