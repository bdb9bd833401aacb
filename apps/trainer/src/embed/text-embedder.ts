// A model that makes vectors of texts, with its tokenizer and what its files say of its texts.

import type { TypedDocument } from '@shardweave/nn/embedding';
import type { Device } from '@shardweave/tensor-core';
import { rowLength, tokenizerName } from '../config/resolve-config.js';
import { Framer } from '../data/example-file.js';
import { rowLengthOf } from '../data/row-length.js';
import { loadTokenizer, type Tokenizer } from '../data/tokenizer.js';
import { UsageError } from '../errors.js';
import { type EmbeddingRows, embedRows } from '../figures/embedding-rows.js';
import { explainBudget, type OpenModel, openModel, readChoice } from '../generate/open-model.js';
import { hubNameOf } from '../hub/hub-name.js';
import { findWeights } from '../model/model-directory.js';
import { readTextModel } from '../model/text-model.js';
import type { EmbedHead } from '../task/task-head.js';
import { longestTextRow, widthOf } from '../task/text-config.js';
import type { EmbedFlags } from './embed-flags.js';
import type { TextLine } from './text-lines.js';

/** The texts of a chunk, which all begin with the prompt. */
export interface PromptedTexts {
  readonly texts: readonly Pick<TextLine, 'text' | 'place'>[];
  readonly prompt: string;
}

export class TextEmbedder implements AsyncDisposable {
  readonly head: EmbedHead;
  /** The numbers of a vector. */
  readonly width: number;
  /** The tokens behind which a text is cut. */
  readonly seq: number;
  readonly #flags: EmbedFlags;
  readonly #tokenizer: Tokenizer;
  readonly #vocabularySize: number;
  readonly #opened: OpenModel;
  readonly #framer: Framer;
  /** The tokens that are put around a text. */
  readonly #numAround: number;
  #numTexts = 0;
  #numCut = 0;

  private constructor(
    flags: EmbedFlags,
    plan: EmbedPlan,
    { tokenizer, opened }: { readonly tokenizer: Tokenizer; readonly opened: OpenModel },
  ) {
    const { begin, end } = tokenizer.frame;
    this.head = plan.head;
    this.seq = plan.seq;
    this.width = plan.width;
    this.#flags = flags;
    this.#tokenizer = tokenizer;
    this.#vocabularySize = plan.choice.modelConfig.vocab_size;
    this.#opened = opened;
    this.#framer = new Framer(tokenizer.frame, { most: plan.seq, hasPairs: false });
    this.#numAround = begin.length + end.length;
  }

  /**
   * @param options.entry the script that looks for a GPU
   * @throws {UsageError} for flags that the model or its tokenizer can't have
   */
  static async open(
    flags: EmbedFlags,
    plan: EmbedPlan,
    { entry }: { readonly entry: string },
  ): Promise<TextEmbedder> {
    const { model, modelConfig } = plan.choice;
    const tokenizer = await loadTokenizer(tokenizerName(flags, model, modelConfig), model.path);
    const { begin, end } = tokenizer.frame;
    const numAround = begin.length + end.length;
    if (plan.seq <= numAround) {
      throw new UsageError(
        `--seq ${plan.seq}: the tokenizer puts ${numAround} tokens around a text, so none of its own would be left. Give more.`,
      );
    }
    const opened = await openModel(plan.choice, flags, { entry });
    return new TextEmbedder(flags, plan, { tokenizer, opened });
  }

  get device(): Device {
    return this.#opened.device;
  }

  /** The texts that have been embedded. */
  get numTexts(): number {
    return this.#numTexts;
  }

  /** Those of them that were longer than `seq`. */
  get numCut(): number {
    return this.#numCut;
  }

  /**
   * Embeds texts in one call of the model.
   * @throws {UsageError} for a text that has no tokens, or tokens that the model lacks, and for
   * vectors that are no numbers
   */
  async embed({ texts, prompt }: PromptedTexts): Promise<EmbeddingRows> {
    const framed = texts.map((line) => this.#framed(line, prompt));
    const rowLength = rowLengthOf(framed, this.seq);
    const whole = await embedRows(this.#opened.model, framed, { rowLength }).catch(
      (cause: unknown) => {
        throw explainBudget(cause, this.#flags);
      },
    );
    const isCut = this.width < whole.width;
    const rows = isCut ? whole.cut(this.width) : whole;
    if (isCut && this.head.normalize) {
      rows.normalize();
    }
    if (!rows.values.every(Number.isFinite)) {
      throw new UsageError(
        `--model: ${this.#flags.model} gives vectors that are no numbers. Its weights, or those of its adapters, are damaged, or --precision is too narrow for them.`,
      );
    }
    this.#numTexts += texts.length;
    return rows;
  }

  #framed({ text, place }: PromptedTexts['texts'][number], prompt: string): TypedDocument {
    const tokens = this.#tokenizer.encode(prompt + text);
    const foreign = tokens.find((token) => token >= this.#vocabularySize);
    if (foreign !== undefined) {
      throw new UsageError(
        `--tokenizer ${this.#tokenizer.name}: a text has token ${foreign}, but the model's vocabulary ends at ${this.#vocabularySize - 1} (${place()}). Choose another --tokenizer.`,
      );
    }
    const framed = this.#framer.text(tokens);
    if (framed.ids.length === 0) {
      throw new UsageError(`${place()}: the tokenizer makes no tokens of the text. Leave it out.`);
    }
    this.#numCut += tokens.length + this.#numAround > this.seq ? 1 : 0;
    return framed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#opened[Symbol.asyncDispose]();
  }
}

/** What is known of an embedder before its weights are read. */
export interface EmbedPlan {
  readonly choice: Awaited<ReturnType<typeof readChoice>>;
  readonly head: EmbedHead;
  readonly seq: number;
  readonly width: number;
  /** Whether its files say how it pools; else the pooling is the usual one. */
  readonly isKnown: boolean;
  /** Whether the pooling counts the tokens of a prompt, too. */
  readonly includesPrompt: boolean;
}

/**
 * Reads what a model's files say of how it embeds.
 * @throws {UsageError} for a classifier, and for flags that go beyond the model
 */
export async function planEmbedding(flags: EmbedFlags): Promise<EmbedPlan> {
  const path = findWeights(flags.model);
  const { own } = await readTextModel(path);
  if (own.classes !== undefined) {
    throw new UsageError(
      `--model: expected an embedder, got ${hubNameOf(path) ?? path}, a classifier (${own.classes.labels.join(', ')}), which has labels and no vectors. Give an embedder, such as MiniLM, BGE or E5.`,
    );
  }
  const choice = await readChoice(flags, 'embed');
  const { modelConfig } = choice;
  const head = choice.head as EmbedHead;
  const positions = longestTextRow(modelConfig);
  const usual = Math.min(positions, head.maxSeqLength ?? positions);
  const width = widthOf(modelConfig);
  if (flags.dimensions !== undefined && flags.dimensions > width) {
    throw new UsageError(
      `--dimensions ${flags.dimensions}: the model's vectors have ${width} numbers. Give fewer, or leave it out.`,
    );
  }
  return {
    choice,
    head,
    seq: rowLength({ seq: flags.seq ?? usual }, modelConfig),
    width: flags.dimensions ?? width,
    isKnown: own.sentence !== undefined,
    includesPrompt: own.sentence?.includePrompt !== false,
  };
}
