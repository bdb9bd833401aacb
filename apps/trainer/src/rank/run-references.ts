// What the pairs of a run of --task dpo are compared with: those that its steps learn, and those
// that are evaluated.

import type { Examples } from '../data/example-data.js';
import { KeptReferences } from './kept-references.js';
import type { OpenedRank } from './open-rank.js';
import { findReferences } from './step/reference.js';

/** The pairs of each rank after which what is found is kept: some seconds of a CPU. */
const KEPT_EACH = 64;

/**
 * Finds the references of a run that goes on after step `from`, with --task dpo, or takes those
 * that an earlier one has found. Steps that are computed again find them anew. Collective.
 */
export async function findRunReferences(
  { options, data, device, strategy, groups, resuming }: OpenedRank,
  { from, numericClass }: { readonly from: number; readonly numericClass: string },
): Promise<void> {
  const { config, rank, emit, signal } = options;
  if (config.head.kind !== 'dpo') {
    return;
  }
  const { gather: group } = groups;
  const kept = config.again
    ? undefined
    : await KeptReferences.open({ config, group, resuming, numericClass });
  const { train, valid } = data as unknown as { train: Examples; valid: Examples | undefined };
  const last = config.again?.until ?? config.steps;
  const { tokens } = config;
  const parts: [Examples, readonly number[], string][] = [
    [train, train.numbersOf(from, last + 1), tokens.train[0]!.directory],
  ];
  if (valid !== undefined) {
    const { directory } = (tokens.valid ?? tokens.train)[0]!;
    parts.push([valid, valid.numbersOf(0, valid.numSteps), directory]);
  }
  const missing: typeof parts = [];
  for (const [examples, numbers, directory] of parts) {
    await kept?.load(examples, directory);
    missing.push([examples, numbers.filter((i) => !examples.references.has(i)), directory]);
  }
  const total = missing.reduce((sum, [, numbers]) => sum + numbers.length, 0);
  const atOnce = KEPT_EACH * config.ranks;
  let before = 0;
  for (const [examples, numbers, directory] of missing) {
    for (let first = 0; first < numbers.length; first += atOnce) {
      const own = numbers.slice(first, first + atOnce);
      await findReferences(examples, own, {
        ...{ config, rank, device, module: strategy.module, group },
        onPair: (done) => {
          signal.throwIfAborted();
          if (rank === 0) {
            emit({ type: 'doing', what: `finding references, ${before + done} of ${total}` });
          }
        },
      });
      before += own.length;
      // What is evaluated may be a part of the same file.
      const all = missing.filter(([, , other]) => other === directory);
      const references = new Map(all.flatMap(([{ references: found }]) => [...found]));
      await kept?.store(references, directory).catch((error: Error) => {
        const text = `References are not kept for a later run: ${error.message}`;
        emit({ type: 'warning', text });
      });
    }
  }
}
