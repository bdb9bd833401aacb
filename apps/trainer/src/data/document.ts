// Turns one line of a JSONL data set into tokens, each with a mark that tells whether its loss
// counts.

import { UsageError } from '../errors.js';
import type { ChatMessage, ChatPart } from './chat-template.js';
import { encodeParts } from './encode-parts.js';
import type { Tokenizer } from './tokenizer.js';

/**
 * The highest bit of a token in a token file, set where the token counts as a target. No vocabulary
 * reaches it.
 */
export const COUNTED = 0x8000_0000;

/**
 * The most characters of a line that a message shows, because a message is one line of a terminal.
 */
const EXCERPT_CHARS = 60;

const SHAPES = '{"text"}, {"prompt", "completion"} or {"messages": [{"role", "content"}]}';

/**
 * The tokens of a document; those that count are marked by COUNTED. It ends with an end token,
 * which counts where what stands before it does.
 * @param tokenizer one that has an end token
 * @throws {UsageError} without the place, which the caller knows
 */
export function encodeDocument(line: string, tokenizer: Tokenizer): Uint32Array {
  const value = parseLine(line);
  const parts = partsOf(value, tokenizer).filter(({ text }) => text !== '');
  const ids = encodeParts(
    tokenizer,
    parts.map(({ text }) => text),
  );
  const { beginToken, addsBegin, endToken, endTokens } = tokenizer;
  const tokens: number[] = [];
  if (addsBegin && !('messages' in value) && ids[0]?.[0] !== beginToken) {
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

function parseLine(line: string): Record<string, unknown> {
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
      `expected an object ${SHAPES}, got ${excerpt(line)}. Write each document as one of these.`,
    );
  }
  return value as Record<string, unknown>;
}

/** The parts of what a line says, in order; its fields decide how it is read. */
function partsOf(value: Record<string, unknown>, tokenizer: Tokenizer): readonly ChatPart[] {
  const isText = 'text' in value;
  const isPair = 'prompt' in value || 'completion' in value;
  const isChat = 'messages' in value;
  if (Number(isText) + Number(isPair) + Number(isChat) !== 1) {
    const keys = Object.keys(value).map((key) => JSON.stringify(key));
    throw new UsageError(
      `expected one of ${SHAPES}, got an object with ${keys.length === 0 ? 'nothing in it' : keys.join(', ')}. Rename the fields.`,
    );
  }
  if (isText) {
    return [{ text: words(value, 'text'), isAnswer: true }];
  }
  if (isPair) {
    return [
      { text: words(value, 'prompt'), isAnswer: false },
      { text: words(value, 'completion'), isAnswer: true },
    ];
  }
  if (tokenizer.chat === undefined) {
    throw new UsageError(
      `expected {"text"} or {"prompt", "completion"}, since --tokenizer ${tokenizer.name} has no chat template, got "messages". Give a model with a chat_template in tokenizer_config.json, or a chat_template.jinja beside it.`,
    );
  }
  return tokenizer.chat.parts(messagesOf(value.messages));
}

function words(value: Record<string, unknown>, name: string): string {
  const text = value[name];
  if (typeof text !== 'string' || text === '') {
    throw new UsageError(
      `expected words in "${name}", got ${text === undefined ? 'no such field' : excerpt(JSON.stringify(text))}. Fill it in, or leave the line out.`,
    );
  }
  return text;
}

function messagesOf(value: unknown): readonly ChatMessage[] {
  const list = Array.isArray(value) ? (value as unknown[]) : [];
  const bad = list.findIndex((one) => {
    const { role, content } = (one ?? {}) as Partial<ChatMessage>;
    return typeof role !== 'string' || typeof content !== 'string';
  });
  if (list.length === 0 || bad >= 0) {
    const [what, got] = bad < 0 ? ['messages', value] : [`message ${bad + 1}`, list[bad]];
    throw new UsageError(
      `expected messages [{"role", "content"}] of strings, got ${excerpt(JSON.stringify(got))} as ${what}. Write each turn as such an object.`,
    );
  }
  return list as ChatMessage[];
}

/** The beginning of what was found, so that the user can search for it. */
function excerpt(text: string): string {
  return text.length <= EXCERPT_CHARS ? text : `${text.slice(0, EXCERPT_CHARS)}...`;
}
