// Stochastic gradient descent with PyTorch's momentum.

import type { Device, Tensor } from '@shardweave/tensor-core';
import {
  atLeast,
  checkOptions,
  FLAG,
  given,
  type OptionRules,
  optional,
} from '../check-options.js';
import { NnConfigError } from '../errors.js';
import type { FlatStep } from './flat-step.js';
import { Optimizer } from './optimizer.js';
import { type OptimizerGroup, PARAMETERS, type ParamGroup } from './param-groups.js';

/** Hyperparameters of one group of SGD, with PyTorch's meaning of each. */
export interface SgdOptions {
  /** Learning rate. Default 1e-3. */
  readonly lr: number;
  /** The factor of the old momentum in the new one. Default 0, which keeps no momentum. */
  readonly momentum: number;
  /** The share of the gradient that does not enter the momentum. Default 0. */
  readonly dampening: number;
  /** This factor times the parameter is added to the gradient. Default 0. */
  readonly weightDecay: number;
  /** Whether to use Nesterov's momentum, which needs momentum and no dampening. Default false. */
  readonly nesterov: boolean;
}

const DEFAULTS: SgdOptions = {
  lr: 1e-3,
  momentum: 0,
  dampening: 0,
  weightDecay: 0,
  nesterov: false,
};

const RULES: OptionRules<SgdOptions> = {
  lr: optional(atLeast(0)),
  momentum: optional(atLeast(0)),
  dampening: optional(atLeast(0)),
  weightDecay: optional(atLeast(0)),
  nesterov: optional(FLAG),
};

/**
 * Stochastic gradient descent, with PyTorch's semantics. The first step sets the momentum to the
 * whole gradient, without dampening.
 */
export class Sgd extends Optimizer<SgdOptions> {
  constructor(
    params: readonly Tensor[] | readonly ParamGroup<SgdOptions>[],
    options: Partial<SgdOptions> = {},
  ) {
    checkOptions('Sgd', options, RULES);
    super(params, { ...DEFAULTS, ...given(options) });
  }

  override get kind(): string {
    return 'Sgd';
  }

  protected override checkGroup(group: OptimizerGroup<SgdOptions>, at: string): void {
    checkOptions(`Sgd${at}`, group, { ...RULES, params: PARAMETERS });
    const { momentum, dampening, nesterov } = group;
    if (nesterov && !(momentum > 0 && dampening === 0)) {
      throw new NnConfigError(
        `Sgd${at}: expected momentum and no dampening with nesterov, got momentum ${momentum}, dampening ${dampening}.`,
      );
    }
  }

  override stateNamesOf({ momentum }: OptimizerGroup<SgdOptions>): readonly string[] {
    return momentum === 0 ? [] : ['momentum'];
  }

  protected override stepFlat(device: Device, step: FlatStep<SgdOptions>): void {
    const { param, grad, state, segments, gradScale } = step;
    device.backend.run('sgd', {
      param,
      grad,
      momentumBuffer: state.get('momentum'),
      gradScale,
      groups: step.groups.map(({ options: { params: _, ...options }, isNew }) => ({
        ...options,
        isFirstStep: isNew('momentum'),
      })),
      segments,
    });
  }
}
