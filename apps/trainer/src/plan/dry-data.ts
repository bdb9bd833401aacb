// Rows of a run's shape without a text: a data set for steps whose values nobody reads.

import type { TypedDocument } from '@shardweave/nn/embedding';
import { LimitError } from '@shardweave/tensor-core';
import { formatOf } from '../data/data-source.js';
import type { Dataset } from '../data/dataset.js';
import type { ExampleBatch, TaskExample } from '../data/example-data.js';
import type { OwnBatch } from '../data/own-rows.js';
import { numMicroSteps, rowsOf } from '../data/row-order.js';
import type { RunConfig } from '../run-config.js';
import { isPreference, type TaskHead, type TrainedHead } from '../task/task-head.js';

export interface DryDataOptions {
  /** Called when a micro-step begins, with its place among those that are run. */
  readonly onMicroStep?: (place: number) => void;
}

/**
 * The most micro-steps of a step that are run. Where a step has more, those are the first two and
 * the last: the ones between are like the second.
 */
const MOST_MICRO_STEPS = 3;

/** The most tokens of a micro-step whose bytes the language can count in one array. */
const MOST_TOKENS = 2 ** 31;

/** The number of micro-steps of a step that are not run; a step of groups needs all of them. */
export function numSkipped(config: RunConfig): number {
  if (config.gradientGroups !== undefined) {
    return 0;
  }
  return Math.max(0, numMicroSteps(config) - MOST_MICRO_STEPS);
}

/** The rows that each rank gets in each micro-step, all of them zeros. */
export function dryData(config: RunConfig, { onMicroStep }: DryDataOptions = {}): Dataset {
  const { batch, seq, data } = config;
  const isPacked = formatOf(data) !== 'text';
  const skipped = numSkipped(config);
  return {
    size: { tokens: 0, documents: 0, cut: 0, pieces: 0, rows: 0 },
    numSteps: Number.POSITIVE_INFINITY,
    numMicroSteps: numMicroSteps(config) - skipped,
    numTargets: async () => batch * seq,
    originOf: () => ({ part: 0, unit: 'row', numbers: [] }),
    microBatch: async (_step, rank, place) => {
      onMicroStep?.(place);
      const microStep = place === MOST_MICRO_STEPS - 1 ? place + skipped : place;
      const { first, end } = rowsOf({ ...config, rank, microStep });
      if ((end - first) * seq > MOST_TOKENS) {
        throw new LimitError(
          `--batch ${batch} is ${end - first} rows of ${seq} tokens in a micro-step, more than ${MOST_TOKENS} tokens.`,
        );
      }
      const { head, modelConfig } = config;
      if (isExamples(head)) {
        return dryExamples(config, head, { first, end }) as never; // as its objective takes them
      }
      if (modelConfig.model_type === 'module' && modelConfig.rows !== undefined) {
        return dryRows(modelConfig.rows.train, { first, end }) as never;
      }
      const values = () => new Uint32Array((end - first) * seq);
      return {
        tokens: values(),
        targets: values(),
        ...(isPacked && { segments: values(), positions: values() }),
        rows: end - first,
        firstRow: first,
      };
    },
  };
}

/** The first rows of a module that has some. */
function dryRows(count: number, { first, end }: { readonly first: number; readonly end: number }) {
  const numbers = Array.from({ length: end - first }, (_, i) => (first + i) % count);
  return { numbers, isValid: false, firstRow: first } satisfies OwnBatch;
}

function isExamples(head: TrainedHead): head is TaskHead {
  return head.kind !== 'lm' && head.kind !== 'module';
}

/** Examples as large as they may be: each text takes a row. Most are shorter, and share rows. */
function dryExamples(
  { seq, negatives }: RunConfig,
  head: TaskHead,
  { first, end }: { readonly first: number; readonly end: number },
): ExampleBatch {
  if (isPreference(head.kind)) {
    const answer = {
      ids: new Uint32Array(seq + 1),
      tokenTypes: new Uint32Array(seq + 1).fill(1, 1),
    };
    const pair: TaskExample = { texts: [answer, answer], labels: [0, 0] };
    return { examples: new Array<TaskExample>(end - first).fill(pair), firstRow: first };
  }
  const text = { ids: new Uint32Array(seq), tokenTypes: new Uint32Array(seq) };
  const numTexts = head.kind === 'classify' ? 1 : head.kind === 'embed' ? 2 : 1 + negatives;
  const example: TaskExample = {
    texts: new Array<TypedDocument>(numTexts).fill(text),
    labels: head.kind === 'embed' ? [] : new Array<number>(numTexts).fill(0),
  };
  return { examples: new Array<TaskExample>(end - first).fill(example), firstRow: first };
}
