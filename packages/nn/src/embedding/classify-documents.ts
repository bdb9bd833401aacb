// Texts and pairs of texts as rows for a classifier, and the other kind of reranker: a language
// model that is asked whether a document answers a query, and says yes or no.

import { cast, gather, reshape, sigmoid, slice, sub, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, optional, whole } from '../check-options.js';
import { NnConfigError } from '../errors.js';
import type { TokenArgs } from '../models/token-options.js';
import type { Module } from '../module.js';
import { type Document, documentRows, placesOf } from './document-rows.js';
import type { EmbedDocumentsOptions } from './embedding-model.js';
import type { SequenceClassifierArgs } from './sequence-classifier.js';

/** A document whose tokens have types, such as a pair of texts. */
export interface TypedDocument {
  readonly ids: Document;
  /** The type of each token. */
  readonly tokenTypes: Document;
}

/** Options of textPair, those of a BERT's tokenizer. */
export interface TextPairOptions {
  /** The id that begins a text ([CLS]). */
  readonly clsId: number;
  /** The id that ends each of the two ([SEP]). */
  readonly sepId: number;
  /**
   * The most tokens of the pair. The longer text loses its last tokens until the pair fits, the
   * second one where both are as long. Default: any number.
   */
  readonly maxLength?: number | undefined;
}

/**
 * Two texts, such as a query and a document, as a BERT's classifier gets them: [CLS] first [SEP]
 * second [SEP], of the types 0 up to the first [SEP] and 1 after it.
 * @throws {NnConfigError} for options that cannot work
 */
export function textPair(
  [first, second]: readonly [first: Document, second: Document],
  options: TextPairOptions,
): TypedDocument {
  checkOptions<TextPairOptions>('textPair', options, {
    clsId: whole(0),
    sepId: whole(0),
    maxLength: optional(whole(3)),
  });
  const { clsId, sepId, maxLength = Number.POSITIVE_INFINITY } = options;
  const room = maxLength - 3;
  const half = Math.ceil(room / 2);
  const firstLength = Math.min(first.length, Math.max(half, room - second.length));
  const secondLength = Math.min(second.length, room - firstLength);
  const head = [clsId, ...Array.from(first).slice(0, firstLength), sepId];
  const tail = [...Array.from(second).slice(0, secondLength), sepId];
  return {
    ids: [...head, ...tail],
    tokenTypes: [...head.map(() => 0), ...tail.map(() => 1)],
  };
}

/**
 * Classifies documents of token ids, or such with types: f32 [documents, labels], in their order.
 * A document without types has 0 for all its tokens.
 * @param model a SequenceClassifier, wrapped or not
 * @throws {NnConfigError} for no documents, for one without tokens, for one longer than a row, and
 * for types of another number than tokens
 */
export async function classifyDocuments(
  model: Module<SequenceClassifierArgs, Tensor>,
  documents: readonly (Document | TypedDocument)[],
  options: EmbedDocumentsOptions = {},
): Promise<Tensor> {
  checkOptions<EmbedDocumentsOptions>('classifyDocuments', options, {
    rowLength: optional(whole(1)),
  });
  const { device } = model;
  const rowOptions = { op: 'classifyDocuments', rowLength: options.rowLength };
  const texts = documents.map((document) => ('ids' in document ? document.ids : document));
  const { ids, lengths } = documentRows(device, texts, rowOptions);
  if (!documents.some(isTyped)) {
    return model.call(ids, { lengths });
  }
  const types = documents.map((document) =>
    isTyped(document) ? document.tokenTypes : new Uint32Array(document.length),
  );
  const wrong = types.findIndex(({ length }, i) => length !== texts[i]!.length);
  if (wrong >= 0) {
    throw new NnConfigError(
      `classifyDocuments: expected a type for each of ${texts[wrong]!.length} tokens, got ${types[wrong]!.length} (document ${wrong}).`,
    );
  }
  const { ids: tokenTypes } = documentRows(device, types, rowOptions);
  return model.call(ids, { lengths, tokenTypes });
}

function isTyped(document: Document | TypedDocument): document is TypedDocument {
  return 'ids' in document;
}

/** The ids of the two tokens of which a language model says one. */
export interface YesNoIds {
  readonly yesId: number;
  readonly noId: number;
}

/**
 * How much a language model that reranks prefers "yes" to "no" as the token after each prompt: the
 * difference of their logits, f32 [prompts, 1], as a classifier of one label has it. Each prompt
 * has a row of its own, padded at its beginning, of which only the last token's logits are
 * computed.
 * @param model a LanguageModel, wrapped or not
 * @throws {NnConfigError} for ids that the model does not have, for no prompts, and for one without
 * tokens
 */
export async function yesNoLogits(
  model: Module<TokenArgs, Tensor>,
  prompts: readonly Document[],
  ids: YesNoIds,
): Promise<Tensor> {
  checkOptions<YesNoIds>('yesNoLogits', ids, { yesId: whole(0), noId: whole(0) });
  const { device } = model;
  const empty = prompts.findIndex(({ length }) => length === 0);
  if (empty >= 0) {
    throw new NnConfigError(
      `yesNoLogits: expected prompts of at least 1 token, got one of 0 (prompt ${empty}).`,
    );
  }
  const seq = Math.max(...prompts.map(({ length }) => length));
  const padded = prompts.map((prompt) => [
    ...new Uint32Array(seq - prompt.length),
    ...Array.from(prompt),
  ]);
  const { ids: rows } = documentRows(device, padded, { op: 'yesNoLogits', rowLength: undefined });
  const spans = prompts.map(({ length }, row) => ({ row, start: seq - length, length }));
  return device.scope(async () => {
    const places = placesOf(device, spans, [prompts.length, seq]);
    const logits = await model.call(rows, { ...places, onlyLast: true });
    const most = logits.shape.at(-1)! - 1;
    if (Math.max(ids.yesId, ids.noId) > most) {
      throw new NnConfigError(
        `yesNoLogits: expected ids of at most ${most}, the model's last one, got ${ids.yesId} and ${ids.noId}.`,
      );
    }
    const chosen = Uint32Array.from(prompts.flatMap(() => [ids.yesId, ids.noId]));
    const pairs = gather(
      reshape(logits, [prompts.length, -1]),
      device.tensor(chosen, [prompts.length, 2]),
    );
    const [yes, no] = [0, 1].map((start) =>
      cast(slice(pairs, { axis: 1, start, end: start + 1 }), 'f32'),
    );
    return sub(yes!, no!);
  });
}

/**
 * The score of each prompt by a language model that reranks, as Qwen3-Reranker does: the
 * probability of "yes" where the next token is "yes" or "no", f32 [prompts, 1] from 0 to 1. Its
 * loss is that of one label of yesNoLogits (multi_label_classification).
 * @param model a LanguageModel, wrapped or not
 * @throws {NnConfigError} as yesNoLogits
 */
export async function yesNoScores(
  model: Module<TokenArgs, Tensor>,
  prompts: readonly Document[],
  ids: YesNoIds,
): Promise<Tensor> {
  return model.device.scope(async () => sigmoid(await yesNoLogits(model, prompts, ids)));
}
