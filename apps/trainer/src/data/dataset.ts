// The tokens of a run and the rows a rank takes from them.

import { UsageError } from '../errors.js';
import type { RunConfig } from '../run-config.js';
import { numMicroSteps, rowOrder, rowsOf } from './row-order.js';
import { readText } from './text.js';
import type { Tokenizer } from './tokenizer.js';

/** A target that does not count: beyond every vocabulary. */
export const NO_TARGET = 0xffff_ffff;

/** Rows for one micro-step of one rank, perhaps none. */
export interface MicroBatch {
  /** [rows, seq] */
  readonly tokens: Uint32Array;
  /** [rows, seq], one token on, or NO_TARGET. */
  readonly targets: Uint32Array;
  /** [rows, seq]: what the loss of each target is multiplied by. Undefined: 1 for all. */
  readonly weights?: Float32Array;
  readonly rows: number;
  /** Number of the first row among the B of the step: dropout's masks hang on it. */
  readonly firstRow: number;
}

export interface Dataset {
  readonly tokenCount: number;
  /** Micro-steps of every step, on every rank. */
  readonly numMicroSteps: number;
  /** Targets that count in step `step` (from 0), of all ranks and micro-steps: what losses are divided by. */
  numTargets(step: number): number;
  /** The rows of `rank` in micro-step `microStep` of step `step` (from 0). */
  microBatch(step: number, rank: number, microStep: number): MicroBatch;
}

type DataConfig = Pick<
  RunConfig,
  | 'dataFile'
  | 'tokenizer'
  | 'modelConfig'
  | 'order'
  | 'batch'
  | 'seq'
  | 'seed'
  | 'ranks'
  | 'gradAccum'
>;

/**
 * Reads and encodes the text.
 *
 * @throws {UsageError} for a text that is missing, too short or beyond the model's vocabulary.
 */
export async function loadDataset(config: DataConfig, tokenizer: Tokenizer): Promise<Dataset> {
  const tokens = tokenizer.encode(await readText(config.dataFile));
  const { seq, batch, ranks, gradAccum } = config;
  const name = config.dataFile ?? 'the novel';
  if (tokens.length < seq + 2) {
    throw new UsageError(
      `--data: ${name} has ${tokens.length} tokens, but --seq ${seq} needs at least ${seq + 2}. Give a longer text or a smaller --seq.`,
    );
  }
  const largest = tokens.reduce((most, token) => Math.max(most, token), 0);
  if (largest >= config.modelConfig.vocab_size) {
    throw new UsageError(
      `--tokenizer ${tokenizer.name}: ${name} has token ${largest}, but the model's vocabulary ends at ${config.modelConfig.vocab_size - 1}. Choose another --tokenizer, or a --model with a larger vocabulary.`,
    );
  }
  const startOf = rowOrder(config.order, {
    tokenCount: tokens.length,
    batch,
    seq,
    seed: config.seed,
  });
  return {
    tokenCount: tokens.length,
    numMicroSteps: numMicroSteps({ batch, ranks, gradAccum }),
    numTargets: () => batch * seq, // every token of a text has one after it
    microBatch: (step, rank, microStep) => {
      const { first, end } = rowsOf({ batch, ranks, rank, gradAccum, microStep });
      const rows = end - first;
      const inputs = new Uint32Array(rows * seq);
      const targets = new Uint32Array(rows * seq);
      for (let row = 0; row < rows; row++) {
        const start = startOf(step, first + row);
        inputs.set(tokens.subarray(start, start + seq), row * seq);
        targets.set(tokens.subarray(start + 1, start + 1 + seq), row * seq);
      }
      return { tokens: inputs, targets, rows, firstRow: first };
    },
  };
}
