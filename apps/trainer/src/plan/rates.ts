// How fast a device and the host are at what steps are made of: measured in half a second, on the shapes of a
// model of 124 M parameters. A machine that does other things beside gives what is left of it.

import { createMemoryGroup } from '@shardweave/collectives';
import { add, type Backend, cast, Device, type DType, matmul } from '@shardweave/tensor-core';
import type { DryRun } from './dry-run.js';

/** Each a second. */
export interface Rates {
  /** Multiplications, each with its addition. */
  readonly products: number;
  /** Bytes that plain kernels read and write. */
  readonly touchedBytes: number;
  /** Bytes between host and device. */
  readonly copiedBytes: number;
  /** Bytes between two ranks of this process. */
  readonly wireBytes: number;
}

const WIDTH = 768;
const ROWS = 1024;
const COPY_ELEMENTS = 2 ** 21;
/** The best of them is the machine's; the others met something else that ran. */
const ROUNDS = 3;

export async function measureRates(backend: Backend, dtype: DType): Promise<Rates> {
  const device = new Device(backend);
  try {
    const rates = await device.noGrad(() =>
      device.scope(async () => {
        const values = new Float32Array(COPY_ELEMENTS).fill(0.5);
        const flat = device.tensor(values, [COPY_ELEMENTS]);
        const of = (rows: number, columns: number) => {
          const x = device.full([rows, columns], 0.5);
          return dtype === 'f32' ? x : cast(x, dtype);
        };
        const [a, b] = [of(ROWS, WIDTH), of(WIDTH, 4 * WIDTH)];
        return {
          products:
            (ROWS * WIDTH * 4 * WIDTH) / (await secondsOf(device, async () => void matmul(a, b))),
          touchedBytes:
            (3 * flat.storage.byteLength) /
            (await secondsOf(device, async () => void add(flat, flat))),
          copiedBytes:
            (2 * flat.storage.byteLength) /
            (await secondsOf(device, async () => {
              flat.storage.write(new Uint8Array(values.buffer));
              await flat.storage.read();
            })),
        };
      }),
    );
    return { ...rates, wireBytes: await measureLink() };
  } finally {
    device.dispose();
  }
}

async function secondsOf(device: Device, run: () => Promise<void>): Promise<number> {
  let best = Number.POSITIVE_INFINITY;
  for (let round = 0; round <= ROUNDS; round++) {
    const start = performance.now();
    await run();
    await device.synchronize();
    best = Math.min(best, performance.now() - start);
  }
  return best / 1000;
}

async function measureLink(): Promise<number> {
  const byteLength = 8 * 2 ** 20;
  const groups = createMemoryGroup(2);
  let best = Number.POSITIVE_INFINITY;
  for (let round = 0; round <= ROUNDS; round++) {
    const start = performance.now();
    await Promise.all(
      groups.map((group) =>
        group.allGather(new Uint8Array(byteLength), new Uint8Array(2 * byteLength)),
      ),
    );
    best = Math.min(best, performance.now() - start);
  }
  await Promise.all(groups.map((group) => group.close()));
  return byteLength / (best / 1000);
}

/** A later step, one thing after the other: what overlaps takes less. */
export function stepMs({ laterStep }: DryRun, rates: Rates): number {
  const { products, attentionProducts, touchedBytes, copiedBytes, bytesSent } = laterStep;
  const seconds =
    (products + attentionProducts) / rates.products +
    touchedBytes / rates.touchedBytes +
    copiedBytes / rates.copiedBytes +
    bytesSent / rates.wireBytes;
  return seconds * 1000;
}
