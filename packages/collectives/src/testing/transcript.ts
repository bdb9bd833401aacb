// One hash over the results of a fixed sequence of operations. It is equal on all transports and
// ranks, and equal to the table in transcript-hashes.ts.

import { byteSize, FNV_BASIS, fnv1a } from '@shardweave/dtypes';
import type { ProcessGroup } from '../group/process-group.js';
import { allRanks } from './data-cases.js';
import { type ConformanceCase, check, onRanks } from './harness.js';
import { patternElements } from './patterns.js';
import { TRANSCRIPT_HASHES } from './transcript-hashes.js';

const DTYPES = ['f32', 'f16', 'bf16', 'i32', 'u32', 'u8'] as const;
const OPS = ['sum', 'mean', 'max', 'min'] as const;

/**
 * The hash (FNV-1a, 32 bits) over all dtypes and ops, small and in several segments, even and
 * uneven.
 */
export async function transcriptHash(group: ProcessGroup): Promise<number> {
  let hash = FNV_BASIS;
  const add = (bytes: Uint8Array) => {
    hash = fnv1a(bytes, hash);
  };
  for (const dtype of DTYPES) {
    for (const count of [5, 1023, 30_001]) {
      for (const op of OPS) {
        const input = patternElements(group.rank, count, dtype, count);
        const output = new Uint8Array(input.length);
        await group.allReduce(input, output, { dtype, op });
        add(output);
      }
    }
    add(await reducedAndGathered(group, dtype));
  }
  // This size takes several segments for each part.
  const large = patternElements(group.rank, 2 ** 20, 'bf16', 1);
  await group.allReduce(large, large, { dtype: 'bf16', op: 'sum' });
  add(large);
  return hash;
}

/** Uneven parts, scattered and gathered again. */
async function reducedAndGathered(
  group: ProcessGroup,
  dtype: (typeof DTYPES)[number],
): Promise<Uint8Array> {
  const counts = allRanks(group).map((r) => ((r + 1) % 3) * 777);
  const total = counts.reduce((sum, count) => sum + count, 0);
  const part = new Uint8Array(counts[group.rank]! * byteSize(dtype));
  const input = patternElements(group.rank, total, dtype, total);
  await group.reduceScatter(input, part, { dtype, op: 'sum', counts });
  const all = new Uint8Array(input.length);
  await group.allGather(part, all, { dtype, counts });
  return all;
}

export const transcriptCase: ConformanceCase = {
  name: 'results are those of the committed hashes',
  worldSizes: [1, 2, 3, 4, 8],
  run: (harness, worldSize) =>
    onRanks(harness, worldSize, async (group) => {
      const hash = await transcriptHash(group);
      const expected = TRANSCRIPT_HASHES[worldSize]!;
      check(hash === expected, `expected 0x${expected.toString(16)}, got 0x${hash.toString(16)}`);
    }),
};
