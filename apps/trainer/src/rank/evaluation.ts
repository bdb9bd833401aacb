// The loss on data that is not trained on: the same number on every rank, and for every strategy.

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
  /** Each of its rows is taken once. */
  readonly data: Dataset;
  /** The group of all ranks of the job. */
  readonly group: ProcessGroup;
  /** Told how many steps are done, of all. */
  readonly onStep?: (done: number, total: number) => void;
}

/**
 * The mean loss over the targets of `data` that count, with dropout off and without gradients;
 * training goes on as if nothing had been. Rows are cut by rank and micro-step as in training.
 * Collective.
 */
export async function evaluate(options: EvaluationOptions): Promise<number> {
  const { config, rank, device, strategy, data, group, onStep } = options;
  const { module } = strategy;
  let own = 0;
  let numTargets = 0;
  module.eval();
  try {
    for (let step = 0; step < data.numSteps; step++) {
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
