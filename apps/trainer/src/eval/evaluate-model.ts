// Shows a model some data once, and computes the loss of training and the figures that people
// compare.

import { createMemoryGroup } from '@shardweave/collectives';
import { exp64 } from '@shardweave/dtypes/float64';
import { rowLength, tokenizerName } from '../config/resolve-config.js';
import { absoluteData } from '../data/data-parts.js';
import { skippedNotes } from '../data/data-source.js';
import type { Examples } from '../data/example-data.js';
import { openData } from '../data/open-data.js';
import { type PrepareOptions, prepareTokens } from '../data/prepare-tokens.js';
import { cacheDirectory, TokenCache } from '../data/token-cache.js';
import { UsageError } from '../errors.js';
import type { Figures } from '../figures/figures.js';
import { refuseIdle } from '../flags/flag-effects.js';
import { FLAGS } from '../flags/train-flags.js';
import { explainBudget, openModel, readChoice } from '../generate/open-model.js';
import { openObjective } from '../rank/objectives/open-objective.js';
import { evaluate } from '../rank/step/evaluation.js';
import { findReferences } from '../rank/step/reference.js';
import type { TaskHead } from '../task/task-head.js';
import type { EvalFlags } from './eval-flags.js';

export interface Evaluation {
  /** The number of tokens of the data. */
  readonly tokens: number;
  /** The number of documents; 0 for a text. */
  readonly documents: number;
  /** The number of tokens whose loss counts. */
  readonly targets: number;
  readonly seq: number;
  /** The mean loss over the targets, in nats. */
  readonly loss: number;
  /** e to the power of the loss. */
  readonly perplexity: number;
  /** The UTF-8 bytes that the targets spell; see TokenIndex. */
  readonly bytes: number | undefined;
  /** The sum of all losses / ln 2 / bytes. */
  readonly bitsPerByte: number | undefined;
}

/** What is told of another task's model. */
export interface TaskEvaluation extends Figures {
  readonly task: Exclude<TaskHead['kind'], 'lm'>;
  readonly tokens: number;
  readonly examples: number;
  readonly seq: number;
  /** The mean loss of labels, of pairs that are ranked, in their batches, or of answers. */
  readonly loss: number;
}

/** The loss of pairs as train has it without flags, so that losses can be compared. */
const LOSS_OF_PAIRS = {
  dpoBeta: FLAGS.dpoBeta.value,
  labelSmoothing: FLAGS.labelSmoothing.value,
  orpoLambda: FLAGS.orpoLambda.value,
  temperature: FLAGS.temperature.value,
  symmetric: FLAGS.symmetric.value,
  chunkSize: FLAGS.chunkSize.value,
  negatives: FLAGS.negatives.value,
  matryoshkaDims: undefined,
};

export interface EvaluateOptions {
  /** The script that looks for a GPU. */
  readonly entry: string;
  readonly signal: AbortSignal;
  readonly onTokenized: PrepareOptions['onTokenized'];
  /** Called with a sentence about data that is left out. */
  readonly onNote: (text: string) => void;
  /** Called with the batches that are done, and of all. */
  readonly onBatch: (done: number, total: number) => void;
}

/** @throws {UsageError} for a model, data or flags that can't be used */
export async function evaluateModel(
  flags: EvalFlags & { readonly task: TaskHead['kind'] | undefined },
  { entry, signal, onTokenized, onNote, onBatch }: EvaluateOptions,
): Promise<Evaluation | TaskEvaluation> {
  refuseIdle({ data: flags.data, trainOnPrompt: flags.trainOnPrompt });
  const choice = await readChoice(flags, flags.task);
  const { model, modelConfig } = choice;
  if (choice.head.kind === 'dpo' && choice.lora === undefined) {
    throw new UsageError(
      '--task dpo compares a model with what it is without its adapters, and there are none. Give --adapter with those that were trained, or --task orpo, which needs no reference.',
    );
  }
  const seq = rowLength(flags, modelConfig);
  const config = {
    ...choice,
    seq,
    tokenizer: tokenizerName(flags, model, modelConfig),
    data: absoluteData(flags.data),
    valid: undefined,
    validFraction: undefined,
    evalBatches: 0,
    cache: cacheDirectory(flags.cache, process.env),
    trainOnPrompt: flags.trainOnPrompt,
    batch: flags.batch,
    order: 'in turn',
    ranks: 1,
    gradAccum: 1,
    ...LOSS_OF_PAIRS,
  } as const;
  if (config.head.kind !== 'lm') {
    skippedNotes('--data', config.data).map(onNote);
  }
  await using cache = await TokenCache.open(config.cache);
  const files = await prepareTokens(config, { entry, cache, onTokenized, signal });
  await using opening = await openData(config, files);
  const { train: data } = opening;
  await using opened = await openModel(config, flags, { entry });
  const { device, model: module } = opened;
  const group = createMemoryGroup(1)[0]!;
  const groups = { reduce: group };
  if (config.head.kind === 'dpo') {
    const examples = data as unknown as Examples;
    const numbers = examples.numbersOf(0, data.numSteps);
    const onPair = () => signal.throwIfAborted();
    await findReferences(examples, numbers, { config, rank: 0, device, module, group, onPair });
  }
  const evaluated = await evaluate({
    config,
    rank: 0,
    device,
    strategy: {
      module,
      objective: openObjective({ device, module, config, groups, own: undefined }),
    },
    data,
    group,
    onStep: (done, total) => {
      signal.throwIfAborted();
      onBatch(done, total);
    },
  }).catch((cause: unknown) => {
    throw explainBudget(cause, flags);
  });
  const { loss, figures } = evaluated!; // nothing here gives it up
  let targets = 0;
  for (let step = 0; step < data.numSteps; step++) {
    targets += await data.numTargets(step);
  }
  const { targetBytes: bytes } = data;
  const { tokens, documents } = data.size;
  const { kind } = config.head;
  if (kind !== 'lm') {
    return { task: kind, tokens, examples: documents, seq, loss, ...figures! };
  }
  return {
    tokens,
    documents,
    targets,
    seq,
    loss,
    perplexity: exp64(loss),
    bytes,
    bitsPerByte: bytes === undefined ? undefined : (loss * targets) / Math.LN2 / bytes,
  };
}
