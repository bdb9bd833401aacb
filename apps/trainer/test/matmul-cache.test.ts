import { mkdtempSync, readdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { WebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { expect, it } from 'vitest';
import { MatmulCache } from '../src/rank/matmul-cache.js';

/** Measuring needs a GPU, which no machine of this suite has: what is tested is when it happens. */
function fakeGpu(isSoftware: boolean) {
  const calls: unknown[] = [];
  const backend = {
    info: { description: 'GPU (X/1)', isSoftware },
    tuneMatmul: async (options: unknown) => {
      calls.push(options);
      return { 'nn f32 large': '8x8' };
    },
  } as unknown as WebGpuBackend;
  return { backend, calls };
}

it('measures a GPU once for each dtype, and survives a damaged file', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'trainer-'));
  const cache = new MatmulCache(folder);
  const { backend, calls } = fakeGpu(false);
  expect(await cache.read('GPU (X/1)', 'f32')).toBeUndefined();
  await cache.measure(backend, 'f32');
  await cache.measure(backend, 'f32');
  await cache.measure(backend, 'f16');
  expect(calls).toEqual([{ dtypes: ['f32'] }, { dtypes: ['f16'] }]);
  expect(await cache.read('GPU (X/1)', 'f32')).toEqual({ 'nn f32 large': '8x8' });
  expect(await cache.read('GPU (X/2)', 'f32')).toBeUndefined();
  for (const name of readdirSync(folder)) {
    writeFileSync(join(folder, name), '{"a": 1}');
  }
  expect(await cache.read('GPU (X/1)', 'f32')).toBeUndefined();
});

it('leaves a software driver alone', async () => {
  const { backend, calls } = fakeGpu(true);
  await new MatmulCache(mkdtempSync(join(tmpdir(), 'trainer-'))).measure(backend, 'f32');
  expect(calls).toEqual([]);
});
