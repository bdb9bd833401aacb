// How long a step takes by what it is made of: kernels, timed on the device by kind and shape;
// bytes between host and device, and between ranks. All ranks of a machine share its cores, and
// those of a process its one thread of JavaScript. A machine that does other things beside gives
// what is left of it.

import { availableParallelism } from 'node:os';
import { createMemoryGroup } from '@shardweave/collectives';
import { type Backend, Device } from '@shardweave/tensor-core';
import type { RunConfig } from '../run-config.js';
import type { DryRun } from './dry-run.js';
import { KernelTimes } from './kernel-times.js';

/** Bytes a second. */
export interface Rates {
  /** Between host and device. */
  readonly copiedBytes: number;
  /** Sent by one of two ranks of this process, gathered and added up. */
  readonly wireBytes: number;
}

/** Tells what a later step of a rank would take. */
export interface StepClock {
  stepMs(run: DryRun, config: RunConfig): Promise<number>;
}

/** Threads of all ranks, as far as there are cores. */
export function coresOf({ ranks, threads }: Pick<RunConfig, 'ranks' | 'threads'>): number {
  return Math.min(availableParallelism(), ranks * threads);
}

const BLOCK_BYTES = 8 * 2 ** 20;
/** The best of them is the machine's; the others met something else that ran. */
const ROUNDS = 3;

/**
 * @param backend with the cores of all ranks of this machine: what one rank takes is its share of
 * them
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

/** @param measured `ms` of the kernels of one rank on all cores */
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
