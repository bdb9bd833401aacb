// This is a rank as a thread of its own, bundled and started by shm-threads.test.ts. It runs cases
// of the conformance suite, or one of the programs below, and reports how it ended.

import { parentPort, workerData } from 'node:worker_threads';
import type { CollectiveError, ProcessGroup } from '@shardweave/collectives';
import { connectShm, connectShmEndpoint, type ShmRankHandle } from '@shardweave/collectives/shm';
import { conformanceCases, type TransportHarness } from '@shardweave/collectives/testing';
import { onRegisteredMemory } from './on-registered-memory.js';

/** The workerData of a thread. */
export interface ThreadOptions {
  readonly program: keyof typeof programs | 'cases';
  readonly handle: ShmRankHandle;
  /** Whether the buffers of 'cases' lie in registered memory. */
  readonly isRegistered?: boolean;
  /** Whether Atomics.waitAsync is missing, as in a browser that lacks it. */
  readonly hasNoWaitAsync?: boolean;
  readonly ending?: 'exit' | 'throw' | 'return' | 'wait';
  /** A word for 'lend', which a reader changes when it has received everything. */
  readonly received?: SharedArrayBuffer;
}

/** What a thread posts at its end. */
export interface Ending {
  readonly result?: unknown;
  readonly code?: string;
  readonly message?: string;
  readonly originRank?: number;
}

const port = parentPort!;
const options = workerData as ThreadOptions;
const MIB = 2 ** 20;
/** A timeout for what never comes in a test that has already failed. */
const NEVER_MS = 30_000;

/** Asks for a handle of the next job: all threads of a test ask, and each gets one. */
async function askForHandle(): Promise<ShmRankHandle> {
  port.postMessage('handle');
  return await new Promise((resolve) => port.once('message', resolve));
}

const harness: TransportHarness = {
  name: 'shm, a thread each',
  worldSizes: [],
  create: async (_, groupOptions) => {
    const handle = await askForHandle();
    const { group, endpoint } = await connectShmEndpoint(handle, groupOptions);
    const tested = options.isRegistered ? onRegisteredMemory(group) : group;
    return [{ group: tested, kill: () => endpoint.terminate() }];
  },
};

/** Runs the cases whose names come, until the test ends the thread. */
async function serveCases(): Promise<void> {
  for (;;) {
    const [name, worldSize] = await new Promise<[string, number]>((resolve) =>
      port.once('message', resolve),
    );
    const { run } = conformanceCases.find((known) => known.name === name)!;
    const failure = await run(harness, worldSize).then(
      () => undefined,
      (error: Error) => error.stack ?? String(error),
    );
    port.postMessage({ failure });
  }
}

const programs = {
  /**
   * Gathers until something goes wrong. After a moment the last rank ends, in the way under test.
   */
  gather: async (group: ProcessGroup) => {
    const input = group.allocate(100_000);
    const output = group.allocate(input.length * group.worldSize);
    const isVictim = group.rank === group.worldSize - 1 && options.ending !== undefined;
    for (let i = 0; ; i++) {
      if (isVictim && i === 20) {
        switch (options.ending) {
          case 'exit':
            return process.exit();
          case 'throw':
            setTimeout(() => {
              throw new Error('on purpose');
            });
            return await new Promise(() => {});
          case 'return':
            return 'without closing';
          default:
        }
      }
      await group.allGather(input, output);
      if (i === 3) {
        port.postMessage('running');
      }
    }
  },

  /** Rank 1 computes for longer than any heartbeat would allow, and then goes on normally. */
  busy: async (group: ProcessGroup) => {
    const output = new Uint8Array(4 * group.worldSize);
    await group.barrier();
    if (group.rank === 1) {
      compute(2000);
    }
    await group.allGather(new Uint8Array(4).fill(group.rank), output);
    await group.close();
    return [...output];
  },

  /** The root gets no turn of its event loop until the other rank has read what it lent. */
  lend: async (group: ProcessGroup) => {
    const buffer = group.allocate(4 * MIB);
    const received = new Int32Array(options.received!);
    await group.barrier();
    if (group.rank === 0) {
      buffer.fill(7);
      const sent = group.broadcast(buffer, { root: 0 });
      await new Promise((resolve) => setImmediate(resolve));
      const isReceived = Atomics.wait(received, 0, 0, NEVER_MS) !== 'timed-out';
      await sent;
      await group.close();
      return isReceived;
    }
    await group.broadcast(buffer, { root: 0 });
    Atomics.store(received, 0, 1);
    Atomics.notify(received, 0);
    await group.close();
    return hasOnly(buffer, 7);
  },

  /** Changes its inputs as soon as a call has settled, over and over, and counts wrong bytes. */
  overwrite: async (group: ProcessGroup) => {
    const own = new SharedArrayBuffer(300_000);
    group.register(own);
    const input = new Uint8Array(own, 64, 200_000);
    const output = group.allocate(input.length * group.worldSize);
    const addends = group.allocate(4 * output.length);
    const sums = group.allocate(addends.length / group.worldSize);
    let numWrong = 0;
    for (let round = 0; round < 30; round++) {
      input.fill(round * group.worldSize + group.rank);
      await group.allGather(input, output);
      input.fill(255);
      addends.fill(group.rank + 1);
      await group.reduceScatter(addends, sums, { dtype: 'u8', op: 'sum' });
      addends.fill(255);
      numWrong += hasOnly(sums, (group.worldSize * (group.worldSize + 1)) / 2) ? 0 : 1;
      for (let rank = 0; rank < group.worldSize; rank++) {
        const part = output.subarray(rank * input.length, (rank + 1) * input.length);
        numWrong += hasOnly(part, round * group.worldSize + rank) ? 0 : 1;
      }
    }
    group.release(own);
    group.release(output);
    // The memory is as good as any other from now on.
    await group.allGather(input, output);
    await group.close();
    return { numWrong, last: hasOnly(output, 255) };
  },

  /** Rank 0 sends far more than a ring holds to a rank that computes first. */
  flood: async (group: ProcessGroup) => {
    const count = 300;
    const sizes = Array.from({ length: count }, (_, i) => (i % 3 === 0 ? 40_000 : 500 + i));
    if (group.rank === 0) {
      await Promise.all(
        sizes.map((size, i) => group.send(new Uint8Array(size).fill(i), { to: 1 })),
      );
      await group.close();
      return 0;
    }
    compute(300);
    let numWrong = 0;
    for (const [i, size] of sizes.entries()) {
      const buffer = new Uint8Array(size);
      await group.recv(buffer, { from: 0 });
      numWrong += hasOnly(buffer, i % 256) ? 0 : 1;
    }
    await group.close();
    return numWrong;
  },

  /**
   * Makes very many small calls, so that ranks fall asleep and are woken at every possible moment.
   */
  chatter: async (group: ProcessGroup) => {
    for (let i = 0; i < 4000; i++) {
      await group.barrier();
      spin((i * (7 + group.rank)) % 300);
    }
    await group.close();
    return 'done';
  },

  /** Waits for a rank that comes much later, with nothing else to keep the thread alive. */
  late: async (group: ProcessGroup) => {
    if (group.rank === 0) {
      await new Promise((resolve) => setTimeout(resolve, 600));
    }
    await group.barrier();
    await group.close();
    return 'met';
  },
};

/** Spends a little time, which depends on the machine. */
function spin(turns: number): void {
  for (let i = 0; i < turns; i++) {
    performance.now();
  }
}

function hasOnly(bytes: Uint8Array, value: number): boolean {
  return Buffer.alloc(bytes.length, value).equals(bytes);
}

/**
 * Blocks the thread, without a turn of the event loop and without using a core that other tests
 * need.
 */
function compute(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

async function main(): Promise<void> {
  if (options.hasNoWaitAsync) {
    Reflect.deleteProperty(Atomics, 'waitAsync');
  }
  if (options.program === 'cases') {
    await serveCases();
    return;
  }
  if (options.program === 'late' && options.ending === 'exit' && options.handle.rank === 2) {
    process.exit(); // The thread exits before it takes its handle.
  }
  const watch = options.program === 'chatter' ? { watchMs: 0 } : {};
  const group = await connectShm(options.handle, { joinTimeoutMs: NEVER_MS, ...watch });
  const result = await programs[options.program](group);
  port.postMessage({ result } satisfies Ending);
}

main().catch((error: CollectiveError) => {
  const { code, message, originRank } = error;
  port.postMessage({ code, message, originRank } satisfies Ending);
});
