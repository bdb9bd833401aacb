// Sums one number of each rank on all of them, with the same bits whatever devices they have.

import type { ProcessGroup } from '@shardweave/collectives';

/** The sum, in f32; NaN where one number is. Collective where there are several ranks. */
export async function sumOverRanks(
  value: number,
  group: ProcessGroup,
  tag: string,
): Promise<number> {
  if (group.worldSize === 1) {
    return value;
  }
  const sum = Float32Array.of(value);
  const bytes = new Uint8Array(sum.buffer);
  await group.allReduce(bytes, bytes, { dtype: 'f32', op: 'sum', tag });
  return sum[0]!;
}
