// Stochastic gradient descent with PyTorch's momentum.

import type { Tensor, View } from '@shardweave/tensor-core';
import { NnConfigError } from '../errors.js';
import type { FlatPlan } from './flat-plan.js';
import { Optimizer, type ParamGroup, type StepOptions } from './optimizer.js';
import type { FlatState } from './optimizer-state.js';

export interface SgdOptions {
  /** Learning rate. Default 1e-3. */
  readonly lr: number;
  /** Default 0. */
  readonly momentum: number;
  /** Share of the gradient that the momentum leaves out. Default 0. */
  readonly dampening: number;
  /** Added to the gradient, times the parameter. Default 0. */
  readonly weightDecay: number;
  /** Needs momentum and no dampening. Default false. */
  readonly nesterov: boolean;
}

const DEFAULTS: SgdOptions = {
  lr: 1e-3,
  momentum: 0,
  dampening: 0,
  weightDecay: 0,
  nesterov: false,
};

/** SGD; the first step sets the momentum to the gradient, undampened. */
export class Sgd extends Optimizer<SgdOptions> {
  constructor(
    params: readonly Tensor[] | readonly ParamGroup<SgdOptions>[],
    options: Partial<SgdOptions> = {},
  ) {
    super(params, { ...DEFAULTS, ...options });
    for (const { lr, momentum, dampening, nesterov } of this.groups) {
      if (!(lr >= 0 && momentum >= 0)) {
        throw new NnConfigError(
          `sgd: expected lr and momentum of at least 0, got ${lr} and ${momentum}.`,
        );
      }
      if (nesterov && !(momentum > 0 && dampening === 0)) {
        throw new NnConfigError(
          `sgd: nesterov expects momentum and no dampening, got momentum ${momentum}, dampening ${dampening}.`,
        );
      }
    }
  }

  protected override stateNames(): readonly string[] {
    return this.groups.some(({ momentum }) => momentum !== 0) ? ['momentum'] : [];
  }

  protected override stepFlat(
    plan: FlatPlan,
    param: View,
    state: FlatState,
    options: StepOptions,
  ): void {
    const { flat, segments } = plan;
    flat.device.backend.run('sgd', {
      param,
      grad: flat.grad!.view(),
      momentumBuffer: state.tensors.get('momentum')?.view(),
      gradScale: options.gradScale?.view(),
      groups: this.groups.map(({ params: _, ...group }) => ({
        ...group,
        isFirstStep: state.step === 1,
      })),
      segments,
    });
  }
}
