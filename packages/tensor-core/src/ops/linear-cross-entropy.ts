// Head and loss in one op: cross-entropy of x times weight^T, without the logits of all rows ever
// lying in memory. Forward goes by chunks of rows, each with its whole row of logits. Backward
// makes logits once more, by chunks of classes with all rows, so that a row of the weight's
// gradient is one product, summed in f32 and stored once, whatever the chunks are. Beside a frozen
// head there is no such row, and forward makes the input's gradient from the logits that it has.

import { gradientPlace } from '../autograd/gradient-place.js';
import { checkOptions, checkValue } from '../check-options.js';
import type { Device } from '../device.js';
import { ShapeError } from '../errors.js';
import type { Epilogue } from '../kernel-calls/products.js';
import { type OptionRule, oneOf, whole } from '../options.js';
import { elementCountOf, isTensor, type Tensor } from '../tensor.js';
import type { View } from '../view.js';
import { cast } from './cast.js';
import { requireFloat, requireInteger, requireSameDevice, shapeText } from './checks.js';
import { type CrossEntropyOptions, reduceLosses, requireTargetWeights } from './cross-entropy.js';

/**
 * Options of linearCrossEntropy: those of crossEntropy, the head's weight, and how many bytes of
 * logits may exist at once.
 */
export interface LinearCrossEntropyOptions extends CrossEntropyOptions {
  /** The head's, [classes, dim], as an embedding's table has it. */
  readonly weight: Tensor;
  /**
   * Most bytes of logits (f32) at once, but for one row of them in forward (64 rows where the
   * weight is frozen) and 64 columns in backward, which there always are. Default 12 MiB, where the
   * weight is frozen 48 MiB, on a GPU 256 MiB.
   */
  readonly chunkBytes?: number;
}

const TENSOR: OptionRule = { expected: 'a tensor', holds: isTensor };
/** With an f32 sum and integers a row, still below 16 MiB for tens of thousands of rows. */
const CHUNK_BYTES = 12 * 2 ** 20;
/**
 * A GPU reads x, and dx twice, again for each chunk: of 8,192 rows and GPT-2's classes, 7 times
 * rather than 158.
 */
const CHUNK_BYTES_GPU = 256 * 2 ** 20;
/**
 * Beside a frozen head each chunk of rows has two products with the whole weight, which packs it
 * anew: of 49,152 classes 12 MiB are 64 rows, at two thirds of the rate of these 256.
 */
const CHUNK_BYTES_FROZEN = 48 * 2 ** 20;
const F32_BYTES = 4;
/** Classes of a chunk are a multiple, and never fewer: a tile of the products. */
const COLUMN_STEP = 64;
/**
 * Rows of a chunk of them likewise. Beside a frozen head they are never fewer: a product of 20 rows
 * packs the whole weight at half the rate of one of 64.
 */
const ROW_STEP = 64;
/**
 * Rows of a large tile of a GPU's product. A longer chunk has whole ones: of 8,192 rows and GPT-2's
 * classes 1,280 where 1,335 fit, whose logits are two dispatches of 50 GFLOP instead of three.
 */
const LARGE_TILE = 128;
/**
 * Columns behind a chunk, of which nothing is read: rows of whole pages would share few lines of a
 * CPU's cache. Four keep rows at 16 bytes.
 */
const SPARE_COLUMNS = 4;

/**
 * crossEntropy of the logits x weight^T, in f32 whatever the dtypes are, x [..., dim], targets
 * [...] (i32, u32). An id that is no class is no target: it adds 0 to the sum and to the gradients.
 * Costs one more product than matmul and crossEntropy, where the weight's gradient is wanted and
 * the logits take more than half of chunkBytes, up to which they are kept for backward; in 16 bits,
 * dx is summed in an f32 tensor of its own, and where that would outweigh the logits by chunks of
 * rows, for another product. Where the weight is frozen it costs none, and an f32 dx lies in memory
 * from forward to backward.
 */
export function linearCrossEntropy(
  x: Tensor,
  targets: Tensor,
  options: LinearCrossEntropyOptions,
): Tensor {
  const op = 'linearCrossEntropy';
  checkOptions<LinearCrossEntropyOptions>(op, options, {
    weight: TENSOR,
    reduction: oneOf('mean', 'sum', 'none'),
    weights: TENSOR,
    chunkBytes: whole(1),
  });
  checkValue(op, 'weight', options.weight, TENSOR);
  const {
    weight,
    weights,
    reduction = 'mean',
    chunkBytes = usualChunk(x.device, weight),
  } = options;
  requireFloat(op, x, weight);
  requireInteger(op, targets);
  requireSameDevice(op, x, weight, targets);
  const [classes = 0, dim = 0] = weight.shape;
  const rows = targets.size;
  const isWhole = weight.rank === 2 && classes > 0 && dim > 0;
  if (!isWhole || x.shape.at(-1) !== dim || elementCountOf(x.shape) !== rows * dim) {
    throw new ShapeError(
      `${op}: expected x [..., dim], one target per row of it and weight [classes, dim], got x ${shapeText(x.shape)}, targets ${shapeText(targets.shape)} and weight ${shapeText(weight.shape)}. Targets are ids, not one-hot rows.`,
    );
  }
  requireTargetWeights(op, targets, weights);
  const head = { x, weight, targets, first: 0, rows, classes, dim, chunkBytes };
  return x.device.scope(() => reduceLosses(lossesOf(head), { weights, reduction }));
}

function usualChunk({ backend: { info } }: Device, weight: Tensor): number {
  if (info.kind === 'webgpu' && !info.isSoftware) {
    return CHUNK_BYTES_GPU;
  }
  return weight.requiresGrad ? CHUNK_BYTES : CHUNK_BYTES_FROZEN;
}

interface Head {
  readonly x: Tensor;
  readonly weight: Tensor;
  readonly targets: Tensor;
  /** The rows that are worked on: from `first` on. */
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
 * The losses where the weight is frozen. Each row of dx is made in forward as the gradient of a
 * loss that counts once, so backward has only to multiply it by what the loss counts. That number
 * may be a loss scale or a part of a mean, so dx waits in f32 whatever the dtype of x is.
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

/** Whether the logits and their gradient are small enough to lie in memory as a whole. */
function keepsLogits({ x, rows, classes, chunkBytes }: Head): boolean {
  const isFit = 2 * F32_BYTES * rows * classes <= chunkBytes;
  return isFit && x.device.isGradEnabled;
}

interface LossesOfHead {
  readonly losses: Tensor;
  readonly lse: Tensor;
  /** Gets all logits, [rows, classes]. */
  readonly kept: Tensor | undefined;
  /** Gets the gradient of the sum of all losses, f32 [rows, dim]. */
  readonly dx?: Tensor | undefined;
}

function fillLosses(head: Head, { losses, lse, kept, dx }: LossesOfHead): void {
  const { x, weight, targets, rows, classes, dim, chunkBytes } = head;
  const { device } = x;
  const fit = Math.floor(chunkBytes / (F32_BYTES * classes));
  const whole = fit < LARGE_TILE ? fit : fit - (fit % LARGE_TILE);
  const most = Math.min(rows, Math.max(dx === undefined ? 1 : ROW_STEP, whole));
  const chunk = kept ?? device.empty([most, classes]);
  const ones = dx && device.full([most], 1);
  for (let first = 0; first < rows; first += most) {
    const count = Math.min(most, rows - first);
    const logits = part(chunk, 0, count * classes);
    product(head, {
      a: part(x, first * dim, count * dim),
      b: weight.view(),
      out: logits,
      m: count,
      n: classes,
      k: dim,
      transposeB: true,
    });
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
      targets: part(targets, first, count),
      lse: part(lse, first, count),
      dLoss: part(ones!, 0, count),
      out: logits,
      rows: count,
      cols: classes,
    });
    product(head, {
      a: logits,
      b: weight.view(),
      out: part(dx, first * dim, count * dim),
      m: count,
      n: dim,
      k: classes,
      aRow: classes,
    });
  }
}

interface GradientsOfHead {
  readonly lse: Tensor;
  readonly kept: Tensor | undefined;
  readonly dLoss: Tensor;
  /** f32, unless the classes are one chunk. */
  readonly dx: Tensor | undefined;
  readonly dWeight: Tensor | undefined;
}

/**
 * Whether the f32 sum of a 16-bit dx would weigh as much as the logits of a chunk. It is then made
 * by chunks of rows, apart from the weight's gradient, for one more product.
 */
function sumsApart({ x, rows, dim, chunkBytes, ...head }: Head): boolean {
  const isSummed =
    x.dtype !== 'f32' && classesOfChunk({ ...head, rows, chunkBytes }) < head.classes;
  return isSummed && F32_BYTES * rows * dim > (chunkBytes / 3) * 2;
}

/** dx alone, by chunks of rows whose sums take a third of chunkBytes, and their logits the rest. */
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
  const width = most === classes ? classes : most + SPARE_COLUMNS;
  const logits = device.empty([rows, width]).view();
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
        out: logits,
        m: rows,
        n: count,
        k: dim,
        transposeB: true,
        outRow: width,
        epilogue: { kind: 'crossEntropyBackward', ...slope },
      });
    } else {
      const whole = { logits: kept.view(), out: logits, rows, cols: classes };
      device.run('crossEntropyBackward', { ...whole, ...slope });
    }
    if (dx !== undefined) {
      product(head, { ...row, a: logits, b: table, out: dx.view(), accumulate: first > 0 });
    }
    if (dWeight !== undefined) {
      const out = part(dWeight, first * dim, count * dim);
      product(head, { ...row, a: logits, b: x, out, m: count, k: rows, transposeA: true });
    }
  }
}

/** All of them, or a multiple of COLUMN_STEP that fits beside the spare ones. */
function classesOfChunk({
  rows,
  classes,
  chunkBytes,
}: Pick<Head, 'rows' | 'classes' | 'chunkBytes'>): number {
  const fit = Math.floor(chunkBytes / (F32_BYTES * Math.max(1, rows)));
  if (classes <= fit) {
    return classes;
  }
  const steps = Math.max(1, Math.floor((fit - SPARE_COLUMNS) / COLUMN_STEP));
  return Math.min(classes, steps * COLUMN_STEP);
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
  /** Default dense. */
  readonly aRow?: number;
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

/** `count` elements from the tensor's element `first` on. */
function part(tensor: Tensor, first: number, count: number): View {
  return tensor.storage.view(tensor.offset + first, count);
}
