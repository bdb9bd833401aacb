// Turns one line of a data set into tokens, each with a mark that tells whether its loss counts.

import { UsageError } from '../errors.js';
import type { ChatPart } from './chat-template.js';
import { encodeParts } from './encode-parts.js';
import { excerpt, readDocument, SHAPE_NAMES } from './line-shapes.js';
import type { Tokenizer } from './tokenizer.js';

/**
 * The highest bit of a document's token, set where the token counts as a target. No vocabulary
 * reaches it.
 */
export const COUNTED = 0x8000_0000;

/**
 * The tokens of a line's documents; those that count are marked by COUNTED. A document ends with an
 * end token, which counts where what stands before it does. A conversation is several documents
 * where the model would see its answers in different texts.
 * @param tokenizer one that has an end token
 * @throws {UsageError} without the place, which the caller knows
 */
export function encodeDocuments(line: string, tokenizer: Tokenizer): Uint32Array[] {
  return encodeFields(parseLine(line), tokenizer);
}

/** The tokens of the documents that a line's object says, as encodeDocuments has them. */
export function encodeFields(
  value: Readonly<Record<string, unknown>>,
  tokenizer: Tokenizer,
): Uint32Array[] {
  const document = readDocument(value);
  if ('parts' in document) {
    return [encode(document.parts, tokenizer, tokenizer.addsBegin)];
  }
  const { conversation, field } = document;
  if (tokenizer.chat === undefined) {
    throw new UsageError(
      `expected {"text"} or {"prompt", "completion"}, since --tokenizer ${tokenizer.name} has no chat template, got "${field}". Give a model with a chat_template in tokenizer_config.json, or a chat_template.jinja beside it.`,
    );
  }
  // A conversation is what its template writes, which may begin with a begin token.
  return tokenizer.chat.documents(conversation).map((parts) => encode(parts, tokenizer, false));
}

function encode(all: readonly ChatPart[], tokenizer: Tokenizer, addsBegin: boolean): Uint32Array {
  const parts = all.filter(({ text }) => text !== '');
  const ids = encodeParts(
    tokenizer,
    parts.map(({ text }) => text),
  );
  const { beginToken, endToken, endTokens } = tokenizer;
  const tokens: number[] = [];
  if (addsBegin && ids[0]?.[0] !== beginToken) {
    tokens.push(beginToken!);
  }
  for (const [i, own] of ids.entries()) {
    for (const id of own) {
      tokens.push(parts[i]!.isAnswer ? (id | COUNTED) >>> 0 : id);
    }
  }
  const last = tokens.at(-1);
  if (last === undefined || !endTokens.includes((last & ~COUNTED) >>> 0)) {
    tokens.push(parts.at(-1)?.isAnswer ? (endToken! | COUNTED) >>> 0 : endToken!);
  }
  return Uint32Array.from(tokens);
}

/** The object of a line. */
export function parseLine(line: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch (cause) {
    throw new UsageError(
      `expected a line of JSON, got ${excerpt(line)} (${(cause as Error).message}). Mend the line; a document is one line, with breaks in it written as \\n.`,
      { cause },
    );
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new UsageError(
      `expected an object ${SHAPE_NAMES}, got ${excerpt(line)}. Write each document as one of these.`,
    );
  }
  return value as Record<string, unknown>;
}
