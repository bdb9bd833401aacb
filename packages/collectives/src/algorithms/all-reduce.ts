// All-reduce: a reduce-scatter to the owners and an all-gather of their results. Small buffers are
// gathered whole and combined everywhere instead: one hop, and the same bits, since each element is
// combined in rank order and rounded once either way.

import { byteSize, type ReduceOptions } from '@shardweave/dtypes';
import type { Call } from '../call.js';
import { allGather } from './all-gather.js';
import { balancedParts, evenParts } from './part-layout.js';
import { reduceScatter } from './reduce-scatter.js';

/** Up to here, gathering whole buffers is faster: half the hops outweigh the bytes. */
export const GATHER_ALL_MAX_BYTES = 16 * 1024;

/** Combines all inputs into every `output`, which may be `input`. */
export async function allReduce(
  call: Call,
  input: Uint8Array,
  output: Uint8Array,
  options: ReduceOptions,
): Promise<void> {
  const { worldSize, rank, scratch } = call;
  const byteLength = input.byteLength;
  if (byteLength <= GATHER_ALL_MAX_BYTES) {
    const all = scratch.take(byteLength * worldSize);
    const layout = evenParts(worldSize, byteLength);
    await allGather(call, input, all, layout);
    const parts = Array.from({ length: worldSize }, (_, r) =>
      all.subarray(r * byteLength, (r + 1) * byteLength),
    );
    await call.reduce(parts, output, options);
    scratch.give(all);
    return;
  }
  const layout = balancedParts(worldSize, byteLength, byteSize(options.dtype));
  const own = output.subarray(layout.offsets[rank], layout.offsets[rank + 1]);
  await reduceScatter(call, input, own, layout, options);
  await allGather(call, own, output, layout, 1);
}
