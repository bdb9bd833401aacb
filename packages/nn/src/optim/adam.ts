// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019) with PyTorch's semantics.

import { pow64 } from '@shardweave/dtypes/float64';
import type { Device, Tensor } from '@shardweave/tensor-core';
import {
  atLeast,
  checkOptions,
  given,
  isProbability,
  type OptionRules,
  optional,
} from '../check-options.js';
import type { FlatStep } from './flat-step.js';
import { Optimizer } from './optimizer.js';
import { type OptimizerGroup, PARAMETERS, type ParamGroup } from './param-groups.js';

/**
 * Hyperparameters of one group of Adam (Kingma and Ba, 2015) or AdamW (Loshchilov and Hutter,
 * 2019), with PyTorch's meaning and defaults.
 */
export interface AdamOptions {
  /** Learning rate. Default 1e-3. */
  readonly lr: number;
  /**
   * Decay rates of the two moving averages: of the gradient, and of its square. Default [0.9,
   * 0.999].
   */
  readonly betas: readonly [number, number];
  /** Added to the root of the second average after its bias correction. Default 1e-8. */
  readonly eps: number;
  /** The rate at which parameters decay towards zero. Default 0 for Adam, 0.01 for AdamW. */
  readonly weightDecay: number;
}

const RULES: OptionRules<AdamOptions> = {
  lr: optional(atLeast(0)),
  betas: optional({
    expected: 'two numbers in [0, 1)',
    holds: (value) => Array.isArray(value) && value.length === 2 && value.every(isProbability),
  }),
  eps: optional(atLeast(0)),
  weightDecay: optional(atLeast(0)),
};

abstract class AdamBase extends Optimizer<AdamOptions> {
  /** Whether weight decay shrinks the parameter directly instead of being added to its gradient. */
  protected abstract get isDecoupled(): boolean;

  constructor(
    params: readonly Tensor[] | readonly ParamGroup<AdamOptions>[],
    options: Partial<AdamOptions>,
    own: { readonly name: string; readonly weightDecay: number },
  ) {
    checkOptions(own.name, options, RULES);
    const { weightDecay } = own;
    super(params, { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weightDecay, ...given(options) });
  }

  override get kind(): string {
    return this.isDecoupled ? 'AdamW' : 'Adam';
  }

  protected override checkGroup(group: OptimizerGroup<AdamOptions>, at: string): void {
    checkOptions(`${this.kind}${at}`, group, { ...RULES, params: PARAMETERS });
  }

  override stateNamesOf(): readonly string[] {
    return ['expAvg', 'expAvgSq'];
  }

  protected override stepFlat(device: Device, step: FlatStep<AdamOptions>): void {
    const { param, grad, state, segments, gradScale } = step;
    device.backend.run('adam', {
      param,
      grad,
      expAvg: state.get('expAvg')!,
      expAvgSq: state.get('expAvgSq')!,
      gradScale,
      groups: step.groups.map((group) => {
        const { lr, betas, eps, weightDecay } = group.options;
        const [beta1, beta2] = betas;
        return {
          lr,
          beta1,
          beta2,
          eps,
          weightDecay,
          biasCorrection1: 1 - pow64(beta1, group.step),
          biasCorrection2: 1 - pow64(beta2, group.step),
          decoupled: this.isDecoupled,
        };
      }),
      segments,
    });
  }
}

/** Adam (Kingma and Ba, 2015). Weight decay is added to the gradient, as in PyTorch's Adam. */
export class Adam extends AdamBase {
  protected get isDecoupled(): boolean {
    return false;
  }

  constructor(
    params: readonly Tensor[] | readonly ParamGroup<AdamOptions>[],
    options: Partial<AdamOptions> = {},
  ) {
    super(params, options, { name: 'Adam', weightDecay: 0 });
  }
}

/**
 * AdamW (Loshchilov and Hutter, 2019): Adam whose weight decay does not touch the gradient. Each
 * step first multiplies the parameters by 1 - lr * weightDecay.
 * @example
 * ```ts
 * import { AdamW, Gpt2 } from '@shardweave/nn';
 * import { Device, mean } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const device = new Device(backend);
 * const config = { vocab_size: 16, n_positions: 8, n_embd: 16, n_layer: 1, n_head: 2 };
 * const model = new Gpt2(device, config);
 * const optimizer = new AdamW(model.parameters(), { lr: 0.01 });
 * const losses: number[] = [];
 * for (let step = 0; step < 5; step++) {
 *   await device.scope(async () => {
 *     const ids = device.tensor(Int32Array.of(1, 2, 3, 4), [1, 4]);
 *     const targets = device.tensor(Int32Array.of(2, 3, 4, 5), [1, 4]);
 *     const loss = mean(await model.call(ids, { targets }));
 *     await loss.backward();
 *     await optimizer.step();
 *     optimizer.zeroGrad();
 *     losses.push(await loss.item());
 *   });
 * }
 * console.log(losses[4]! < losses[0]!); // logs true
 * device.dispose();
 * await backend.dispose();
 * ```
 */
export class AdamW extends AdamBase {
  protected get isDecoupled(): boolean {
    return true;
  }

  constructor(
    params: readonly Tensor[] | readonly ParamGroup<AdamOptions>[],
    options: Partial<AdamOptions> = {},
  ) {
    super(params, options, { name: 'AdamW', weightDecay: 0.01 });
  }
}
