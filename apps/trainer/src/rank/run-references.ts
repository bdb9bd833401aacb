// What the pairs of a run of --task dpo are compared with: those that its steps learn, and those
// that are evaluated.

import type { Examples } from '../data/example-data.js';
import type { OpenedRank } from './open-rank.js';
import { findReferences } from './step/reference.js';

/** Finds the references of a run that goes on after step `from`, with --task dpo. Collective. */
export async function findRunReferences(
  { options, data, device, strategy, groups }: OpenedRank,
  from: number,
): Promise<void> {
  const { config, rank, emit, signal } = options;
  if (config.head.kind !== 'dpo') {
    return;
  }
  const { train, valid } = data as unknown as { train: Examples; valid: Examples | undefined };
  const last = config.again?.until ?? config.steps;
  const parts: [Examples, readonly number[]][] = [[train, train.numbersOf(from, last + 1)]];
  if (valid !== undefined) {
    parts.push([valid, valid.numbersOf(0, valid.numSteps)]);
  }
  const total = parts.reduce((sum, [, numbers]) => sum + numbers.length, 0);
  let before = 0;
  for (const [examples, numbers] of parts) {
    await findReferences(examples, numbers, {
      ...{ config, rank, device, module: strategy.module, group: groups.gather },
      onPair: (done) => {
        signal.throwIfAborted();
        if (rank === 0) {
          emit({ type: 'doing', what: `finding references, ${before + done} of ${total}` });
        }
      },
    });
    before += numbers.length;
  }
}
