// The head of a language model and its loss as one op: the cross-entropy of x times weight^T,
// computed in chunks so that the logits of all rows never lie in memory together. Forward takes
// chunks of rows with all their classes. Backward computes the logits again in chunks of classes
// with all their rows, because then each row of the weight's gradient comes from one product, is
// summed in f32 and stored once, whatever the size of the chunks. A frozen weight has no gradient,
// so forward computes the input's gradient at once, from the logits that it already holds.

import { checkOptions, checkValue } from '../check-options.js';
import type { Device } from '../device.js';
import { ShapeError } from '../errors.js';
import type { Epilogue } from '../kernel-calls/matmul.js';
import { FLAG, type OptionRule, type OptionRules, oneOf, whole } from '../options.js';
import { isTensor, type Tensor } from '../tensor.js';
import type { View } from '../view.js';
import { eachPanel } from './blocks.js';
import { cast } from './cast.js';
import {
  isSameShape,
  requireFloat,
  requireInteger,
  requireSameDevice,
  shapeText,
} from './checks.js';
import { type CrossEntropyOptions, reduceLosses, requireTargetWeights } from './cross-entropy.js';
import { gradientPlace } from './gradient-place.js';

/**
 * Options of linearCrossEntropy: those of crossEntropy, the head's weight, and how many bytes of
 * logits may exist at once.
 */
export interface LinearCrossEntropyOptions extends CrossEntropyOptions {
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

const TENSOR: OptionRule = { expected: 'a tensor', holds: isTensor };
const HEAD_RULES = { weight: TENSOR, chunkBytes: whole(1) };
const RULES: OptionRules<LinearCrossEntropyOptions> = {
  reduction: oneOf('mean', 'sum', 'none'),
  divisor: oneOf('counted', 'all'),
  weights: TENSOR,
  ...HEAD_RULES,
};
const PART_RULES: OptionRules<LinearCrossEntropyPartOptions> = { hasSlopes: FLAG, ...HEAD_RULES };
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
const F32_BYTES = 4;
/** The number of classes in a chunk is a multiple of this, the width of a small tile. */
const COLUMN_STEP = 64;
/**
 * Where dx is summed by chunks of rows, their number is a multiple of this. Beside a frozen weight
 * a chunk has at least so many rows: a product of 20 rows also packs the whole weight, and reaches
 * half the rate of a product of 64.
 */
const ROW_STEP = 64;
/**
 * The rows, and columns, of a large tile of a GPU's product. A chunk with many of either consists
 * of whole tiles: of 8,192 rows with GPT-2's classes, 1,298 would fit and 1,280 are taken, so that
 * their logits take two dispatches of 50 GFLOP instead of three.
 */
const LARGE_TILE = 128;
/** From so many large tiles on, a chunk of classes consists of whole ones. */
const MANY_TILES = 16;
/**
 * Unused columns at the end of each row of a chunk. Without them a row could be a whole number of
 * pages long, and a column's elements would compete for few lines of a CPU's cache. Four f32 keep
 * the rows aligned to 16 bytes.
 */
const SPARE_COLUMNS = 4;

/**
 * The cross-entropy of the logits x weight^T, with x [..., dim], targets [...] (i32, u32) and
 * weight [classes, dim]. The logits are f32 whatever the dtypes of the operands are. A target that
 * is not the id of a class is ignored: it adds 0 to the sum and to the gradients, and a mean does
 * not count it.
 *
 * Compared with matmul followed by crossEntropy, memory is saved for time. While the logits take at
 * most half of chunkBytes, they are kept for backward and no product is added. Beyond that backward
 * computes them again, which is one more product. Where x has 16 bits, its gradient is summed in a
 * temporary f32 tensor; where that tensor would take more than two thirds of chunkBytes, the sum is
 * made by chunks of rows, which is another product. Where the weight is frozen no product is added,
 * but an f32 gradient of x lies in memory from forward to backward.
 *
 * On a hardware GPU the gradient of the logits of an f16 x and an f16 weight is rounded to f16, so
 * that its products can use matrix units. Scale the loss (GradScaler of nn) where either is f16.
 * @throws {ShapeError} when the shapes do not fit together
 * @throws {DTypeError} when x or the weight is no float tensor, or the targets are no integers
 */
export function linearCrossEntropy(
  x: Tensor,
  targets: Tensor,
  options: LinearCrossEntropyOptions,
): Tensor {
  const op = 'linearCrossEntropy';
  checkOptions<LinearCrossEntropyOptions>(op, options, RULES);
  const head = headOf(op, x, { ...options, targets });
  requireTargetWeights(op, targets, options.weights);
  const { classes } = head;
  return x.device.scope(() => reduceLosses(lossesOf(head), { ...options, targets, classes }));
}

/** Options of linearCrossEntropyPart, as linearCrossEntropy has them. */
export interface LinearCrossEntropyPartOptions
  extends Pick<LinearCrossEntropyOptions, 'weight' | 'chunkBytes'> {
  /** Whether to compute the slopes, too. Default false. */
  readonly hasSlopes?: boolean;
}

/** What some of the classes tell about each row of x. All tensors are f32 and outside the graph. */
export interface LinearCrossEntropyPart {
  /** The logarithm of the sum of exp(logit) over these classes, [...]. */
  readonly logSumExp: Tensor;
  /** logSumExp minus the target's logit, [...]; 0 where the target is none of these classes. */
  readonly losses: Tensor;
  /** The gradient of each logSumExp with respect to its row of x, [..., dim]. */
  readonly slopes: Tensor | undefined;
}

/**
 * linearCrossEntropy over some of the classes, for devices that each have a part of a frozen
 * weight: with these of all parts, each row's logSumExp over all classes is that of the parts'
 * logSumExps, and its gradient is the sum of their slopes, each times exp(logSumExp of the part -
 * logSumExp of all). Targets count from the first class of this part.
 * @throws {ShapeError} when the shapes do not fit together
 * @throws {DTypeError} when x or the weight is no float tensor, or the targets are no integers
 */
export function linearCrossEntropyPart(
  x: Tensor,
  targets: Tensor,
  options: LinearCrossEntropyPartOptions,
): LinearCrossEntropyPart {
  const op = 'linearCrossEntropyPart';
  checkOptions<LinearCrossEntropyPartOptions>(op, options, PART_RULES);
  const head = headOf(op, x, { ...options, targets });
  const { device } = x;
  return device.scope(() => {
    const logSumExp = device.empty(targets.shape);
    const losses = device.empty(targets.shape);
    const slopes = options.hasSlopes === true ? device.empty(x.shape) : undefined;
    const filled = { losses, lse: logSumExp, kept: undefined, dx: slopes, isPart: true };
    device.scope(() => fillLosses(head, filled));
    return { logSumExp, losses, slopes };
  });
}

/** Checks the operands of an op and gives what its parts work on. */
function headOf(
  op: string,
  x: Tensor,
  {
    targets,
    weight,
    chunkBytes,
  }: Pick<LinearCrossEntropyOptions, 'weight' | 'chunkBytes'> & { readonly targets: Tensor },
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

function isGpu({ backend: { info } }: Device): boolean {
  return info.kind === 'webgpu' && !info.isSoftware;
}

/**
 * The dtype of the gradient of logits in backward. Matrix units take products of f16 alone, so on a
 * GPU an f16 head rounds that gradient to f16, as PyTorch's autocast does. What f16 cannot hold is
 * lost: the loss must be scaled, as gradients in f16 need it anyway. Elsewhere f32 costs nothing.
 */
function slopeDType({ x, weight }: Pick<Head, 'x' | 'weight'>): 'f16' | 'f32' {
  return isGpu(x.device) && x.dtype === 'f16' && weight.dtype === 'f16' ? 'f16' : 'f32';
}

interface Head {
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

/** One loss per row, of the targets' shape. */
function lossesOf(head: Head): Tensor {
  const { x, weight, targets, rows, classes } = head;
  const { device } = x;
  const losses = device.empty(targets.shape);
  const lse = device.empty([rows]);
  if (!weight.requiresGrad) {
    return lossesBeforeFrozen(head, { losses, lse });
  }
  const kept = keepsLogits(head) ? device.empty([rows, classes]) : undefined;
  device.scope(() => fillLosses(head, { losses, lse, kept }));
  device.record({
    name: 'linearCrossEntropy',
    inputs: [x, weight],
    outputs: [losses],
    saved: [x, weight, targets, lse, ...(kept === undefined ? [] : [kept])],
    backward: ([dLoss], [needsX, needsWeight]) => {
      const isOneChunk = classesOfChunk(head) === head.classes;
      const isApart = needsX && sumsApart(head);
      const dtype = isOneChunk || isApart ? x.dtype : 'f32';
      const dx = needsX ? device.empty(x.shape, { dtype }) : undefined;
      const dWeight = needsWeight ? gradientPlace(weight) : undefined;
      const given = { lse, kept, dLoss: dLoss! };
      if (isApart) {
        fillByRows(head, { ...given, dx });
      }
      if (rows > 0) {
        const own = { ...given, dx: isApart ? undefined : dx, dWeight };
        device.scope(() => fillGradients(head, own));
      } else if (dWeight !== undefined) {
        device.run('fill', { out: dWeight.view(), value: 0 });
      }
      return [dx && cast(dx, x.dtype), dWeight];
    },
  });
  return losses;
}

/**
 * The losses where the weight is frozen. Forward computes each row of dx as if the gradient of its
 * loss were 1, so backward has only to multiply the row by the actual gradient. That factor may be
 * large (a loss scale) or small (one part of a mean), so dx is kept in f32 whatever the dtype of x.
 */
function lossesBeforeFrozen(head: Head, { losses, lse }: Pick<LossesOfHead, 'losses' | 'lse'>) {
  const { x, rows, dim } = head;
  const { device, shape, dtype } = x;
  const isWanted = x.requiresGrad && device.isGradEnabled;
  const dx = isWanted ? device.empty([rows, dim]) : undefined;
  device.scope(() => fillLosses(head, { losses, lse, kept: undefined, dx }));
  if (dx !== undefined) {
    device.record({
      name: 'linearCrossEntropy',
      inputs: [x],
      outputs: [losses],
      saved: [dx],
      backward: ([dLoss]) => {
        const out = device.empty(shape, { dtype });
        if (rows > 0) {
          device.run('binary', {
            kind: 'mul',
            a: dx.view(),
            b: dLoss!.view(),
            out: out.view(),
            shape: [rows, dim],
            aStrides: [dim, 1],
            bStrides: [1, 0],
          });
        }
        return [out];
      },
    });
  }
  return losses;
}

/** Whether all logits and their gradient fit into chunkBytes, so that backward can reuse them. */
function keepsLogits({ x, rows, classes, chunkBytes }: Head): boolean {
  const isFit = 2 * F32_BYTES * rows * classes <= chunkBytes;
  return isFit && x.device.isGradEnabled;
}

interface LossesOfHead {
  readonly losses: Tensor;
  readonly lse: Tensor;
  /** Where present, receives all logits, [rows, classes]. */
  readonly kept: Tensor | undefined;
  /** Where present, receives the gradient of the sum of all losses, f32 [rows, dim]. */
  readonly dx?: Tensor | undefined;
  /** Whether dx is the gradient of the logSumExps in place of the losses. Default false. */
  readonly isPart?: boolean;
}

function fillLosses(head: Head, { losses, lse, kept, dx, isPart = false }: LossesOfHead): void {
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

interface GradientsOfHead {
  readonly lse: Tensor;
  readonly kept: Tensor | undefined;
  readonly dLoss: Tensor;
  /** f32 where several chunks of classes are added up in it, else of the dtype of x. */
  readonly dx: Tensor | undefined;
  readonly dWeight: Tensor | undefined;
}

/**
 * Whether the temporary f32 sum of a 16-bit dx would take more than two thirds of chunkBytes. It is
 * then made by chunks of rows, apart from the weight's gradient, which costs one more product.
 */
function sumsApart({ x, rows, dim, chunkBytes, ...head }: Head): boolean {
  const isSummed =
    x.dtype !== 'f32' && classesOfChunk({ ...head, rows, chunkBytes }) < head.classes;
  return isSummed && F32_BYTES * rows * dim > (chunkBytes / 3) * 2;
}

/**
 * Computes dx alone, by chunks of rows: their f32 sums take a third of chunkBytes, their logits the
 * rest.
 */
function fillByRows(head: Head, given: Omit<GradientsOfHead, 'dWeight'>): void {
  const { x, rows, dim, chunkBytes } = head;
  const { device } = x;
  const sumBytes = chunkBytes / 3;
  const fit = Math.floor(sumBytes / (F32_BYTES * dim * ROW_STEP));
  const most = Math.min(rows, Math.max(1, fit) * ROW_STEP);
  for (let first = 0; first < rows; first += most) {
    const count = Math.min(most, rows - first);
    const own = {
      ...head,
      first: head.first + first,
      rows: count,
      chunkBytes: chunkBytes - sumBytes,
    };
    device.scope(() => {
      const dx = device.empty([count, dim]);
      fillGradients(own, { ...given, dx, dWeight: undefined });
      device.run('cast', { x: dx.view(), out: part(given.dx!, first * dim, count * dim) });
    });
  }
}

function fillGradients(head: Head, { lse, kept, dLoss, dx, dWeight }: GradientsOfHead): void {
  const { weight, targets, first: firstRow, rows, classes, dim } = head;
  const x = part(head.x, firstRow * dim, rows * dim);
  const { device } = weight;
  const most = classesOfChunk(head);
  const width = kept !== undefined ? classes : widthOfChunk(most, classes);
  const slopes = device.empty([rows, width], { dtype: slopeDType(head) }).view();
  for (let first = 0; first < classes; first += most) {
    const count = Math.min(most, classes - first);
    const table = part(weight, first * dim, count * dim);
    const row = { aRow: width, m: rows, n: dim, k: count };
    const slope = {
      targets: part(targets, firstRow, rows),
      lse: part(lse, firstRow, rows),
      dLoss: part(dLoss, firstRow, rows),
      first,
      classes,
    };
    if (kept === undefined) {
      product(head, {
        a: x,
        b: table,
        out: slopes,
        m: rows,
        n: count,
        k: dim,
        transposeB: true,
        outRow: width,
        epilogue: { kind: 'crossEntropyBackward', ...slope },
      });
    } else {
      const whole = { logits: kept.view(), out: slopes, rows, cols: classes };
      device.run('crossEntropyBackward', { ...whole, ...slope });
    }
    if (dx !== undefined) {
      product(head, { ...row, a: slopes, b: table, out: dx.view(), accumulate: first > 0 });
    }
    if (dWeight !== undefined) {
      const out = part(dWeight, first * dim, count * dim);
      product(head, { ...row, a: slopes, b: x, out, m: count, k: rows, transposeA: true });
    }
  }
}

/** The columns of a chunk's rows in memory, which are whole vectors of four. */
function widthOfChunk(most: number, classes: number): number {
  return most === classes ? 4 * Math.ceil(classes / 4) : most + SPARE_COLUMNS;
}

/**
 * The number of classes in a chunk: all that there are, or as many whole tiles as fit, large ones
 * where many of them do.
 */
function classesOfChunk({
  rows,
  classes,
  chunkBytes,
}: Pick<Head, 'rows' | 'classes' | 'chunkBytes'>): number {
  const fit = Math.floor(chunkBytes / (F32_BYTES * Math.max(1, rows)));
  if (classes <= fit) {
    return classes;
  }
  const step = fit < MANY_TILES * LARGE_TILE ? COLUMN_STEP : LARGE_TILE;
  const steps = Math.max(1, Math.floor((fit - SPARE_COLUMNS) / step));
  return Math.min(classes, steps * step);
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

function product({ x, dim }: Head, spec: Product): void {
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
function part(tensor: Tensor, first: number, count: number): View {
  return tensor.storage.view(tensor.offset + first, count);
}
