// Layer normalization (Ba, Kiros and Hinton, 2016) and root mean square normalization (Zhang and
// Sennrich, 2019) over the last axis, alone and of a sum with a residual.

import { checkNames } from '../check-options.js';
import type { Tensor } from '../tensor.js';
import { requireNormRows, requireSummands } from './checks.js';
import { gradientPlace } from './gradient-place.js';

/**
 * Options of layerNorm: the scale and shift of each column, and what keeps the root away from 0.
 */
export interface LayerNormOpOptions {
  /** The scale of each column, [cols]. Without it columns are not scaled. */
  readonly weight?: Tensor;
  /** What is added to each column, [cols]. Without it nothing is. */
  readonly bias?: Tensor;
  /** A number that is added to the variance under the root. The default is 1e-5. */
  readonly eps?: number;
}

/** Options of rmsNorm: the scale of each column, and what keeps the root away from 0. */
export interface RmsNormOptions {
  /** The scale of each column, [cols]. Without it columns are not scaled. */
  readonly weight?: Tensor;
  /**
   * A number that is added to the weight. It is 1 for models that store the weight as its distance
   * from one, as Gemma does. The default is 0.
   */
  readonly weightOffset?: number;
  /** A number that is added to the mean of squares under the root. The default is 1e-6. */
  readonly eps?: number;
}

/** What addLayerNorm and addRmsNorm return: a sum, and its normalized rows. */
export interface NormedSum {
  /**
   * x + residual; without a residual the elements of x itself. What uses this tensor in place of x
   * has its gradient added to x's by the norm's backward kernel.
   */
  readonly sum: Tensor;
  readonly norm: Tensor;
}

/**
 * (x - mean) / sqrt(variance + eps) * weight + bias along the last axis of x [..., cols], of x's
 * shape and dtype. The variance is the biased one; everything is computed in f32.
 * @throws {ShapeError} when the last axis is empty or the parameters are not [cols]
 * @throws {DTypeError} when an operand is no float tensor
 */
export function layerNorm(x: Tensor, options: LayerNormOpOptions = {}): Tensor {
  const norm = centering('layerNorm', options, LAYER_NORM);
  return x.device.scope(() => normalizeRows('layerNorm', x, norm).norm);
}

/**
 * x + residual and the layerNorm of that sum, by one kernel in forward and one for all gradients in
 * backward. x and residual have one shape and one dtype. Without a residual the sum is x itself;
 * whatever else uses x should take it from the result, so that its gradient is added in the same
 * backward kernel.
 * @throws {ShapeError} when the shapes do not fit together
 * @throws {DTypeError} when an operand is no float tensor, or x and residual differ in dtype
 */
export function addLayerNorm(
  x: Tensor,
  options: LayerNormOpOptions & { readonly residual?: Tensor | undefined },
): NormedSum {
  const norm = centering('addLayerNorm', options, ADD_LAYER_NORM);
  return x.device.scope(() => normalizeSum('addLayerNorm', x, norm, options.residual));
}

/**
 * x / sqrt(mean(x^2) + eps) * (weight + weightOffset) along the last axis of x [..., cols], of x's
 * shape and dtype, computed in f32.
 * @throws {ShapeError} when the last axis is empty or the weight is not [cols]
 * @throws {DTypeError} when an operand is no float tensor
 */
export function rmsNorm(x: Tensor, options: RmsNormOptions = {}): Tensor {
  const norm = scaling('rmsNorm', options, RMS_NORM);
  return x.device.scope(() => normalizeRows('rmsNorm', x, norm).norm);
}

/**
 * x + residual and the rmsNorm of that sum, by one kernel in forward and one for all gradients in
 * backward; a transformer's block begins with the two. x and residual have one shape and one dtype.
 * Without a residual the sum is x itself; whatever else uses x should take it from the result, so
 * that its gradient is added in the same backward kernel.
 * @throws {ShapeError} when the shapes do not fit together
 * @throws {DTypeError} when an operand is no float tensor, or x and residual differ in dtype
 */
export function addRmsNorm(
  x: Tensor,
  options: RmsNormOptions & { readonly residual?: Tensor | undefined },
): NormedSum {
  const norm = scaling('addRmsNorm', options, ADD_RMS_NORM);
  return x.device.scope(() => normalizeSum('addRmsNorm', x, norm, options.residual));
}

/** A norm of rows, with its defaults. One that is not centered has no bias. */
interface Norm {
  readonly isCentered: boolean;
  readonly weight: Tensor | undefined;
  readonly bias: Tensor | undefined;
  readonly weightOffset: number;
  readonly eps: number;
}

const LAYER_NORM = ['weight', 'bias', 'eps'];
const ADD_LAYER_NORM = [...LAYER_NORM, 'residual'];
const RMS_NORM = ['weight', 'weightOffset', 'eps'];
const ADD_RMS_NORM = [...RMS_NORM, 'residual'];

function centering(op: string, options: LayerNormOpOptions, names: readonly string[]): Norm {
  checkNames(op, options, names);
  const { weight, bias, eps = 1e-5 } = options;
  return { isCentered: true, weight, bias, weightOffset: 0, eps };
}

function scaling(op: string, options: RmsNormOptions, names: readonly string[]): Norm {
  checkNames(op, options, names);
  const { weight, weightOffset = 0, eps = 1e-6 } = options;
  return { isCentered: false, weight, bias: undefined, weightOffset, eps };
}

function normalizeSum(op: string, x: Tensor, norm: Norm, residual: Tensor | undefined): NormedSum {
  if (residual !== undefined) {
    requireSummands(op, x, residual);
  }
  return normalizeRows(op, x, norm, { residual, isForked: true });
}

/**
 * Runs and records a norm. Forward writes the statistics of each row that backward reads. The
 * caller opens the scope that frees temporary tensors.
 */
function normalizeRows(
  op: string,
  x: Tensor,
  { isCentered, weight, bias, weightOffset, eps }: Norm,
  {
    residual,
    isForked = false,
  }: {
    readonly residual?: Tensor | undefined;
    /** Whether, without a residual, other users of x take it from here as the sum. */
    readonly isForked?: boolean;
  } = {},
): NormedSum {
  const parameters = [weight, bias].filter((tensor) => tensor !== undefined);
  const { rows, cols } = requireNormRows(op, x, parameters);
  const { device, dtype } = x;
  const norm = device.empty(x.shape, { dtype });
  const isSplit = isForked && residual === undefined && device.isGradEnabled && x.requiresGrad;
  const unadded = isSplit ? x.detach() : x;
  const sum = residual === undefined ? unadded : device.empty(x.shape, { dtype });
  const mean = isCentered ? device.empty([rows]) : undefined;
  const rstd = device.empty([rows]);
  if (rows > 0) {
    device.run('rowNorm', {
      x: x.view(),
      residual: residual?.view(),
      weight: weight?.view(),
      bias: bias?.view(),
      sum: residual === undefined ? undefined : sum.view(),
      out: norm.view(),
      mean: mean?.view(),
      rstd: rstd.view(),
      rows,
      cols,
      eps,
      weightOffset,
      isCentered,
    });
  }
  const summands = residual === undefined ? [x] : [x, residual];
  const saved = [sum, mean, rstd, weight];
  device.record({
    name: op,
    inputs: [...summands, ...parameters],
    outputs: sum === x ? [norm] : [norm, sum],
    saved: saved.filter((tensor) => tensor !== undefined),
    backward: ([dy, dSum], needs) => {
      if (dy === undefined) {
        return summands.map(() => dSum); // only the sum was used
      }
      const needsInput = summands.some((_, i) => needs[i]);
      const dx = needsInput ? device.empty(x.shape, { dtype }) : undefined;
      const gradients = parameters.map((parameter, i) => {
        if (needs[summands.length + i] !== true) {
          return undefined;
        }
        const { shape, dtype: own } = parameter;
        return rows === 0 ? device.zeros(shape, { dtype: own }) : gradientPlace(parameter);
      });
      if (rows > 0 && [dx, ...gradients].some((gradient) => gradient !== undefined)) {
        const call = {
          weight: weight?.view(),
          rstd: rstd.view(),
          rows,
          cols,
          x: sum.view(),
          dy: dy.view(),
          dSum: dSum?.view(),
          dx: dx?.view(),
          dWeight: weight === undefined ? undefined : gradients[0]?.view(),
        };
        const dBias = bias === undefined ? undefined : gradients.at(-1)?.view();
        device.run(
          'rowNormBackward',
          mean === undefined
            ? { ...call, isCentered: false, weightOffset }
            : { ...call, isCentered: true, mean: mean.view(), dBias },
        );
      }
      return [...summands.map(() => dx), ...gradients];
    },
  });
  return { sum, norm };
}
