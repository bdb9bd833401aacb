// Reduction of several ranks' parts in plain TypeScript: the specification that the wasm version
// (reducer.ts) equals bit for bit. Slow: for tests and odd places.

import { bf16FromF32Bits, bf16ToF32 } from './bfloat16.js';
import { byteSize, type DType, isFloat } from './dtype.js';
import { bitsOfF32 } from './float-bits.js';
import { f16FromF32Bits, f16ToF32 } from './float16.js';
import { viewAs } from './view.js';

/**
 * How parts become one. Floats are combined in f32, part by part, and rounded to their dtype once;
 * `mean` divides the f32 sum by the number of parts. max and min give NaN where any part is NaN and
 * order -0 below 0. Integer sums wrap around; their mean is the wrapped sum over the number of
 * parts, truncated towards zero. The payload of a NaN result is unspecified.
 */
export type ReduceOp = 'sum' | 'mean' | 'max' | 'min';

export interface ReduceOptions {
  readonly dtype: DType;
  readonly op: ReduceOp;
}

/** Combines `parts` in their order, element by element, into `output`. Equal byte lengths. */
export function reducePartsPlain(
  parts: readonly Uint8Array[],
  output: Uint8Array,
  options: ReduceOptions,
): void {
  checkParts(parts, output, options.dtype);
  const views = parts.map((part) => viewAs(part, options.dtype));
  const store = new DataView(output.buffer, output.byteOffset, output.byteLength);
  const count = output.byteLength / byteSize(options.dtype);
  const combine = isFloat(options.dtype) ? combineFloat : combineInteger;
  const elements = new Array<number>(views.length);
  for (let i = 0; i < count; i++) {
    for (let rank = 0; rank < views.length; rank++) {
      elements[rank] = views[rank]![i]!;
    }
    combine(elements, options, store, i);
  }
}

/** Throws RangeError unless all parts are as long as the output, in whole elements. */
export function checkParts(parts: readonly Uint8Array[], output: Uint8Array, dtype: DType): void {
  const size = byteSize(dtype);
  if (parts.length === 0 || output.byteLength % size !== 0) {
    throw new RangeError(
      `reduce: expected parts of whole ${dtype} elements, got ${parts.length} parts and ` +
        `${output.byteLength} bytes of output.`,
    );
  }
  for (const part of parts) {
    if (part.byteLength !== output.byteLength) {
      throw new RangeError(
        `reduce: expected parts of ${output.byteLength} bytes, got ${part.byteLength}.`,
      );
    }
  }
}

function combineFloat(
  elements: readonly number[],
  { dtype, op }: ReduceOptions,
  store: DataView,
  i: number,
): void {
  const widen = dtype === 'f16' ? f16ToF32 : dtype === 'bf16' ? bf16ToF32 : (x: number) => x;
  let value = widen(elements[0]!);
  for (let rank = 1; rank < elements.length; rank++) {
    const next = widen(elements[rank]!);
    if (op === 'max') {
      value = Math.max(value, next);
    } else if (op === 'min') {
      value = Math.min(value, next);
    } else {
      value = Math.fround(value + next);
    }
  }
  if (op === 'mean') {
    value = Math.fround(value / elements.length);
  }
  if (dtype === 'f32') {
    store.setFloat32(i * 4, value, true);
  } else {
    const narrow = dtype === 'f16' ? f16FromF32Bits : bf16FromF32Bits;
    store.setUint16(i * 2, narrow(bitsOfF32(value)), true);
  }
}

function combineInteger(
  elements: readonly number[],
  { dtype, op }: ReduceOptions,
  store: DataView,
  i: number,
): void {
  const wrap = (x: number) => (dtype === 'i32' ? x | 0 : x >>> 0);
  let value = elements[0]!;
  for (let rank = 1; rank < elements.length; rank++) {
    const next = elements[rank]!;
    if (op === 'max') {
      value = Math.max(value, next);
    } else if (op === 'min') {
      value = Math.min(value, next);
    } else {
      value = wrap(value + next);
    }
  }
  store.setInt32(i * 4, op === 'mean' ? Math.trunc(value / elements.length) : value, true);
}
