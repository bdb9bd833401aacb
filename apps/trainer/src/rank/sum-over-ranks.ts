// One number of each rank, and their sum on all: the same bits, whatever devices they have.

import type { ProcessGroup } from '@shardweave/collectives';

/** Collective where there are several ranks; f32, not a number where one is. */
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
