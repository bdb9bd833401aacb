// Decides which rows of the text make up a step, the same on every rank and for every world size. A
// row is T tokens with, as targets, the T tokens that begin one place later.

import { dealLeaves } from '@shardweave/dtypes/tree';
import type { StrategyName } from '../run-config.js';
import { splitMix32 } from '../seeded-random.js';
import type { RowOrderName } from './rows.js';

/** The token at which row `row` (0 to B - 1) of step `step` (from 0) starts. */
export type RowOrder = (step: number, row: number) => number;

export interface RowOrderOptions {
  /** The number of tokens of the whole text, at least seq + 2. */
  readonly tokenCount: number;
  readonly batch: number;
  readonly seq: number;
  readonly seed: number;
}

/**
 * The order of the rows. `in turn`: rows follow one another to the end of the text. `sequential`:
 * they wrap around there. `shuffle`: the text is cut into rows, which come in another order in each
 * epoch; the order depends only on the seed.
 */
export function rowOrder(order: RowOrderName, options: RowOrderOptions): RowOrder {
  const { tokenCount, batch, seq } = options;
  if (order === 'in turn') {
    return (step, row) => (step * batch + row) * seq;
  }
  if (order === 'sequential') {
    return (step, row) => ((step * batch + row) * seq) % (tokenCount - seq - 1);
  }
  const rowsOfEpoch = Math.floor((tokenCount - 1) / seq);
  let epoch = -1;
  let permutation = new Uint32Array(0);
  return (step, row) => {
    const index = step * batch + row;
    if (Math.floor(index / rowsOfEpoch) !== epoch) {
      epoch = Math.floor(index / rowsOfEpoch);
      permutation = permute(rowsOfEpoch, options.seed, epoch);
    }
    return permutation[index % rowsOfEpoch]! * seq;
  };
}

export interface Parts {
  /** The number of rows of the step. */
  readonly batch: number;
  readonly ranks: number;
  readonly gradAccum: number;
  /** The number of groups of rows, each of which is a micro-step of one rank. */
  readonly gradientGroups?: number | undefined;
  /** By rank, the number of its groups, which follow one another; by default dealt evenly. */
  readonly groupCounts?: readonly number[] | undefined;
  /** Decides which ranks have which groups. */
  readonly strategy?: StrategyName | undefined;
}

/** The number of micro-steps in which some rank has a row; all ranks make as many. */
export function numMicroSteps(parts: Parts): number {
  const { batch, ranks, gradAccum, gradientGroups, groupCounts } = parts;
  if (gradientGroups !== undefined) {
    return groupCounts ? Math.max(...groupCounts) : Math.ceil(gradientGroups / ranks);
  }
  return Math.min(gradAccum, Math.ceil(batch / ranks));
}

/** A micro-step of a rank. */
interface MicroStep {
  readonly rank: number;
  readonly microStep: number;
}

/**
 * The group of a rank's micro-step; undefined where it has none. As the wrappers deal them out:
 * fsdp in turn, the others in runs of neighbors.
 */
export function groupOf({
  gradientGroups: groups = 0,
  ranks,
  groupCounts: counts = dealLeaves(groups, ranks),
  strategy,
  rank,
  microStep,
}: Pick<Parts, 'gradientGroups' | 'groupCounts' | 'ranks' | 'strategy'> & MicroStep):
  | number
  | undefined {
  if (strategy === 'fsdp') {
    const group = microStep * ranks + rank;
    return group < groups ? group : undefined;
  }
  const first = counts.slice(0, rank).reduce((sum, count) => sum + count, 0);
  return microStep < counts[rank]! ? first + microStep : undefined;
}

/**
 * The rows of a step's micro-step that belong to a rank: [first, end) out of B, perhaps none; with
 * groups those of its group. Otherwise a step's rows are divided among ranks, and a rank's rows
 * among micro-steps. Where the numbers don't divide evenly, the first parts take one row more.
 */
export function rowsOf(options: Parts & MicroStep): Rows {
  const { gradientGroups } = options;
  if (gradientGroups !== undefined) {
    const group = groupOf(options);
    const all = { first: 0, end: options.batch };
    return group === undefined ? { first: 0, end: 0 } : partOf(all, gradientGroups, group);
  }
  const own = partOf({ first: 0, end: options.batch }, options.ranks, options.rank);
  return partOf(own, numMicroSteps(options), options.microStep);
}

interface Rows {
  readonly first: number;
  readonly end: number;
}

/** Part `index` of `count`: 8 rows in 3 parts are 3, 3 and 2. */
function partOf(rows: Rows, count: number, index: number): Rows {
  const least = Math.floor((rows.end - rows.first) / count);
  const numLarger = (rows.end - rows.first) % count;
  const first = rows.first + index * least + Math.min(index, numLarger);
  return { first, end: first + least + (index < numLarger ? 1 : 0) };
}

/** Fisher and Yates' shuffle of 0 to n - 1. */
export function permute(n: number, seed: number, epoch: number): Uint32Array<ArrayBuffer> {
  const next = splitMix32(seed, epoch);
  const order = new Uint32Array(n).map((_, i) => i);
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor((next() / 2 ** 32) * (i + 1));
    [order[i], order[j]] = [order[j]!, order[i]!];
  }
  return order;
}
