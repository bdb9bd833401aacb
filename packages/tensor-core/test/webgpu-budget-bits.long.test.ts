// What a submit holds decides no bits: every conformance case gives equal bytes with little work a
// submit and with much. The 1e9 cuts nothing as small as these cases, so 50,000 operations
// stand beside it.

import type { Backend } from '@shardweave/tensor-core';
import { kernelCases } from '@shardweave/tensor-core/testing';
import type { WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Options, open, openTiles, tilesReason, title } from './support/webgpu-kit.js';

const BUDGETS = [50e9, 1e9, 50_000];

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
  describe.each<{ name: string; make: (options: Options) => Promise<WebGpuBackend> }>([
    { name: 'hardware', make: (options) => openTiles(options) },
    { name: 'software', make: (options) => open({ kernelProfile: 'software', ...options }) },
  ])('by the kernels for $name', ({ make }) => {
    let backends: WebGpuBackend[];
    beforeAll(async () => {
      backends = await Promise.all(BUDGETS.map((maxFlops) => make({ maxFlops })));
    });
    afterAll(() => Promise.all(backends.map((backend) => backend.dispose())));

    for (const { name, run } of kernelCases()) {
      test(name, { timeout: 600_000 }, async () => {
        const results: string[][] = [];
        for (const backend of backends) {
          const kept = recorded(backend);
          await run(kept.backend);
          const all = await Promise.all(kept.reads);
          results.push(all.map((bytes) => Buffer.from(bytes).toString('hex')));
        }
        const [want, ...others] = results;
        for (const got of others) {
          expect(got).toEqual(want);
        }
      });
    }

    test('the least of them cuts many of these cases', () => {
      const [most, , least] = backends.map((backend) => backend.statistics().submits);
      expect(least).toBeGreaterThan(1.2 * most!);
    });
  });
});
