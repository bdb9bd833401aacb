// The head of a language model and its loss as one op: the cross-entropy of x times weight^T,
// computed in chunks so that the logits of all rows never lie in memory together. Forward takes
// chunks of rows with all their classes. Backward computes the logits again in chunks of classes
// with all their rows, because then each row of the weight's gradient comes from one product, is
// summed in f32 and stored once, whatever the size of the chunks. A frozen weight has no gradient,
// so forward computes the input's gradient at once, from the logits that it already holds.

import { checkOptions } from '../check-options.js';
import { type OptionRules, oneOf } from '../options.js';
import type { Tensor } from '../tensor.js';
import { cast } from './cast.js';
import { type CrossEntropyOptions, reduceLosses, requireTargetWeights } from './cross-entropy.js';
import { gradientPlace } from './gradient-place.js';
import {
  F32_BYTES,
  fillLosses,
  HEAD_RULES,
  type Head,
  type HeadOptions,
  headOf,
  isGpu,
  LARGE_TILE,
  type LossesOfHead,
  part,
  product,
  ROW_STEP,
  TENSOR,
} from './head-losses.js';

/**
 * Options of linearCrossEntropy: those of crossEntropy, the head's weight, and how many bytes of
 * logits may exist at once.
 */
export interface LinearCrossEntropyOptions extends CrossEntropyOptions, HeadOptions {}

const RULES: OptionRules<LinearCrossEntropyOptions> = {
  reduction: oneOf('mean', 'sum', 'none'),
  divisor: oneOf('counted', 'all'),
  weights: TENSOR,
  ...HEAD_RULES,
};
/** The number of classes in a chunk is a multiple of this, the width of a small tile. */
const COLUMN_STEP = 64;
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

/**
 * The dtype of the gradient of logits in backward. Matrix units take products of f16 alone, so on a
 * GPU an f16 head rounds that gradient to f16, as PyTorch's autocast does. What f16 cannot hold is
 * lost: the loss must be scaled, as gradients in f16 need it anyway. Elsewhere f32 costs nothing.
 */
function slopeDType({ x, weight }: Pick<Head, 'x' | 'weight'>): 'f16' | 'f32' {
  return isGpu(x.device) && x.dtype === 'f16' && weight.dtype === 'f16' ? 'f16' : 'f32';
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
