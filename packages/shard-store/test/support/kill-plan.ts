// What owners.test.ts and the processes that it starts agree on.

import type { FileCall } from '@shardweave/shard-store/testing-node';

export interface KillPlan {
  /** Steps that are committed before the one with the kill; of every opening. */
  readonly numSteps: number;
  readonly operation: FileCall['operation'];
  /** Pattern of the file's name. */
  readonly file: string;
  /** Calls of that kind in the step which still happen; 0. */
  readonly skip?: number;
  readonly fsync?: boolean;
  /** 1: one file after the other, so that the plan decides about all of them. */
  readonly maxConcurrent?: number;
}

export const KEYS = ['parameter', 'exp_avg', 'exp_avg_sq'] as const;
/** Two chunks. */
export const BYTES = 2 ** 20 + 5;
