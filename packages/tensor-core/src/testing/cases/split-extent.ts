// The form of cases with operands larger than a view, and the size of these operands.

import { byteSize, type DType } from '@shardweave/dtypes';
import type { CallRecorder } from '../kit/call-recorder.js';
import type { ToleranceName } from '../kit/tolerance.js';

export interface Split {
  readonly title: string;
  readonly tolerance: ToleranceName;
  /** Runs kernels on operands of more than `limitBytes`, the most that a view may have. */
  body(calls: CallRecorder, limitBytes: number): void;
}

/** A dtype of each width, since the width alone decides how operands are cut. */
export const WIDTHS = ['f32', 'bf16'] as const;

/** Returns the elements of three and a half views and 5 more, so that parts do not end evenly. */
export function numBeyond(limitBytes: number, dtype: DType): number {
  return Math.floor((3.5 * limitBytes) / byteSize(dtype)) + 5;
}
