// The arithmetic of batch normalization (Ioffe and Szegedy, 2015), composed of tensor ops but
// recorded as one node of the graph. The node saves x, the weight and two numbers per channel.
// Everything is computed in f32, and the result has x's dtype.

import {
  add,
  affine,
  cast,
  mean,
  mul,
  reshape,
  rsqrt,
  square,
  sub,
  sum,
  type Tensor,
} from '@shardweave/tensor-core';

/** Mean and biased variance of each channel, f32 [channels]. */
export interface BatchMoments {
  readonly mean: Tensor;
  readonly variance: Tensor;
  /** How many values of each channel they were computed from. */
  readonly count: number;
}

/** The sums that backward needs: sum(dy) and sum(dy * xhat) of each channel, f32 [channels]. */
export interface GradientSums {
  readonly dy: Tensor;
  readonly dyXhat: Tensor;
}

export interface NormalizeOptions {
  readonly mean: Tensor;
  readonly variance: Tensor;
  readonly weight: Tensor | undefined;
  readonly bias: Tensor | undefined;
  readonly eps: number;
  /**
   * Present where mean and variance were computed from x's own batch, so that the gradient of x
   * also flows through them. `count` is the number of values per channel in the whole batch, and
   * `joinSums` turns this rank's sums into those of the whole batch. Absent where they are running
   * statistics, which are constants.
   */
  readonly batch?: {
    readonly count: number;
    readonly joinSums: (sums: GradientSums) => GradientSums | Promise<GradientSums>;
  };
}

/**
 * The moments of x [n, c] or [n, c, l] over all axes but the second. They are zeros where x is
 * empty.
 */
export function momentsOf(x: Tensor): BatchMoments {
  const { device } = x;
  const channels = x.shape[1]!;
  const count = valuesPerChannel(x);
  if (count === 0) {
    return { mean: device.zeros([channels]), variance: device.zeros([channels]), count };
  }
  return device.noGrad(() =>
    device.scope(() => {
      const values = cast(x, 'f32');
      const axis = statisticAxes(x);
      const center = mean(values, { axis });
      const variance = mean(square(sub(values, column(center, x))), { axis });
      return { mean: center, variance, count };
    }),
  );
}

/** Computes (x - mean) / sqrt(variance + eps) * weight + bias for each channel of x. */
export function normalizeBatch(x: Tensor, options: NormalizeOptions): Tensor {
  const { device } = x;
  const { mean: center, variance, weight, bias, eps, batch } = options;
  const { rstd, out } = device.noGrad(() =>
    device.scope(() => {
      const rstd = rsqrt(affine(variance, 1, eps));
      const scaled = mul(centered(x, center), column(scaleOf(rstd, weight), x));
      const shifted = bias === undefined ? scaled : add(scaled, column(cast(bias, 'f32'), x));
      return { rstd, out: cast(shifted, x.dtype) };
    }),
  );
  const affineInputs = [weight, bias].filter((tensor) => tensor !== undefined);
  device.record({
    name: 'batchNorm',
    inputs: [x, ...affineInputs],
    outputs: [out],
    saved: [x, center, rstd, ...(weight === undefined ? [] : [weight])],
    backward: async ([dy], needs) => {
      const gradient = cast(dy!, 'f32');
      const xhat = mul(centered(x, center), column(rstd, x));
      const axis = statisticAxes(x);
      const sums = { dy: sum(gradient, { axis }), dyXhat: sum(mul(gradient, xhat), { axis }) };
      let dx: Tensor | undefined;
      if (needs[0] === true) {
        const scale = column(scaleOf(rstd, weight), x);
        let along = gradient;
        if (batch !== undefined) {
          const joined = await batch.joinSums(sums);
          const part = 1 / batch.count;
          const shared = column(affine(joined.dy, part, 0), x);
          const slope = column(affine(joined.dyXhat, part, 0), x);
          along = sub(sub(gradient, shared), mul(xhat, slope));
        }
        dx = cast(mul(along, scale), x.dtype);
      }
      return [
        dx,
        ...(weight === undefined ? [] : [cast(sums.dyXhat, weight.dtype)]),
        ...(bias === undefined ? [] : [cast(sums.dy, bias.dtype)]),
      ];
    },
  });
  return out;
}

/** The number of values that each channel of x has: n of [n, c], n * l of [n, c, l]. */
function valuesPerChannel(x: Tensor): number {
  return x.shape[0]! * (x.shape[2] ?? 1);
}

function statisticAxes(x: Tensor): number[] {
  return x.rank === 2 ? [0] : [0, 2];
}

/** Reshapes [channels] so that it broadcasts over x. */
function column(values: Tensor, x: Tensor): Tensor {
  return x.rank === 2 ? values : reshape(values, [values.size, 1]);
}

function centered(x: Tensor, center: Tensor): Tensor {
  return sub(cast(x, 'f32'), column(center, x));
}

function scaleOf(rstd: Tensor, weight: Tensor | undefined): Tensor {
  return weight === undefined ? rstd : mul(rstd, cast(weight, 'f32'));
}
