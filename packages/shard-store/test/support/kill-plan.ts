// owners.test.ts and the processes that it starts share these terms.

import type { FileCall } from '@shardweave/shard-store/testing-node';

export interface KillPlan {
  /** The steps committed before the one with the kill, counted in each opening. */
  readonly numSteps: number;
  readonly operation: FileCall['operation'];
  /** A pattern of the file's name. */
  readonly file: string;
  /** How many such calls of the step still succeed. The default is 0. */
  readonly skip?: number;
  readonly fsync?: boolean;
  /** With 1 the files are written one after another, so that the plan decides about all of them. */
  readonly maxConcurrent?: number;
}

export const KEYS = ['parameter', 'exp_avg', 'exp_avg_sq'] as const;
/** The size of a value: two chunks. */
export const BYTES = 2 ** 20 + 5;
