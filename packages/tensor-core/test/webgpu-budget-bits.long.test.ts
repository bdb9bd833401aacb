// What a submit holds decides no bits: every conformance case in f32 gives equal bytes with little
// work a submit and with much. Budgets that the clock can set cut nothing as small as these cases,
// so 50,000 operations stand for them.

import type { Backend } from '@shardweave/tensor-core';
import { kernelCases } from '@shardweave/tensor-core/testing';
import { createWebGpuBackend, type WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openTilesDevice, tilesReason, title, webGpu } from './support/webgpu-kit.js';

const BUDGETS = [50e9, 50_000];

/** A backend whose reads are kept, in order of the calls. */
function recorded(backend: Backend): { backend: Backend; reads: Promise<Uint8Array>[] } {
  const reads: Promise<Uint8Array>[] = [];
  const read: Backend['read'] = (...call) => {
    const bytes = backend.read(...call);
    reads.push(bytes.then((all) => all.slice()));
    return bytes;
  };
  const own = new Proxy(backend, {
    get: (target, name) => {
      if (name === 'read') {
        return read;
      }
      const value = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  return { backend: own, reads };
}

describe.skipIf(tilesReason !== undefined)(title('equal bits', tilesReason), () => {
  const openDevice = async () => (await webGpu().requestAdapter())!.requestDevice();
  describe.each<{ kernelProfile: 'hardware' | 'software'; make: () => Promise<GPUDevice> }>([
    { kernelProfile: 'hardware', make: openTilesDevice },
    { kernelProfile: 'software', make: openDevice },
  ])('by the kernels for $kernelProfile', ({ kernelProfile, make }) => {
    let device: GPUDevice;
    let backends: WebGpuBackend[];
    beforeAll(async () => {
      device = await make();
      backends = await Promise.all(
        BUDGETS.map((maxFlops) => createWebGpuBackend({ device, kernelProfile, maxFlops })),
      );
    });
    afterAll(async () => {
      await Promise.all(backends.map((backend) => backend.dispose()));
      device.destroy();
    });

    const cases = kernelCases().filter(({ name }) => !/f16/.test(name));
    for (const { name, run } of cases) {
      test(name, { timeout: 600_000 }, async () => {
        const results: string[][] = [];
        for (const backend of backends) {
          const kept = recorded(backend);
          await run(kept.backend);
          const all = await Promise.all(kept.reads);
          results.push(all.map((bytes) => Buffer.from(bytes).toString('hex')));
        }
        expect(results[1]).toEqual(results[0]);
      });
    }

    test('the least of them cuts many of these cases', () => {
      const [most, least] = backends.map((backend) => backend.statistics().submits);
      expect(least).toBeGreaterThan(1.2 * most!);
    });
  });
});
