// The model of a run's task: a transformer, and the head that the task puts on it.

import { applyLora, type Module, makeModel, NnConfigError } from '@shardweave/nn';
import { EmbeddingModel, Encoder, SequenceClassifier, TokenModel } from '@shardweave/nn/embedding';
import type { Device } from '@shardweave/tensor-core';
import { UsageError } from '../../errors.js';
import type { Block } from '../../own-model/open-own-model.js';
import { COMPUTE_DTYPES } from '../../run-config.js';
import { isEncoder, numBlocks, type TextConfig, textConfig } from '../../task/text-config.js';
import type { TaskModule } from '../objectives/objective.js';
import type { ModelChoice } from './model-choice.js';
import { isNumbers } from './model-choice.js';

/** A transformer without a task's head. */
// biome-ignore lint/suspicious/noExplicitAny: a language model's arguments, or an encoder's
export type Body = TokenModel<TextConfig, any>;

/** The labels of a classifier before anybody has read the data: as many as there are at least. */
const UNKNOWN_LABELS = ['0', '1'];

/** The run's transformer, with its adapters where it has them; values come later. */
export function deferredBody(
  device: Device,
  { lora, precision, seed, ...choice }: ModelChoice,
): Body {
  const modelConfig = textConfig(choice.modelConfig);
  const deferred = { seed, deferInit: true };
  const model: Body = isEncoder(modelConfig)
    ? new Encoder(device, modelConfig, deferred)
    : makeModel(device, modelConfig, deferred);
  if (lora !== undefined) {
    const { rank, alpha, dropout, baseType } = lora;
    // A classifier's files name its transformer, to which its own paths are relative.
    const targets =
      lora.targets === 'all-linear'
        ? lora.targets
        : lora.targets.map((path) => path.replace(/^bert\./, ''));
    const baseDType = isNumbers(baseType) ? baseType : COMPUTE_DTYPES[precision];
    // A classifier's pooler may be as new as its head.
    const hasPooler = isEncoder(modelConfig) && modelConfig.add_pooling_layer;
    const whole = hasPooler ? { modulesToSave: ['pooler'] } : {};
    const options = { rank, alpha, dropout, targets, baseDType, seed, ...whole };
    explainTargets(() => applyLora(model, options));
  }
  return model;
}

/**
 * The task's model on a transformer, wrapped or not. A classifier's head is deferred and trained,
 * also beside adapters.
 */
export function withHead(body: TaskModule, { head, seed }: ModelChoice): TaskModule {
  switch (head.kind) {
    case 'lm':
    case 'dpo':
    case 'orpo':
    case 'module':
      return body;
    case 'embed': {
      const { pooling, normalize } = head;
      return new EmbeddingModel(body, { pooling, normalize });
    }
    default: {
      const { labels, problemType } = head;
      return new SequenceClassifier(body, {
        labels: labels.length === 0 ? UNKNOWN_LABELS : labels,
        problemType,
        seed,
        deferInit: true,
      });
    }
  }
}

/** The transformer in a task's model. */
export function bodyOf(model: Module): Body {
  return model
    .namedModules()
    .map(([, module]) => module)
    .find((module) => module instanceof TokenModel) as Body;
}

/** The blocks of a transformer, which lie between its first layer and what ends it. */
export function blocksOf(model: Module): readonly Block[] {
  const owner = bodyOf(model);
  const count = numBlocks(owner.config);
  return owner
    .layers()
    .slice(1, 1 + count)
    .map((module, i) => ({ owner, name: String(i + 1), module }));
}

/** Turns a target that the model lacks into the user's mistake. */
function explainTargets(apply: () => void): void {
  try {
    apply();
  } catch (cause) {
    if (!(cause instanceof NnConfigError)) {
      throw cause;
    }
    throw new UsageError(
      `${cause.message} Give --lora-targets that the model has, or the --adapter of this model.`,
      { cause },
    );
  }
}
