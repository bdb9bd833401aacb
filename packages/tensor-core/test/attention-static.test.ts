// The tiles of attention judged without hardware: what a warp's loads and stores touch, from the
// text of every tile that heads of common sizes get. bench/kernels/isa.mjs judges the code that a
// GPU compiler makes of it.

import { byteSize } from '@shardweave/dtypes';
import { expect, test } from 'vitest';
import {
  keysKernel,
  queriesKernel,
} from '../src/backends/webgpu/kernels/attention/attention-backward-tiles.js';
import { forwardKernel } from '../src/backends/webgpu/kernels/attention/attention-forward-tiles.js';
import {
  type AttentionSpec,
  attentionTile,
} from '../src/backends/webgpu/kernels/attention/attention-tile.js';
import { judgeAttention } from './support/attention-judge.js';

/** At best 4. */
const MOST_TURNS = 5;
/** A slice is a sector of f32, so that one of 16 bits leaves the other half to the next slice. */
const MOST_SECTORS = { f32: 5, f16: 8 };
const KERNELS = { forward: forwardKernel, queries: queriesKernel, keys: keysKernel };

test.each(
  Object.keys(KERNELS).flatMap((name) =>
    [32, 48, 64, 80, 96, 128, 192, 256].flatMap((dim) =>
      (['f32', 'f16'] as const).map((dtype) => ({
        name: name as keyof typeof KERNELS,
        dim,
        dtype,
      })),
    ),
  ),
)(
  'a warp loads whole sectors and meets each bank once: $name, heads of $dim, $dtype',
  ({ name, dim, dtype }) => {
    const tile = attentionTile(dim, { rows: 1024, mostQuads: name === 'keys' ? 1 : 2 });
    const spec: AttentionSpec = {
      dtype,
      isWide: true,
      mask: undefined,
      hasSegments: false,
      sharesIds: false,
      hasDropout: false,
      isShared: true,
      tile,
    };
    const { wgsl, workgroupSize } = KERNELS[name](spec).build();
    const row = 12 * dim;
    const text = { wgsl, threads: workgroupSize[0], ...tile, row, bytes: byteSize(dtype) };
    const counts = judgeAttention(text);
    for (const [count, value] of Object.entries(counts)) {
      expect(value, count).toBeGreaterThanOrEqual(1);
      const most = count === 'loadSectors' ? MOST_SECTORS[dtype] : MOST_TURNS;
      expect(value, count).toBeLessThanOrEqual(most);
    }
  },
);
