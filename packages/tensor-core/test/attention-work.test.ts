// The kernels of attention for hardware state what they compute and move. These tests hold that
// against a count of every pair of a query and a key, on a driver that computes nothing.
// webgpu-backend.test.ts has the values.

import { Device, headsOf, scaledDotProductAttention } from '@shardweave/tensor-core';
import {
  createWebGpuBackend,
  type PlannedDispatch,
  type WebGpuBackend,
} from '@shardweave/tensor-core/webgpu';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const F32_BYTES = 4;

interface Sizes {
  readonly batch: number;
  readonly seq: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly dim: number;
  readonly isCausal?: boolean;
  readonly window?: number;
}

/**
 * Makes one tensor whose rows hold queries, keys and values side by side, as a model's fused
 * projection does.
 */
function packed(device: Device, { batch, seq, heads, kvHeads, dim }: Sizes) {
  const shape = [batch, seq, (heads + 2 * kvHeads) * dim];
  const qkv = device.zeros(shape, { requiresGrad: true });
  const part = (numHeads: number, start: number) =>
    headsOf(qkv, { numHeads, headDim: dim, start: start * dim });
  return [part(heads, 0), part(kvHeads, heads), part(kvHeads, heads + kvHeads)] as const;
}

async function step(device: Device, sizes: Sizes): Promise<void> {
  const { isCausal = false, window } = sizes;
  const options = { isCausal, ...(window === undefined ? {} : { window }) };
  const out = scaledDotProductAttention(...packed(device, sizes), options);
  await out.backward({ gradient: out.detach() });
}

describe('on a driver that computes nothing', () => {
  let backend: WebGpuBackend;
  beforeAll(async () => {
    const gpu = openNodeGpu({ flags: ['backend=null'] });
    const device = (await (await gpu.requestAdapter())!.requestDevice()) as GPUDevice;
    backend = await createWebGpuBackend({ device, kernelProfile: 'hardware' });
  });
  afterAll(() => backend.dispose());

  async function plan(sizes: Sizes): Promise<PlannedDispatch[]> {
    const found: PlannedDispatch[] = [];
    const device = new Device(backend);
    await device.dryRun(async () => {
      backend.onPlannedDispatch((dispatch) => found.push(dispatch));
      await step(device, sizes);
      backend.onPlannedDispatch(undefined);
    });
    return found.filter(({ kernel }) => kernel.startsWith('attention'));
  }

  /**
   * Counts the pairs of whole blocks: for each tile of rows, all columns from the first to the last
   * block in which one of its rows sees a column.
   */
  function countedPairs({ seq, isCausal = false, window = 0 }: Sizes, kernel: string): number {
    const [, rows = 0, across = 0] = /(\d+)x(\d+)x\d+/.exec(kernel)!.map(Number);
    const columns = 4 * across;
    const isOfKeys = kernel.startsWith('attention keys');
    const sees = (row: number, column: number) => {
      const away = isOfKeys ? column - row : row - column;
      return (!isCausal || away >= 0) && (window === 0 || Math.abs(away) < window);
    };
    let pairs = 0;
    for (let first = 0; first < seq; first += rows) {
      const blocks = new Set<number>();
      for (let row = first; row < Math.min(seq, first + rows); row++) {
        for (let column = 0; column < seq; column++) {
          if (sees(row, column)) {
            blocks.add(Math.floor(column / columns));
          }
        }
      }
      pairs += rows * columns * blocks.size;
    }
    return pairs;
  }

  const products = { attention: 2, 'attention queries': 3, 'attention keys': 4 };
  test.each<readonly [string, Sizes]>([
    ['all pairs', { batch: 2, seq: 200, heads: 3, kvHeads: 3, dim: 64 }],
    ['causal', { batch: 2, seq: 1000, heads: 2, kvHeads: 2, dim: 64, isCausal: true }],
    ['a window', { batch: 1, seq: 700, heads: 4, kvHeads: 2, dim: 64, window: 90 }],
    [
      'a causal window, and heads that share keys',
      { batch: 1, seq: 700, heads: 6, kvHeads: 2, dim: 128, isCausal: true, window: 100 },
    ],
  ])('%s', async (_, sizes) => {
    const { batch, heads, kvHeads, dim, seq } = sizes;
    const dispatches = await plan(sizes);
    expect(dispatches.map(({ kernel }) => kernel.split(' f32')[0])).toEqual(Object.keys(products));
    const ofQueries = batch * seq * heads * dim * F32_BYTES;
    const ofKeys = batch * seq * kvHeads * dim * F32_BYTES;
    const bytes = [
      [ofQueries + 2 * ofKeys, ofQueries],
      [3 * ofQueries + 2 * ofKeys, ofQueries],
      [2 * ofQueries + 2 * ofKeys, 2 * ofKeys],
    ];
    for (const [i, { kernel, flops, bytesRead, bytesWritten }] of dispatches.entries()) {
      const count = Object.values(products)[i]!;
      expect(flops).toBe(2 * count * batch * heads * dim * countedPairs(sizes, kernel));
      expect([bytesRead, bytesWritten]).toEqual(bytes[i]);
    }
  });

  test('keys and values of a step of GPT-2 at 8 x 1,024 are one dispatch', async () => {
    const sizes = { batch: 8, seq: 1024, heads: 12, kvHeads: 12, dim: 64, isCausal: true };
    expect((await plan(sizes)).length).toBe(3);
  });

  test('a head beyond the budget is cut by tiles that take as long as the longest', async () => {
    const sizes = { batch: 1, seq: 40_000, heads: 1, kvHeads: 1, dim: 64, isCausal: true };
    const forward = (await plan(sizes)).filter(({ kernel }) => /^attention f32/.test(kernel));
    const most = 4 * 64 * 64 * 40_000; // This is what a tile of 64 rows computes over all columns.
    expect(forward.length).toBeGreaterThan(1);
    for (const { workgroups } of forward) {
      expect(workgroups * most).toBeLessThan(50.1e9);
    }
  });
});
