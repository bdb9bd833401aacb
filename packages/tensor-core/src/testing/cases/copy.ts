// Cases of copyStrided: transposes, slices, concatenation and expansion, bit for bit.

import type { DType } from '@shardweave/dtypes';
import type { View } from '../../view.js';
import type { CallRecorder } from '../kit/call-recorder.js';
import { type ConformanceCase, recordedCase } from '../kit/conformance-case.js';

const DTYPES = ['f32', 'f16', 'bf16', 'i32', 'u32'] as const;

interface Walk {
  readonly shape: readonly number[];
  readonly xStrides: readonly number[];
  readonly outStrides: readonly number[];
  readonly xOffset?: number;
  readonly outOffset?: number;
}

/** Walks into a dense output, as reshapes, transposes, slices and expansions need them. */
const INTO_DENSE: readonly Walk[] = [
  { shape: [1], xStrides: [1], outStrides: [1] },
  { shape: [1000], xStrides: [1], outStrides: [1], xOffset: 3 },
  { shape: [5, 7], xStrides: [1, 5], outStrides: [7, 1] },
  { shape: [65, 63], xStrides: [1, 65], outStrides: [63, 1] },
  { shape: [3, 5, 2, 7], xStrides: [70, 7, 35, 1], outStrides: [70, 14, 7, 1] }, // swaps two axes
  { shape: [4, 3], xStrides: [10, 2], outStrides: [3, 1], xOffset: 5 }, // a slice with steps
  { shape: [6, 9], xStrides: [0, 1], outStrides: [9, 1] }, // expands rows
  { shape: [9, 7], xStrides: [1, 0], outStrides: [7, 1] }, // expands columns
  { shape: [2, 1, 3, 2, 2, 3], xStrides: [36, 9, 3, 18, 9, 1], outStrides: [36, 36, 12, 6, 3, 1] },
];
/**
 * Walks into a part of the output, with the even offsets, extents and strides of 16-bit outputs.
 */
const INTO_PART: readonly Walk[] = [
  { shape: [3, 4], xStrides: [4, 1], outStrides: [10, 1], outOffset: 6 }, // cat along columns
  { shape: [3, 4], xStrides: [5, 1], outStrides: [4, 1], xOffset: 1, outOffset: 8 }, // along rows
  { shape: [2, 3, 6], xStrides: [1, 2, 6], outStrides: [30, 10, 1], outOffset: 2 },
  { shape: [130], xStrides: [1], outStrides: [1], xOffset: 1, outOffset: 64 },
];
/** Walks for 32-bit elements only, which need not be even anywhere. */
const INTO_ANY: readonly Walk[] = [
  { shape: [5, 7], xStrides: [7, 1], outStrides: [1, 5] }, // transposes while writing
  { shape: [3, 5], xStrides: [5, 1], outStrides: [9, 1], outOffset: 3 },
  { shape: [7], xStrides: [2], outStrides: [3], xOffset: 1, outOffset: 1 },
];

export function copyCases(): ConformanceCase[] {
  return DTYPES.map((dtype) =>
    recordedCase(`copyStrided ${dtype}`, 'exact', (calls) => {
      const is32 = dtype !== 'f16' && dtype !== 'bf16';
      for (const walk of [...INTO_DENSE, ...INTO_PART, ...(is32 ? INTO_ANY : [])]) {
        const out = calls.output(reachOf(walk.shape, walk.outStrides, walk.outOffset), dtype, {
          offset: 2,
        });
        copy(calls, dtype, walk, out);
      }
      concatenate(calls, dtype);
    }),
  );
}

/** Makes two copies into one output, as cat does. The gap between them must stay as it is. */
function concatenate(calls: CallRecorder, dtype: DType): void {
  const out = calls.output(7 * 12, dtype);
  const part = { shape: [7, 4], xStrides: [4, 1], outStrides: [12, 1] };
  copy(calls, dtype, part, out);
  copy(calls, dtype, { ...part, outOffset: 6 }, out);
}

function copy(calls: CallRecorder, dtype: DType, walk: Walk, out: View): void {
  const { shape, xStrides, outStrides, xOffset = 0, outOffset = 0 } = walk;
  const x = calls.anyBits(reachOf(shape, xStrides, xOffset) + 3, dtype, { offset: 1 });
  calls.run('copyStrided', { x, out, shape, xOffset, xStrides, outOffset, outStrides });
}

function reachOf(shape: readonly number[], strides: readonly number[], offset = 0): number {
  return shape.reduce((last, dim, axis) => last + (dim - 1) * strides[axis]!, offset + 1);
}
