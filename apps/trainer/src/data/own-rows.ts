// The rows that a module of people has itself, as the batches that each rank takes. A batch is no
// more than their numbers: the objective has the module's own code make it.

import { UsageError } from '../errors.js';
import { type OwnChoice, openOwnRows } from '../own-model/open-own-model.js';
import type { OwnRows } from '../own-model/own-model.js';
import type { RunConfig } from '../run-config.js';
import type { Dataset, RunData } from './dataset.js';
import { numMicroSteps, permute, rowsOf } from './row-order.js';
import type { RowOrderName } from './rows.js';

/** The rows for one micro-step of one rank; there may be none. */
export interface OwnBatch {
  readonly numbers: readonly number[];
  /** Whether they are among the rows to evaluate on. */
  readonly isValid: boolean;
  readonly firstRow: number;
}

type OwnConfig = OwnChoice &
  Pick<RunConfig, 'batch' | 'ranks' | 'gradAccum' | 'evalBatches'> &
  Partial<Pick<RunConfig, 'gradientGroups' | 'strategy'>> & {
    readonly order: RowOrderName;
  };

/** Opens the rows of a module that has some. */
export async function ownRows(config: OwnConfig): Promise<RunData<OwnBatch>> {
  const { train, valid } = await openOwnRows(config);
  const apart = valid && dataset({ ...config, order: 'in turn' }, valid);
  const { evalBatches } = config;
  return {
    train: dataset(config, train),
    valid: apart && { ...apart, numSteps: Math.min(apart.numSteps, evalBatches) },
    [Symbol.asyncDispose]: async () => {},
  };
}

function dataset(config: OwnConfig, { count, targets = () => 1 }: OwnRows<unknown>) {
  const { batch, order } = config;
  const isValid = order === 'in turn';
  const end = isValid ? count : Number.POSITIVE_INFINITY;
  const numberOf = rowOrder(config, count);
  const numbersIn = (step: number, first: number, last: number): number[] => {
    const from = Math.min(step * batch + first, end);
    const numRows = Math.max(0, Math.min(step * batch + last, end) - from);
    return Array.from({ length: numRows }, (_, i) => numberOf(from + i));
  };
  const targetsIn = (step: number) =>
    numbersIn(step, 0, batch).reduce((sum, row) => sum + checked(targets(row), row, config), 0);
  return {
    size: { tokens: 0, documents: count, unit: 'rows', cut: 0, pieces: 0, rows: count },
    numSteps: Math.ceil(count / batch),
    numMicroSteps: numMicroSteps(config),
    numTargets: async (step) => targetsIn(step),
    numTokens: targetsIn,
    originOf: (step, row) => ({
      part: 0,
      unit: 'row',
      numbers: numbersIn(step, row, row + 1),
    }),
    microBatch: async (step, rank, microStep) => {
      const { first, end: last } = rowsOf({ ...config, rank, microStep });
      return { numbers: numbersIn(step, first, last), isValid, firstRow: first };
    },
  } satisfies Dataset<OwnBatch>;
}

/** The row at each place of all epochs; each epoch has an order of its own. */
function rowOrder({ order, seed }: OwnConfig, count: number): (index: number) => number {
  if (order !== 'shuffle') {
    return (index) => index % count;
  }
  let epoch = -1;
  let permutation = new Uint32Array(0);
  return (index) => {
    if (Math.floor(index / count) !== epoch) {
      epoch = Math.floor(index / count);
      permutation = permute(count, seed, epoch);
    }
    return permutation[index % count]!;
  };
}

function checked(targets: number, row: number, { model }: OwnConfig): number {
  if (Number.isSafeInteger(targets) && targets >= 0) {
    return targets;
  }
  const path = model.kind === 'preset' ? model.name : model.path;
  throw new UsageError(
    `--model ${path}: targets(${row}): expected a whole number of targets, got ${targets}.`,
  );
}
