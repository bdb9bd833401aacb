// Sums numbers of each rank on all of them, with the same bits whatever devices they have.

import type { ProcessGroup } from '@shardweave/collectives';
import { groupOf, type Parts } from '../../data/row-order.js';
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
  ...options: [config: SummedConfig, of: Summed]
): Promise<number> {
  const [sum] = await sumsOfMicroSteps(
    values.map((value) => [value]),
    ...options,
  );
  return sum ?? 0;
}

type SummedConfig = Pick<RunConfig, 'ranks'> &
  Partial<Pick<RunConfig, 'gradientGroups' | 'strategy'>> &
  Pick<Parts, 'groupCounts'>;

interface Summed {
  readonly rank: number;
  readonly group: ProcessGroup;
  readonly tag: string;
}

/** The sums of several numbers of each micro-step, all of them at once. Collective. */
export async function sumsOfMicroSteps(
  values: readonly (readonly number[])[],
  config: SummedConfig,
  { rank, group, tag }: Summed,
): Promise<number[]> {
  const { gradientGroups } = config;
  const width = values[0]?.length ?? 1;
  const sumOf = (rows: readonly ArrayLike<number>[]) =>
    Array.from({ length: width }, (_, i) => rows.reduce((sum, row) => sum + row[i]!, 0));
  if (gradientGroups === undefined) {
    const own = sumOf(values);
    if (group.worldSize === 1) {
      return own;
    }
    const sums = Float32Array.from(own);
    await sumAllOverRanks(sums, group, tag);
    return [...sums];
  }
  const all = new Float32Array(gradientGroups * width);
  for (const [microStep, row] of values.entries()) {
    const own = groupOf({ ...config, rank, microStep });
    if (own !== undefined) {
      all.set(row, own * width);
    }
  }
  if (group.worldSize > 1) {
    await sumAllOverRanks(all, group, tag); // each has one number that is not 0
  }
  const rows = Array.from({ length: gradientGroups }, (_, i) =>
    all.subarray(i * width, (i + 1) * width),
  );
  return sumOf(rows);
}
