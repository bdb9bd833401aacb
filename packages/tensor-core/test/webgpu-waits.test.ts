// How a device is waited for that computes on the CPU, in an event loop that has other work. The
// device is Dawn's null driver, whose read-backs are made to be told of some turns later.

import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { expect, test } from 'vitest';

const ADAPTER = { vendor: '', architecture: '', device: 'a software driver', description: '' };
/** The turns after which a wait counts as starved: many times those that any wait below needs. */
const MANY_TURNS = 1500;
/** A turn longer than the time for which a wait looks at the device. */
const TURN_MS = 0.6;

type Unmap = 'rejects' | 'is ignored';

/** A device that tells of a mapping `turns` turns of the event loop after it was asked. */
async function deviceThatTells(turns: number, unmap: Unmap) {
  const adapter = await openNodeGpu({ flags: ['backend=null'] }).requestAdapter();
  const device = await adapter!.requestDevice();
  const asked = { count: 0 };
  const create = device.createBuffer.bind(device);
  device.createBuffer = (descriptor) => {
    const buffer = create(descriptor);
    if (descriptor.label === 'read-back') {
      let cancel = (): undefined => undefined;
      buffer.mapAsync = () => {
        asked.count += 1;
        return new Promise<undefined>((resolve, reject) => {
          void afterTurns(turns).then(() => resolve(undefined));
          cancel =
            unmap === 'rejects' ? (): undefined => void reject(new Error('unmapped')) : cancel;
        });
      };
      buffer.unmap = () => cancel();
      buffer.getMappedRange = (_, size) => new ArrayBuffer(size!);
    }
    return buffer;
  };
  return { device, asked };
}

async function afterTurns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) {
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/** Keeps the event loop busy, as other ranks of a process do, until `isOver` or too many turns. */
async function busyTurns(isOver: () => boolean): Promise<void> {
  for (let turn = 0; turn < MANY_TURNS && !isOver(); turn++) {
    const until = performance.now() + TURN_MS;
    while (performance.now() < until) {
      // The turn lasts.
    }
    await afterTurns(1);
  }
}

test.each<[string, number, Unmap, number]>([
  ['a mapping is told of after three turns, each longer than a look', 3, 'rejects', 1],
  ['a mapping takes many turns, and is done even where it was cancelled', 20, 'is ignored', 129],
])('a paced wait ends where %s', async (_, turns, unmap, maxAsked) => {
  const { device, asked } = await deviceThatTells(turns, unmap);
  const adapterInfo = { ...ADAPTER, isFallbackAdapter: true } as GPUAdapterInfo;
  const backend = await createWebGpuBackend({ device, adapterInfo });
  let isOver = false;
  const waited = backend.sync().then(() => {
    isOver = true;
  });
  await busyTurns(() => isOver);
  expect(isOver).toBe(true);
  await waited;
  expect(asked.count).toBeLessThanOrEqual(maxAsked);
  await backend.dispose();
  device.destroy();
});
