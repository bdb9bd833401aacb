// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019) with PyTorch's semantics.

import type { Tensor, View } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import type { FlatPlan } from './flat-plan.js';
import { Optimizer, type ParamGroup, type StepOptions } from './optimizer.js';
import type { FlatState } from './optimizer-state.js';

export interface AdamOptions {
  /** Learning rate. Default 1e-3. */
  readonly lr: number;
  /** Decay rates of the two averages. Default [0.9, 0.999]. */
  readonly betas: readonly [number, number];
  /** Added to the root of the second average, after its bias correction. Default 1e-8. */
  readonly eps: number;
  /** Default 0 for Adam, 0.01 for AdamW. */
  readonly weightDecay: number;
}

abstract class AdamBase extends Optimizer<AdamOptions> {
  protected abstract readonly isDecoupled: boolean;

  constructor(
    params: readonly Tensor[] | readonly ParamGroup<AdamOptions>[],
    options: Partial<AdamOptions>,
    weightDecay: number,
  ) {
    super(params, { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weightDecay, ...options });
    for (const { lr, betas, eps } of this.groups) {
      const isValid = lr >= 0 && eps >= 0 && betas.every((beta) => beta >= 0 && beta < 1);
      if (!isValid) {
        throw new NnConfigError(
          `adam: expected lr and eps of at least 0 and betas in [0, 1), got lr ${lr}, eps ${eps}, betas ${betas.join(', ')}.`,
        );
      }
    }
  }

  protected override stateNames(): readonly string[] {
    return ['expAvg', 'expAvgSq'];
  }

  protected override stepFlat(
    plan: FlatPlan,
    param: View,
    state: FlatState,
    options: StepOptions,
  ): void {
    const { flat, segments } = plan;
    flat.device.backend.run('adam', {
      param,
      grad: flat.grad!.view(),
      expAvg: state.tensors.get('expAvg')!.view(),
      expAvgSq: state.tensors.get('expAvgSq')!.view(),
      gradScale: options.gradScale?.view(),
      groups: this.groups.map(({ lr, betas: [beta1, beta2], eps, weightDecay }) => ({
        lr,
        beta1,
        beta2,
        eps,
        weightDecay,
        biasCorrection1: 1 - beta1 ** state.step,
        biasCorrection2: 1 - beta2 ** state.step,
        decoupled: this.isDecoupled,
      })),
      segments,
    });
  }
}

/** Adam; weight decay is added to the gradient. */
export class Adam extends AdamBase {
  protected readonly isDecoupled = false;

  constructor(
    params: readonly Tensor[] | readonly ParamGroup<AdamOptions>[],
    options: Partial<AdamOptions> = {},
  ) {
    super(params, options, 0);
  }
}

/** Adam with weight decay apart from the gradient: parameters shrink by lr * weightDecay first. */
export class AdamW extends AdamBase {
  protected readonly isDecoupled = true;

  constructor(
    params: readonly Tensor[] | readonly ParamGroup<AdamOptions>[],
    options: Partial<AdamOptions> = {},
  ) {
    super(params, options, 0.01);
  }
}
