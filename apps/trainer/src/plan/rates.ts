// Tells how long a step takes from what it consists of: kernels, timed on the device by kind and
// shape, and bytes between host and device and between ranks. All ranks of a machine share its
// cores, and those of a process its one thread of JavaScript. A machine that does other work gives
// only what is left.

import { availableParallelism } from 'node:os';
import { createMemoryGroup } from '@shardweave/collectives';
import { type Backend, Device } from '@shardweave/tensor-core';
import type { RunConfig } from '../run-config.js';
import type { DryRun } from './dry-run.js';
import { KernelTimes } from './kernel-times.js';

/** Rates in bytes a second. */
export interface Rates {
  /** The rate between host and device. */
  readonly copiedBytes: number;
  /** The rate at which one of two ranks of this process sends, gathered and added up. */
  readonly wireBytes: number;
}

/** Tells how long a later step of a rank would take. */
export interface StepClock {
  stepMs(run: DryRun, config: RunConfig): Promise<number>;
}

/** The number of cores that all ranks use: their threads, but no more than the machine has. */
export function coresOf({ ranks, threads }: Pick<RunConfig, 'ranks' | 'threads'>): number {
  return Math.min(availableParallelism(), ranks * threads);
}

const BLOCK_BYTES = 8 * 2 ** 20;
/**
 * The number of measurements. The best is the machine's own; the others met something else that
 * ran.
 */
const ROUNDS = 3;

/**
 * @param backend one with the cores of all ranks of this machine, of which one rank gets its share
 */
export async function openStepClock(backend: Backend): Promise<StepClock & Disposable> {
  const rates = { copiedBytes: await measureCopies(backend), wireBytes: await measureLink() };
  const kernels = new KernelTimes(backend);
  return {
    stepMs: async (run, config) =>
      stepMs(run, config, { rates, ms: await kernels.ms(run.kernels) }),
    [Symbol.dispose]: () => kernels.dispose(),
  };
}

/** @param measured `ms` is the time of one rank's kernels on all cores */
export function stepMs(
  { laterStep }: DryRun,
  { ranks, transport }: Pick<RunConfig, 'ranks' | 'transport'>,
  { rates, ms }: { readonly rates: Rates; readonly ms: number },
): number {
  const { copiedBytes, bytesSent } = laterStep;
  const ranksOfThread = transport === 'memory' ? ranks : 1;
  const hostSeconds = copiedBytes / rates.copiedBytes + bytesSent / (2 * rates.wireBytes);
  return ranks * ms + ranksOfThread * hostSeconds * 1000;
}

async function measureCopies(backend: Backend): Promise<number> {
  const device = new Device(backend);
  const storage = device.storage(BLOCK_BYTES / 4, 'f32', 'staging');
  const values = new Uint8Array(BLOCK_BYTES);
  try {
    storage.fill();
    const seconds = await bestOf(async () => {
      storage.write(values);
      await storage.read(0, BLOCK_BYTES, values);
    });
    return (2 * BLOCK_BYTES) / seconds;
  } finally {
    storage.release();
    device.dispose();
  }
}

async function measureLink(): Promise<number> {
  const groups = createMemoryGroup(2);
  const buffers = groups.map(() => ({
    part: new Uint8Array(BLOCK_BYTES),
    whole: new Uint8Array(2 * BLOCK_BYTES),
  }));
  const seconds = await bestOf(() =>
    Promise.all(
      groups.map(async (group, rank) => {
        const { part, whole } = buffers[rank]!;
        await group.allGather(part, whole);
        await group.reduceScatter(whole, part, { dtype: 'f32', op: 'sum' });
      }),
    ),
  );
  await Promise.all(groups.map((group) => group.close()));
  return (2 * BLOCK_BYTES) / seconds;
}

async function bestOf(run: () => Promise<unknown>): Promise<number> {
  let best = Number.POSITIVE_INFINITY;
  for (let round = 0; round <= ROUNDS; round++) {
    const start = performance.now();
    await run();
    best = Math.min(best, performance.now() - start);
  }
  return best / 1000;
}
