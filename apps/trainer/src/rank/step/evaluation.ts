// The loss on data that is not trained on. It is the same number on every rank and for every
// strategy.

import type { ProcessGroup } from '@shardweave/collectives';
import type { Device } from '@shardweave/tensor-core';
import type { Dataset } from '../../data/dataset.js';
import type { RunConfig } from '../../run-config.js';
import type { Strategy } from '../strategies/strategy.js';
import { sumOverRanks } from '../strategies/sum-over-ranks.js';
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
export function evaluate(options: EvaluationOptions): Promise<number | undefined> {
  return meanLoss(options, { first: 0, end: options.data.numSteps });
}

/**
 * The loss on the rows of step `step` (from 0), or of the next one in which a target counts: what
 * the present weights are worth, for the price of one forward. Undefined where none of the data
 * counts. Collective.
 */
export async function lossAhead(
  options: EvaluationOptions,
  step: number,
): Promise<number | undefined> {
  const { data } = options;
  for (let first = step; first < step + data.numSteps; first++) {
    if ((await data.numTargets(first)) > 0) {
      return meanLoss(options, { first, end: first + 1 });
    }
  }
  return undefined;
}

async function meanLoss(
  { config, rank, device, strategy, data, group, onStep, isGivenUp }: EvaluationOptions,
  { first, end }: { readonly first: number; readonly end: number },
): Promise<number | undefined> {
  const { module } = strategy;
  let own = 0;
  let numTargets = 0;
  module.eval();
  try {
    for (let step = first; step < end; step++) {
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
      onStep?.(step + 1, end);
    }
  } finally {
    module.train();
  }
  return (await sumOverRanks(own, group, 'valid loss')) / numTargets;
}
