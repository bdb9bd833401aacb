// What a case with operands larger than a view is, and how large it makes them.

import { byteSize, type DType } from '@shardweave/dtypes';
import type { CallRecorder } from '../call-recorder.js';
import type { ToleranceName } from '../tolerance.js';

export interface Split {
  readonly title: string;
  readonly tolerance: ToleranceName;
  /** Runs kernels on operands of more than `limitBytes`, the most that a view may have. */
  body(calls: CallRecorder, limitBytes: number): void;
}

/** Splits know elements by their bytes. */
export const WIDTHS = ['f32', 'bf16'] as const;

/** Elements of three and a half views, and a few, so that parts don't end evenly. */
export function numBeyond(limitBytes: number, dtype: DType): number {
  return Math.floor((3.5 * limitBytes) / byteSize(dtype)) + 5;
}
