// How likely the base of adapters finds the answers of pairs, which DPO compares with: the model
// itself with its adapters off, and without dropout. It is found once a pair, before the steps.

import type { ProcessGroup } from '@shardweave/collectives';
import { withoutAdapters } from '@shardweave/nn/preference';
import type { Device } from '@shardweave/tensor-core';
import type { Examples } from '../../data/example-data.js';
import { summed } from '../../figures/task-figures.js';
import type { RunConfig } from '../../run-config.js';
import type { TaskModule } from '../objectives/objective.js';
import { pairLogProbs } from '../objectives/preferences.js';
import { evaluating } from './evaluation.js';

export interface ReferenceOptions {
  readonly config: Pick<RunConfig, 'seq' | 'ranks'>;
  readonly rank: number;
  readonly device: Device;
  readonly module: TaskModule;
  /** The group of all ranks of the job. */
  readonly group: ProcessGroup;
  /** Called with the number of pairs done, and of all. */
  readonly onPair?: ((done: number, total: number) => void) | undefined;
}

/**
 * Finds the references of pairs by their numbers, and keeps them with the data on all ranks.
 * Collective: ranks take pairs in turn. A call has one pair, so that a reference depends on nothing
 * but the pair and the base, whatever else is learnt, on how many ranks, and since which save.
 */
export async function findReferences(
  data: Examples,
  numbers: readonly number[],
  { config, rank, device, module, group, onPair }: ReferenceOptions,
): Promise<void> {
  const { seq, ranks } = config;
  const missing = numbers.filter((number) => !data.references.has(number));
  if (missing.length === 0) {
    return;
  }
  const found = new Float32Array(2 * missing.length);
  await evaluating(module, () =>
    withoutAdapters(module, async () => {
      for (let first = 0; first < missing.length; first += ranks) {
        const place = first + rank;
        // All ranks make as many calls, since sharded models gather in each.
        const pair = await data.example(missing[Math.min(place, missing.length - 1)]!);
        const own = await device.noGrad(() =>
          device.scope(async () => (await pairLogProbs(module, [pair], seq)).toArray()),
        );
        if (place < missing.length) {
          found.set(own as Float32Array, 2 * place);
        }
        onPair?.(Math.min(first + ranks, missing.length), missing.length);
      }
    }),
  );
  const all = await summed(found, group); // each has one that is not 0
  for (const [i, number] of missing.entries()) {
    data.references.set(number, [all[2 * i]!, all[2 * i + 1]!]);
  }
}
