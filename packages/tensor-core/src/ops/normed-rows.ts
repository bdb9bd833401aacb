// What layerNorm and rmsNorm share: the sum with a residual, the statistics of each row that
// backward needs, and the choice of gradients. Each brings kernels of its own.

import type { Tensor } from '../tensor.js';
import type { View } from '../view.js';
import { requireNormRows } from './checks.js';
import { gradientPlace } from './gradient-place.js';

/** What addLayerNorm and addRmsNorm return: a sum, and its normalized rows. */
export interface NormedSum {
  /**
   * x + residual; without a residual the elements of x itself. What uses this tensor in place of x
   * has its gradient added to x's by the norm's backward kernel.
   */
  readonly sum: Tensor;
  readonly norm: Tensor;
}

interface Rows {
  readonly rows: number;
  readonly cols: number;
}

export interface Normalization {
  readonly parameters: readonly Tensor[];
  /** The parameters that backward reads. */
  readonly saved: readonly Tensor[];
  /** How many f32 values of each row, such as its mean, forward writes and backward reads. */
  readonly numStats: number;
  forward(
    call: Rows & {
      readonly x: View;
      readonly residual: View | undefined;
      /** Where the sum is written; present together with the residual. */
      readonly sum: View | undefined;
      readonly out: View;
    },
    stats: readonly View[],
  ): void;
  /** Writes `dx` and `gradients`, of which those that nobody wants are undefined, but never all. */
  backward(
    call: Rows & { readonly x: View; readonly dy: View },
    wanted: {
      readonly stats: readonly View[];
      readonly dSum: View | undefined;
      readonly dx: View | undefined;
      /** The parameters' gradients, in the order of `parameters`. */
      readonly gradients: readonly (View | undefined)[];
    },
  ): void;
}

/** Runs and records a norm. The caller opens the scope that frees temporary tensors. */
export function normalizeRows(
  op: string,
  x: Tensor,
  {
    residual,
    isForked = false,
    kernels,
  }: {
    readonly residual?: Tensor | undefined;
    /** Whether, without a residual, other users of x take it from here as the sum. */
    readonly isForked?: boolean;
    readonly kernels: Normalization;
  },
): NormedSum {
  const { parameters } = kernels;
  const { rows, cols } = requireNormRows(op, x, parameters);
  const { device, dtype } = x;
  const norm = device.empty(x.shape, { dtype });
  const isSplit = isForked && residual === undefined && device.isGradEnabled && x.requiresGrad;
  const unadded = isSplit ? x.detach() : x;
  const sum = residual === undefined ? unadded : device.empty(x.shape, { dtype });
  const stats = Array.from({ length: kernels.numStats }, () => device.empty([rows]));
  const statViews = () => stats.map((stat) => stat.view());
  if (rows > 0) {
    kernels.forward(
      {
        x: x.view(),
        residual: residual?.view(),
        sum: residual === undefined ? undefined : sum.view(),
        out: norm.view(),
        rows,
        cols,
      },
      statViews(),
    );
  }
  const summands = residual === undefined ? [x] : [x, residual];
  device.record({
    name: op,
    inputs: [...summands, ...parameters],
    outputs: sum === x ? [norm] : [norm, sum],
    saved: [sum, ...stats, ...kernels.saved],
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
        kernels.backward(
          { x: sum.view(), dy: dy.view(), rows, cols },
          {
            stats: statViews(),
            dSum: dSum?.view(),
            dx: dx?.view(),
            gradients: gradients.map((gradient) => gradient?.view()),
          },
        );
      }
      return [...summands.map(() => dx), ...gradients];
    },
  });
  return { sum, norm };
}
