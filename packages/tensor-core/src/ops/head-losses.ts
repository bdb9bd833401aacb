// What the forms of a language model's head share: its operands, and the losses of chunks of rows
// with all their classes, with which the gradient of the rows can be had at once.

import { checkValue } from '../check-options.js';
import type { Device } from '../device.js';
import { ShapeError } from '../errors.js';
import type { Epilogue } from '../kernel-calls/matmul.js';
import { type OptionRule, whole } from '../options.js';
import { isTensor, type Tensor } from '../tensor.js';
import type { View } from '../view.js';
import { eachPanel } from './blocks.js';
import {
  isSameShape,
  requireFloat,
  requireInteger,
  requireSameDevice,
  shapeText,
} from './checks.js';

/** The options of a head: its weight, and how many bytes of logits may exist at once. */
export interface HeadOptions {
  /**
   * The head's weight, [classes, dim]: the layout of an embedding's table. One in blocks is decoded
   * a panel of classes at a time.
   */
  readonly weight: Tensor;
  /**
   * The largest number of bytes that logits (f32) take at once. It is exceeded only where it does
   * not suffice for the smallest chunk: one row in forward (64 rows where the weight is frozen),
   * 64 classes of all rows in backward. The default is 249 MiB on a hardware GPU; elsewhere it is
   * 12 MiB, or 48 MiB where the weight is frozen.
   */
  readonly chunkBytes?: number;
}

export const TENSOR: OptionRule = { expected: 'a tensor', holds: isTensor };
export const HEAD_RULES = { weight: TENSOR, chunkBytes: whole(1) };

/**
 * The default where the weight is trained. Together with the loss, the log-sum-exp and the target
 * of each row, all of the op's memory stays below 16 MiB for tens of thousands of rows.
 */
const CHUNK_BYTES = 12 * 2 ** 20;
/**
 * The default on a hardware GPU. Backward reads x and dx as a whole for each chunk, so fewer and
 * larger chunks save traffic: 8,192 rows and GPT-2's 50,257 classes are 7 chunks instead of 158.
 * A chunk of this size holds 62 tiles of 128 classes. With GPT-2's 768 columns each of its products
 * is then just below the operations of two dispatches; one tile more would take a third.
 */
const CHUNK_BYTES_GPU = 249 * 2 ** 20;
/**
 * The default beside a frozen weight. Each chunk of rows needs two products with the whole weight,
 * and each product packs the weight anew, which is worth it only for many rows: with 49,152
 * classes, chunks of 12 MiB hold 64 rows and reach two thirds of the rate of these, which hold 256.
 */
const CHUNK_BYTES_FROZEN = 48 * 2 ** 20;
export const F32_BYTES = 4;
/**
 * Where dx is summed by chunks of rows, their number is a multiple of this. Beside a frozen weight
 * a chunk has at least so many rows: a product of 20 rows also packs the whole weight, and reaches
 * half the rate of a product of 64.
 */
export const ROW_STEP = 64;
/**
 * The rows, and columns, of a large tile of a GPU's product. A chunk with many of either consists
 * of whole tiles: of 8,192 rows with GPT-2's classes, 1,298 would fit and 1,280 are taken, so that
 * their logits take two dispatches of 50 GFLOP instead of three.
 */
export const LARGE_TILE = 128;

/** Checks the operands of an op and gives what its parts work on. */
export function headOf(
  op: string,
  x: Tensor,
  { targets, weight, chunkBytes }: HeadOptions & { readonly targets: Tensor },
): Head {
  checkValue(op, 'weight', weight, TENSOR);
  requireFloat(op, x, weight);
  requireInteger(op, targets);
  requireSameDevice(op, x, weight, targets);
  const [classes = 0, dim = 0] = weight.shape;
  const rows = targets.size;
  const isWhole = weight.rank === 2 && classes > 0 && dim > 0;
  if (!isWhole || !isSameShape(x.shape, [...targets.shape, dim])) {
    throw new ShapeError(
      `${op}: expected x [..., dim], one target per row of it and weight [classes, dim], got x ${shapeText(x.shape)}, targets ${shapeText(targets.shape)} and weight ${shapeText(weight.shape)}. Targets are ids, not one-hot rows.`,
    );
  }
  const whole = { classes, dim, chunkBytes: chunkBytes ?? usualChunk(x.device, weight) };
  return { x, weight, targets, first: 0, rows, ...whole };
}

function usualChunk(device: Device, weight: Tensor): number {
  if (isGpu(device)) {
    return CHUNK_BYTES_GPU;
  }
  return weight.requiresGrad ? CHUNK_BYTES : CHUNK_BYTES_FROZEN;
}

export function isGpu({ backend: { info } }: Device): boolean {
  return info.kind === 'webgpu' && !info.isSoftware;
}

export interface Head {
  readonly x: Tensor;
  readonly weight: Tensor;
  readonly targets: Tensor;
  /** The range of rows to work on begins at row `first` and has `rows` rows. */
  readonly first: number;
  readonly rows: number;
  readonly classes: number;
  readonly dim: number;
  readonly chunkBytes: number;
}

export interface LossesOfHead {
  readonly losses: Tensor;
  readonly lse: Tensor;
  /** Where present, receives all logits, [rows, classes]. */
  readonly kept: Tensor | undefined;
  /** Where present, receives the gradient of the sum of all losses, f32 [rows, dim]. */
  readonly dx?: Tensor | undefined;
  /** Whether dx is the gradient of the logSumExps in place of the losses. Default false. */
  readonly isPart?: boolean;
}

export function fillLosses(
  head: Head,
  { losses, lse, kept, dx, isPart = false }: LossesOfHead,
): void {
  const { x, targets, rows, classes, dim, chunkBytes } = head;
  const { device } = x;
  const fit = Math.floor(chunkBytes / (F32_BYTES * classes));
  const whole = fit < LARGE_TILE ? fit : fit - (fit % LARGE_TILE);
  const most = Math.min(rows, Math.max(dx === undefined ? 1 : ROW_STEP, whole));
  const chunk = kept ?? device.empty([most, classes]);
  const ones = dx && device.full([most], 1);
  // Beside one class more, which is every row's target, no logit of these is a target's.
  const beside = isPart ? device.tensor(new Uint32Array(most).fill(classes)) : undefined;
  for (let first = 0; first < rows; first += most) {
    const count = Math.min(most, rows - first);
    const logits = part(chunk, 0, count * classes);
    fillLogits(head, { x: part(x, first * dim, count * dim), logits: chunk, count });
    device.run('crossEntropy', {
      logits,
      targets: part(targets, first, count),
      loss: part(losses, first, count),
      lse: part(lse, first, count),
      rows: count,
      cols: classes,
    });
    if (dx === undefined) {
      continue;
    }
    device.run('crossEntropyBackward', {
      logits,
      targets: beside === undefined ? part(targets, first, count) : part(beside, 0, count),
      classes: beside === undefined ? classes : classes + 1,
      lse: part(lse, first, count),
      dLoss: part(ones!, 0, count),
      out: logits,
      rows: count,
      cols: classes,
    });
    fillSlopes(head, { logits: chunk, dx: part(dx, first * dim, count * dim), count });
  }
}

/** The logits of some rows, [count, classes]; beside a weight in blocks, by panels of classes. */
function fillLogits(
  head: Head,
  { x, logits, count }: { readonly x: View; readonly logits: Tensor; readonly count: number },
): void {
  const { weight, classes, dim } = head;
  const fill = (b: View, first: number, n: number) => {
    const out = part(logits, first, (count - 1) * classes + n);
    product(head, { a: x, b, out, m: count, n, k: dim, transposeB: true, outRow: classes });
  };
  if (weight.blocks === undefined) {
    fill(weight.view(), 0, classes);
  } else {
    eachPanel(weight, { by: 'rows' }, ({ numbers, first, count: n }) => fill(numbers, first, n));
  }
}

/**
 * The product of the gradient of logits, [count, classes], with the weight. The cpu device adds its
 * terms in runs of classes, so sums over panels of them have the bits of one product. Elsewhere
 * panels of dx's columns, which are larger, keep each sum in one kernel.
 */
function fillSlopes(
  head: Head,
  { logits, dx, count }: { readonly logits: Tensor; readonly dx: View; readonly count: number },
): void {
  const { weight, classes, dim } = head;
  const a = part(logits, 0, count * classes);
  const call = { m: count, aRow: classes };
  if (weight.blocks === undefined) {
    product(head, { ...call, a, b: weight.view(), out: dx, n: dim, k: classes });
  } else if (weight.device.backend.info.kind === 'cpu') {
    eachPanel(weight, { by: 'rows' }, ({ numbers, first, count: k }) => {
      const terms = part(logits, first, (count - 1) * classes + k);
      product(head, { ...call, a: terms, b: numbers, out: dx, n: dim, k, accumulate: first > 0 });
    });
  } else {
    eachPanel(weight, { by: 'columns' }, ({ numbers, first, count: n }) => {
      const out = { ...dx, byteOffset: dx.byteOffset + first * F32_BYTES };
      const sizes = { n, k: classes, bRow: n, outRow: dim };
      product(head, {
        ...call,
        a,
        b: numbers,
        out: { ...out, size: (count - 1) * dim + n },
        ...sizes,
      });
    });
  }
}

interface Product {
  readonly a: View;
  readonly b: View;
  readonly out: View;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly transposeA?: boolean;
  readonly transposeB?: boolean;
  readonly accumulate?: boolean;
  readonly epilogue?: Epilogue;
  /** Distance between rows of a, in elements; the default is that of dense rows of dim elements. */
  readonly aRow?: number;
  readonly bRow?: number;
  readonly outRow?: number;
}

export function product({ x, dim }: Head, spec: Product): void {
  x.device.run('matmul', {
    transposeA: false,
    transposeB: false,
    accumulate: false,
    aRow: dim,
    bRow: dim,
    outRow: spec.n,
    bias: undefined,
    batch: [1, 1],
    aBatch: [0, 0],
    bBatch: [0, 0],
    outBatch: [0, 0],
    alpha: 1,
    ...spec,
  });
}

/** Returns `count` elements from the tensor's element `first` on. */
export function part(tensor: Tensor, first: number, count: number): View {
  return tensor.storage.view(tensor.offset + first, count);
}
