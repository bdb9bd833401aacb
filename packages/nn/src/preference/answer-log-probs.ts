// How likely a language model finds whole answers, several of them in a row. The loss of each token
// is summed by document, so that logits are never in memory all at once.

import { reshape, type Tensor } from '@shardweave/tensor-core';
import { checkOptions, optional, whole } from '../check-options.js';
import { type Document, documentRows, documentsOf, placesOf } from '../embedding/document-rows.js';
import type { EmbedDocumentsOptions } from '../embedding/embedding-model.js';
import { weightedRows } from '../embedding/pool.js';
import { NnConfigError } from '../errors.js';
import type { TokenArgs } from '../models/token-options.js';
import type { Module } from '../module.js';

/** A prompt's tokens with those of its answer. */
export interface Answer {
  readonly ids: Document;
  /** The number of the prompt's tokens, after which the answer begins; at least 1. */
  readonly promptLength: number;
}

/** Stands for a token of a prompt among targets: it lies beyond every vocabulary. */
const NO_TARGET = 0xffff_ffff;

/**
 * The logarithm of each answer's probability after its prompt, f32 [answers]: the sum over its
 * tokens, as a language model predicts each from all before it. Each answer takes a place less than
 * it has tokens, because nothing follows the last one.
 * @param model a LanguageModel, wrapped or not
 * @param options.rowLength the length of rows, of which each holds as many answers as fit; default:
 * a row for each, as long as the longest
 * @throws {NnConfigError} for no answers, for one that has no token after its prompt, for one
 * without a prompt, and for one longer than a row
 */
export async function answerLogProbs(
  model: Module<TokenArgs, Tensor>,
  answers: readonly Answer[],
  options: EmbedDocumentsOptions = {},
): Promise<Tensor> {
  const op = 'answerLogProbs';
  checkOptions<EmbedDocumentsOptions>(op, options, { rowLength: optional(whole(1)) });
  const wrong = answers.findIndex(
    ({ ids, promptLength }) => !(promptLength >= 1 && promptLength < ids.length),
  );
  if (wrong >= 0) {
    const { ids, promptLength } = answers[wrong]!;
    throw new NnConfigError(
      `${op}: expected a prompt of at least 1 token and an answer after it, got ${promptLength} of ${ids.length} tokens (answer ${wrong}).`,
    );
  }
  const { device } = model;
  const { rowLength } = options;
  const tokens = answers.map(({ ids }) => Array.from(ids).slice(0, -1));
  const wanted = answers.map(({ ids, promptLength }) =>
    Array.from(ids, (id, i) => (i < promptLength ? NO_TARGET : id)).slice(1),
  );
  const { ids, lengths } = documentRows(device, tokens, { op, rowLength });
  const { ids: targets } = documentRows(device, wanted, { op, rowLength });
  const { spans, shape } = documentsOf({ name: op, ids, lengths });
  return device.scope(async () => {
    const places = placesOf(device, spans, shape);
    const losses = await model.call(ids, { targets, ...places }); // [rows, seq]
    const rows = reshape(losses, [...shape, 1]);
    return reshape(
      weightedRows(rows, spans, () => -1),
      [answers.length],
    );
  });
}
