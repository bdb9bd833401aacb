// Reduces the parts of several ranks in plain TypeScript. It is the specification that the wasm
// version (rank-sum.ts) equals bit for bit. It is slow, and meant for tests and odd sizes.

import { bf16FromF32Bits, bf16ToF32 } from './bfloat16.js';
import { byteSize, isFloat, type ReduceDType } from './dtype.js';
import { bitsOfF32 } from './float-bits.js';
import { f16FromF32Bits, f16ToF32 } from './float16.js';
import { OP_CODES } from './kernel-codes.js';
import { viewAs } from './view.js';

/** The kernels divide by an f32, which holds every whole number up to this. */
const MAX_DIVISOR = 2 ** 24;

/**
 * How parts become one. Floats are combined in f32, part by part, and rounded to their dtype once;
 * `mean` divides the f32 sum by the number of parts. max and min give NaN where any part is NaN,
 * and order -0 below 0. Integer sums wrap around (u8 modulo 256, as in C); their mean is the
 * wrapped sum over the number of parts, truncated towards zero. The payload of a NaN result is
 * unspecified.
 */
export type ReduceOp = 'sum' | 'mean' | 'max' | 'min';

/** The operation of a reduction, its dtypes and its divisor. */
export interface ReduceOptions {
  /** The dtype of the output. */
  readonly dtype: ReduceDType;
  readonly op: ReduceOp;
  /**
   * The dtype of the parts, where it differs: both are floats then. So sums of sums are rounded
   * only once, too: f16 parts to an f32 sum, and such sums to f16. Default: `dtype`.
   */
  readonly inputDtype?: ReduceDType;
  /** The divisor of `mean`: a whole number from 1 to 2^24. Default: the number of parts. */
  readonly divisor?: number;
  /**
   * Another order of adding, for sums of f32: how often the last two sums that wait are added after
   * each part. [0, 1, 0, 2] of 4 parts is (a + b) + (c + d). Default: [0, 1, 1, ...], in order.
   */
  readonly merges?: readonly number[];
}

/**
 * Combines `parts` in their order, element by element, into `output`. All have equal byte lengths
 * where they have one dtype.
 */
export function reducePartsPlain(
  parts: readonly Uint8Array[],
  output: Uint8Array,
  options: ReduceOptions,
): void {
  checkParts(parts, output, options);
  const views = parts.map((part) => viewAs(part, options.inputDtype ?? options.dtype));
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

/**
 * @throws {RangeError} unless all parts have a whole number of elements, as many as the output, and
 * the operation and its divisor are valid
 */
export function checkParts(
  parts: readonly Uint8Array[],
  output: Uint8Array,
  { dtype, op, inputDtype = dtype, divisor = 1, merges }: ReduceOptions,
): void {
  if (!Object.hasOwn(OP_CODES, op)) {
    throw new RangeError(
      `reduce: expected one of ${Object.keys(OP_CODES).join(', ')}, got '${op}'.`,
    );
  }
  if (!(Number.isInteger(divisor) && divisor >= 1 && divisor <= MAX_DIVISOR)) {
    throw new RangeError(
      `reduce: expected a whole divisor from 1 to ${MAX_DIVISOR}, got ${divisor}.`,
    );
  }
  if (parts.length === 0 || output.byteLength % byteSize(dtype) !== 0) {
    throw new RangeError(
      `reduce: expected parts of whole ${dtype} elements, got ${parts.length} parts and ` +
        `${output.byteLength} bytes of output.`,
    );
  }
  if (inputDtype !== dtype && !(isFloat(inputDtype) && isFloat(dtype))) {
    throw new RangeError(`reduce: expected floats or one dtype, got ${inputDtype} and ${dtype}.`);
  }
  if (merges !== undefined) {
    checkMerges(merges, parts.length);
    if (dtype !== 'f32' || inputDtype !== 'f32' || op !== 'sum') {
      throw new RangeError(
        `reduce: expected a sum of f32 in an order of its own, got ${op} of ${inputDtype} to ${dtype}.`,
      );
    }
  }
  const partBytes = (output.byteLength / byteSize(dtype)) * byteSize(inputDtype);
  for (const part of parts) {
    if (part.byteLength !== partBytes) {
      throw new RangeError(`reduce: expected parts of ${partBytes} bytes, got ${part.byteLength}.`);
    }
  }
}

function checkMerges(merges: readonly number[], numParts: number): void {
  let waiting = 0;
  let isOrder = merges.length === numParts;
  for (const count of merges) {
    waiting += 1 - count;
    isOrder &&= Number.isInteger(count) && count >= 0 && waiting >= 1;
  }
  if (!isOrder || waiting !== 1) {
    throw new RangeError(
      `reduce: expected merges of ${numParts} parts to one sum, got [${merges.join(', ')}].`,
    );
  }
}

function sumInOrder(elements: readonly number[], merges: readonly number[]): number {
  const waiting: number[] = [];
  for (const [i, element] of elements.entries()) {
    let sum = element;
    for (let left = merges[i]!; left > 0; left--) {
      sum = Math.fround(waiting.pop()! + sum);
    }
    waiting.push(sum);
  }
  return waiting[0]!;
}

function combineFloat(
  elements: readonly number[],
  { dtype, op, inputDtype = dtype, divisor = elements.length, merges }: ReduceOptions,
  store: DataView,
  i: number,
): void {
  if (merges !== undefined) {
    store.setFloat32(i * 4, sumInOrder(elements, merges), true);
    return;
  }
  const exact = (x: number) => x;
  const widen = inputDtype === 'f16' ? f16ToF32 : inputDtype === 'bf16' ? bf16ToF32 : exact;
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
    value = Math.fround(value / divisor);
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
  { dtype, op, divisor = elements.length }: ReduceOptions,
  store: DataView,
  i: number,
): void {
  const wrap = (x: number) => (dtype === 'i32' ? x | 0 : dtype === 'u8' ? x & 0xff : x >>> 0);
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
  const result = op === 'mean' ? Math.trunc(value / divisor) : value;
  if (dtype === 'u8') {
    store.setUint8(i, result);
  } else {
    store.setInt32(i * 4, result, true);
  }
}
