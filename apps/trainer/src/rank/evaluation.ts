// The loss on data that is not trained on. It is the same number on every rank and for every
// strategy.

import type { ProcessGroup } from '@shardweave/collectives';
import type { Device } from '@shardweave/tensor-core';
import type { Dataset } from '../data/dataset.js';
import type { RunConfig } from '../run-config.js';
import type { Strategy } from './strategies/strategy.js';
import { sumOverRanks } from './sum-over-ranks.js';
import { summedLoss } from './summed-loss.js';

export interface EvaluationOptions {
  readonly config: Pick<RunConfig, 'seq'>;
  readonly rank: number;
  readonly device: Device;
  readonly strategy: Pick<Strategy, 'module'>;
  /** The data, each row of which is taken once. */
  readonly data: Dataset;
  /** The group of all ranks of the job. */
  readonly group: ProcessGroup;
  /** Whether the evaluation is given up, with the same answer on all ranks; asked at each step. */
  readonly isGivenUp?: (() => Promise<boolean>) | undefined;
  /** Called with the number of steps done, and of all. */
  readonly onStep?: (done: number, total: number) => void;
}

/**
 * The mean loss over the targets of `data` that count, with dropout off and without gradients;
 * training then goes on as if nothing had happened. Rows are divided by rank and micro-step as in
 * training. Collective.
 * @returns undefined where it was given up
 */
export async function evaluate(options: EvaluationOptions): Promise<number | undefined> {
  const { config, rank, device, strategy, data, group, onStep, isGivenUp } = options;
  const { module } = strategy;
  let own = 0;
  let numTargets = 0;
  module.eval();
  try {
    for (let step = 0; step < data.numSteps; step++) {
      if ((await isGivenUp?.()) === true) {
        return undefined;
      }
      numTargets += await data.numTargets(step);
      for (let microStep = 0; microStep < data.numMicroSteps; microStep++) {
        const batch = await data.microBatch(step, rank, microStep);
        own += await device.noGrad(() =>
          device.scope(async () =>
            (await summedLoss(batch, { device, module, seq: config.seq })).item(),
          ),
        );
      }
      onStep?.(step + 1, data.numSteps);
    }
  } finally {
    module.train();
  }
  return (await sumOverRanks(own, group, 'valid loss')) / numTargets;
}
