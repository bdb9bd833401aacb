// Sums numbers of each rank on all of them, with the same bits whatever devices they have.

import type { ProcessGroup } from '@shardweave/collectives';
import { groupOf } from '../../data/row-order.js';
import type { RunConfig } from '../../run-config.js';

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

/**
 * The sum of the numbers of a rank's micro-steps, on all ranks. With groups each is rounded to f32,
 * and they are added in float64 in the order of the groups, so that ranks don't show. Collective
 * where there are several.
 */
export async function sumOfMicroSteps(
  values: readonly number[],
  config: Pick<RunConfig, 'ranks'> & Partial<Pick<RunConfig, 'gradientGroups' | 'strategy'>>,
  { rank, group, tag }: { readonly rank: number; readonly group: ProcessGroup; tag: string },
): Promise<number> {
  const { gradientGroups } = config;
  if (gradientGroups === undefined) {
    return sumOverRanks(
      values.reduce((sum, x) => sum + x, 0),
      group,
      tag,
    );
  }
  const all = new Float32Array(gradientGroups);
  for (const [microStep, value] of values.entries()) {
    const own = groupOf({ ...config, rank, microStep });
    if (own !== undefined) {
      all[own] = value;
    }
  }
  if (group.worldSize > 1) {
    await sumAllOverRanks(all, group, tag); // each has one number that is not 0
  }
  return all.reduce((sum, x) => sum + x, 0);
}
