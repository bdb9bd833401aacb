// Sums numbers of each rank on all of them, with the same bits whatever devices they have.

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
  await sumAllOverRanks(sum, group, tag);
  return sum[0]!;
}

/** Sums each of several numbers, in place. Collective. */
export async function sumAllOverRanks(
  values: Float32Array,
  group: ProcessGroup,
  tag: string,
): Promise<void> {
  const bytes = new Uint8Array(values.buffer);
  await group.allReduce(bytes, bytes, { dtype: 'f32', op: 'sum', tag });
}
