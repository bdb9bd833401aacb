// A classifier of texts, as the Hub's classes ...ForSequenceClassification are: a transformer, and
// a linear head on one row of each text. A reranker is one with a single label, whose texts are a
// query with a document.

import { cast, type Device, type Tensor } from '@shardweave/tensor-core';
import {
  checkNames,
  checkOptions,
  FLAG,
  type OptionRule,
  oneOf,
  optional,
  PROBABILITY,
  SEED,
} from '../check-options.js';
import { NnConfigError } from '../errors.js';
import { Dropout } from '../layers/dropout.js';
import { Linear } from '../layers/linear.js';
import { Encoder } from '../models/encoder.js';
import type { EncoderConfig } from '../models/encoder-config.js';
import type { EncoderOptions } from '../models/encoder-options.js';
import { LanguageModel } from '../models/language-model.js';
import { makeModel } from '../models/make-model.js';
import type { ModelConfig } from '../models/model-config.js';
import type { TokenModelOptions } from '../models/token-model.js';
import { Module, requireModule } from '../module.js';
import { ParameterInit } from '../parameters/parameter-init.js';
import { type DocumentLengths, type DocumentSpan, documentsOf, placesOf } from './document-rows.js';
import { tokenRows } from './pool.js';

/** What a classifier's labels are, under the names that the Hub's config.json has for it. */
export type ProblemType =
  | 'single_label_classification'
  | 'multi_label_classification'
  | 'regression';

export const PROBLEM_TYPES = [
  'single_label_classification',
  'multi_label_classification',
  'regression',
] as const satisfies readonly ProblemType[];

/** Options of SequenceClassifier. */
export interface SequenceClassifierOptions extends TokenModelOptions {
  /** The labels' names, by their ids. A reranker has one. */
  readonly labels: readonly string[];
  /** What the labels are, which files say. The computation is the same. Default: unsaid. */
  readonly problemType?: ProblemType | undefined;
  /**
   * The probability of dropping, in training, an element of the pooler's row. Default: the
   * encoder's hidden_dropout_prob. Decoders drop none.
   */
  readonly classifierDropout?: number | undefined;
}

/** What the files of a classifier say of it. */
export interface SequenceClassifierConfig {
  /** The configuration of the transformer. */
  readonly base: EncoderConfig | ModelConfig;
  /** The labels' names, by their ids. */
  readonly labels: readonly string[];
  readonly problemType?: ProblemType | undefined;
  readonly classifierDropout?: number | undefined;
}

/** What a classifier is called with beside its ids. */
export interface ClassifyOptions {
  /** The lengths of each row's documents. Default: each row is one document of all its tokens. */
  readonly lengths?: DocumentLengths | undefined;
  /** The type of each token, as the encoder's option. Decoders have none. */
  readonly tokenTypes?: Tensor | undefined;
}

/** The arguments of a SequenceClassifier: ids [batch, seq] (i32 or u32), and what lies in them. */
export type SequenceClassifierArgs = [ids: Tensor, options?: ClassifyOptions | undefined];

/** What a classifier is built on: an Encoder with a pooler or a LanguageModel, wrapped or not. */
// biome-ignore lint/suspicious/noExplicitAny: the arguments of either
export type ClassifierBody = Module<any, Tensor>;

const LABELS: OptionRule = {
  expected: 'a list of at least one name, each once',
  holds: (value) =>
    Array.isArray(value) &&
    value.length > 0 &&
    value.every((name) => typeof name === 'string') &&
    new Set(value).size === value.length,
};

const NAMES = ['lengths', 'tokenTypes'] as const satisfies (keyof ClassifyOptions)[];

/**
 * Maps ids [batch, seq] to logits, f32 [documents, labels], row by row. Over an encoder they are
 * `classifier` of the pooler's row, over a language model `score`, without a bias, of the last
 * token's row. Documents that are packed in a row have the logits that they have alone. Parameters
 * have the names of the Hub's files; a head of the language model itself stays unused.
 * @example
 * ```ts
 * import { Encoder, SequenceClassifier } from '@shardweave/nn/embedding';
 * import { Device } from '@shardweave/tensor-core';
 * import { createCpuBackend } from '@shardweave/tensor-core/cpu';
 *
 * const backend = await createCpuBackend({ threads: 1 });
 * const device = new Device(backend);
 * const body = new Encoder(device, {
 *   vocab_size: 64,
 *   hidden_size: 32,
 *   intermediate_size: 64,
 *   num_hidden_layers: 2,
 *   num_attention_heads: 4,
 *   add_pooling_layer: true,
 * });
 * const model = new SequenceClassifier(body, { labels: ['spam', 'ham', 'other'] });
 * const ids = device.tensor(Int32Array.of(2, 7, 3, 2, 9, 0), [1, 6]);
 * const logits = await model.call(ids, { lengths: [[3, 2]] });
 * console.log(logits.shape); // logs [ 2, 3 ]
 * device.dispose();
 * await backend.dispose();
 * ```
 */
export class SequenceClassifier extends Module<SequenceClassifierArgs, Tensor> {
  readonly body: ClassifierBody;
  /** Its weight is [labels, width]. Its name is `classifier` over an encoder, else `score`. */
  readonly head: Linear;
  readonly dropout: Dropout;
  readonly config: SequenceClassifierConfig;
  readonly #isEncoder: boolean;

  /**
   * @throws {NnConfigError} for a body that is neither an Encoder with a pooler nor a
   * LanguageModel, and for options that cannot work
   */
  constructor(body: ClassifierBody, options: SequenceClassifierOptions) {
    requireModule('SequenceClassifier', body, NnConfigError);
    checkOptions<SequenceClassifierOptions>('SequenceClassifier', options, {
      labels: LABELS,
      problemType: optional(oneOf(...PROBLEM_TYPES)),
      classifierDropout: optional(PROBABILITY),
      seed: optional(SEED),
      deferInit: optional(FLAG),
    });
    super(body.device);
    const { labels, problemType, classifierDropout, seed = 0, deferInit = false } = options;
    const base = configOf(body);
    this.config = { base, labels, problemType, classifierDropout };
    this.#isEncoder = base.model_type === 'bert';
    this.body = this.child(this.#isEncoder ? 'bert' : 'model', body);
    this.dropout = this.child('dropout', new Dropout(this.device, { p: dropoutOf(this.config) }));
    const name = this.#isEncoder ? 'classifier' : 'score';
    const init = new ParameterInit(this.device, { seed, isDeferred: deferInit, path: name });
    const head = new Linear(this.device, {
      inFeatures: base.model_type === 'gpt2' ? base.n_embd : base.hidden_size,
      outFeatures: labels.length,
      bias: this.#isEncoder,
      std: base.initializer_range,
      init,
    });
    this.head = this.child(name, head);
  }

  /** A language model's paths begin as the Hub's do; an encoder's lack the class's own name. */
  override childPrefix(name: string): string {
    return name === 'model' ? '' : name;
  }

  /**
   * @throws {NnConfigError} for lengths that do not fit the rows, and for types of a decoder's
   * tokens
   * @throws {ShapeError} for ids that are no rows
   */
  async forward(ids: Tensor, options: ClassifyOptions = {}): Promise<Tensor> {
    checkNames('SequenceClassifier.call', options, NAMES);
    const { lengths, tokenTypes } = options;
    if (tokenTypes !== undefined && !this.#isEncoder) {
      throw new NnConfigError(
        'SequenceClassifier.call: expected no tokenTypes beside a decoder, got some. Only encoders have types of tokens.',
      );
    }
    const { spans, shape } = documentsOf({ name: 'SequenceClassifier', ids, lengths });
    const places = placesOf(this.device, spans, shape);
    const rows = this.#isEncoder
      ? await this.body.call(ids, {
          ...places,
          ...(tokenTypes && { tokenTypes }),
          ...pooledOf(this.device, spans, shape),
        })
      : tokenRows(await this.body.call(ids, { ...places, onlyHidden: true }), spans, 'last');
    return cast(await this.head.call(await this.dropout.call(rows)), 'f32');
  }
}

/**
 * Makes the classifier that files describe, with random initial weights.
 * @throws {NnConfigError} naming the field of the configuration that cannot work
 */
export function makeSequenceClassifier(
  device: Device,
  config: SequenceClassifierConfig,
  options: TokenModelOptions = {},
): SequenceClassifier {
  const { base, labels, problemType, classifierDropout } = config;
  const { seed = 0, deferInit = false } = options;
  const body =
    base.model_type === 'bert'
      ? new Encoder(device, base, options)
      : makeModel(device, base, options);
  return new SequenceClassifier(body, { labels, problemType, classifierDropout, seed, deferInit });
}

function configOf(body: Module): EncoderConfig | ModelConfig {
  const bodies = body.namedModules().map(([, module]) => module);
  const found = bodies.find(
    (module) => module instanceof Encoder || module instanceof LanguageModel,
  );
  const config = (found as Encoder | LanguageModel | undefined)?.config;
  if (config === undefined || (config.model_type === 'bert' && !config.add_pooling_layer)) {
    throw new NnConfigError(
      `SequenceClassifier: expected an Encoder with a pooler or a LanguageModel, got ${config === undefined ? body.constructor.name : 'an Encoder without one. Set add_pooling_layer in its configuration'}.`,
    );
  }
  return config;
}

function dropoutOf({ base, classifierDropout }: SequenceClassifierConfig): number {
  return classifierDropout ?? (base.model_type === 'bert' ? base.hidden_dropout_prob : 0);
}

/** What makes the pooler give a row for each document: each row's only one needs no telling. */
function pooledOf(
  device: Device,
  spans: readonly DocumentSpan[],
  [batch, seq]: readonly [number, number],
): Pick<EncoderOptions, 'isPooled' | 'pooledTokens'> {
  if (spans.length === batch && spans.every(({ start }) => start === 0)) {
    return { isPooled: true };
  }
  const first = Uint32Array.from(spans, ({ row, start }) => row * seq + start);
  return {
    isPooled: true,
    pooledTokens: device.tensor(first, [spans.length], { tag: 'staging' }),
  };
}
