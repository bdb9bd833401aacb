// A vocabulary's tokens by number, each with its purpose.

import { GgufTokenizerError } from '../errors.js';
import type { AddedToken, TokenizerJson } from '../tokenizer-files.js';

/** llama.cpp's numbers for the purpose of a token. */
export const TOKEN_TYPE = {
  normal: 1,
  unknown: 2,
  /** Never part of a text: marks beginnings, ends and roles. */
  control: 3,
  /** Found in texts before anything else is. */
  userDefined: 4,
  /** A row of the model's table without a text. */
  unused: 5,
  byte: 6,
} as const;

export interface Vocabulary {
  readonly tokens: readonly string[];
  readonly types: readonly number[];
}

/**
 * @param vocabSize the rows of the model's table; rows after the tokenizer's last token get names
 * of their own
 * @throws {GgufTokenizerError} for a number outside the table, but for added tokens behind it, and
 * for one that two tokens have
 */
export function readVocabulary(json: TokenizerJson, vocabSize: number): Vocabulary {
  const tokens = new Array<string | undefined>(vocabSize).fill(undefined);
  const types = new Array<number>(vocabSize).fill(TOKEN_TYPE.unused);
  const place = (text: string, id: number, type: number): void => {
    if (!Number.isInteger(id) || id < 0 || id >= vocabSize) {
      throw new GgufTokenizerError(
        `tokenizer.json: expected numbers below the model's vocab_size ${vocabSize}, got ${id} for ${JSON.stringify(text)}.`,
      );
    }
    if ((tokens[id] ?? text) !== text) {
      throw new GgufTokenizerError(
        `tokenizer.json: expected one token of number ${id}, got ${JSON.stringify(tokens[id])} and ${JSON.stringify(text)}.`,
      );
    }
    tokens[id] = text;
    types[id] = type;
  };
  for (const [text, id] of Object.entries(json.model.vocab)) {
    place(text, id, TOKEN_TYPE.normal);
  }
  for (const added of json.added_tokens ?? []) {
    requirePlain(added);
    if (added.id >= vocabSize) {
      continue; // Gemma 3 without images has a token for them, and no row of the table for it
    }
    const isSpecial = added.special === true;
    place(added.content, added.id, isSpecial ? TOKEN_TYPE.control : TOKEN_TYPE.userDefined);
  }
  return { tokens: tokens.map((text, id) => text ?? `[PAD${id}]`), types };
}

/**
 * Refuses added tokens that take white space around them, or that must not be part of a word:
 * llama.cpp ignores both.
 */
function requirePlain(added: AddedToken): void {
  const field = (['lstrip', 'rstrip', 'single_word'] as const).find((name) => added[name] === true);
  if (field !== undefined) {
    throw new GgufTokenizerError(
      `tokenizer.json: expected added tokens with ${field} false, got ${JSON.stringify(added.content)} with true. llama.cpp would find it elsewhere.`,
    );
  }
}
