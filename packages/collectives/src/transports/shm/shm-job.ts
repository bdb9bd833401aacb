// The parts of a job that the starting thread makes: shared memory for all ranks, and a handle for
// each, which it posts to the rank's thread.

import { JoinError } from '../../errors.js';
import { allocateJobMemory, checkRingBytes, defaultRingBytes } from './job-memory.js';
import { createHeapMemory } from './shared-heap.js';

/** The size of what the ranks of a job of threads share. */
export interface ShmJobOptions {
  /**
   * The bytes of the ring from each rank to each other one, a power of two. Default: 1 MiB for up
   * to 6 ranks; for more ranks as many as make 32 MiB in all, but at least 16 KiB.
   */
  readonly ringBytes?: number;
}

/**
 * The handle with which a rank's thread joins the job: data for `postMessage` or `workerData`, with
 * `ports` as the transfer list. It can be handed on once, and used once.
 */
export interface ShmRankHandle {
  readonly rank: number;
  readonly worldSize: number;
  /** An id that no other job of the page has. */
  readonly job: string;
  readonly ringBytes: number;
  readonly memory: SharedArrayBuffer;
  /** The memory for `allocate`, where the platform has such a memory. */
  readonly heap: WebAssembly.Memory | undefined;
  /** The ports to the other ranks, in their order. */
  readonly ports: MessagePort[];
}

/**
 * Makes the handles of a job, by rank.
 * @throws {JoinError} where memory can't be shared
 * @throws {RangeError} for an impossible world size or ring size
 */
export function createShmJob(worldSize: number, options: ShmJobOptions = {}): ShmRankHandle[] {
  if (!Number.isInteger(worldSize) || worldSize < 1) {
    throw new RangeError(
      `createShmJob: expected a whole number of ranks, at least 1, got ${worldSize}.`,
    );
  }
  checkSharedMemory({ rank: 0, worldSize });
  const ringBytes = options.ringBytes ?? defaultRingBytes(worldSize);
  checkRingBytes(ringBytes);
  const memory = allocateJobMemory(worldSize, ringBytes);
  const heap = createHeapMemory();
  const job = crypto.randomUUID();
  const handles = Array.from(
    { length: worldSize },
    (_, rank): ShmRankHandle => ({ rank, worldSize, job, ringBytes, memory, heap, ports: [] }),
  );
  for (let low = 0; low < worldSize; low++) {
    for (let high = low + 1; high < worldSize; high++) {
      const { port1, port2 } = new MessageChannel();
      // A port notices that its other end was closed only if it has had something to read. After
      // this message each has, so a thread that ends before it joins is noticed, too.
      port1.postMessage({ type: 'made' });
      port2.postMessage({ type: 'made' });
      handles[low]!.ports[high - 1] = port1;
      handles[high]!.ports[low] = port2;
    }
  }
  return handles;
}

/** @throws {JoinError} where there is no memory that threads can share */
export function checkSharedMemory(place: {
  readonly rank: number;
  readonly worldSize: number;
}): void {
  if (typeof SharedArrayBuffer !== 'function') {
    throw new JoinError(
      place,
      'expected SharedArrayBuffer, got none: a page has it only where it is cross-origin isolated. ' +
        'Serve it, and its workers, with the headers "Cross-Origin-Opener-Policy: same-origin" and ' +
        '"Cross-Origin-Embedder-Policy: require-corp", over https or from localhost.',
    );
  }
}
